// SPDX-License-Identifier: Apache-2.0

//go:build seaweedfs

package chaos_test

import (
	"testing"

	"phalanx/ckpt/s3/s3test"
)

// TestWeedKilled trains for longer: SeaweedFS takes a quarter of a minute until it is back.
func TestWeedKilled(t *testing.T) {
	w := s3test.StartWeed(t)
	serverKilled(t, w, w.Env(), w.StoreURL("team/run"), 1600)
}
