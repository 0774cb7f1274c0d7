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

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	// A fuzzing process is interrupted in the middle of a read, so only the others are searched for goroutines that are left.
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// child says that it is up and waits to be ended, by its standard input's end at the latest.
func child() {
	signal.Ignore(syscall.SIGPIPE)
	fmt.Println("up")
	var b [1]byte
	_, _ = os.Stdin.Read(b[:])
}
