// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"phalanx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet drops what is logged.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func incarnate(host string, index int, n phalanx.Incarnation) phalanx.Incarnate {
	return phalanx.Incarnate{Member: phalanx.NewMemberID(host, index), Incarnation: n}
}
