// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net"
	"os"
	"testing"

	"phalanx/node"
)

// A daemon on a full disk could not write where it is; its socket has a place that everybody knows.
func TestADaemonWithoutItsFileIsFound(t *testing.T) {
	paths := node.NewPaths(t.TempDir(), "")
	if err := os.MkdirAll(paths.Member(1), 0o700); err != nil {
		t.Fatal(err)
	}
	if found := Find(paths.Dir); len(found) != 0 {
		t.Errorf("found %+v before anybody listens", found)
	}
	l, err := net.Listen("unix", paths.Socket(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	found := Find(paths.Dir)
	if len(found) != 1 || found[0].Index != 1 || found[0].PID != os.Getpid() || found[0].Start == 0 || found[0].Socket != paths.Socket(1) {
		t.Errorf("found %+v", found)
	}
}
