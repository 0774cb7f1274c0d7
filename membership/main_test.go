// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the process that the tests watch: a child runs it with this variable set.
const childEnv = "PHALANX_MEMBERSHIP_TEST_CHILD"

// probes are those that were under way when gossip was closed. Each waits for its answer, for seconds where the machine is
// busy, and then ends; the library has no way to end it sooner.
var probes = goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode")

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	// A fuzzing process is interrupted in the middle of a read, so only the others are searched for goroutines that are left.
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m, probes)
}

// child says that it is up and waits to be ended, by its standard input's end at the latest.
func child() {
	signal.Ignore(syscall.SIGPIPE)
	fmt.Println("up")
	var b [1]byte
	_, _ = os.Stdin.Read(b[:])
}
