// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"phalanx"
)

// probes are those that were under way when gossip was closed. Each waits for its answer, for seconds where the machine is
// busy, and then ends; the library has no way to end it sooner.
var probes = goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode")

// A fuzzing process is interrupted in the middle of a read, so only the others are searched for goroutines that are left.
func TestMain(m *testing.M) {
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m, probes)
}

// quiet drops what is logged.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func incarnate(host string, index int, n phalanx.Incarnation) phalanx.Incarnate {
	return phalanx.Incarnate{Member: phalanx.NewMemberID(host, index), Incarnation: n}
}
