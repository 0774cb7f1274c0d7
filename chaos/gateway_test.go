// SPDX-License-Identifier: Apache-2.0

//go:build s3

package chaos_test

import (
	"testing"

	"phalanx/ckpt/s3/s3test"
)

func TestGatewayKilled(t *testing.T) {
	g := s3test.StartGateway(t, true)
	serverKilled(t, g, g.Env(), g.StoreURL("team/run"), 400)
}
