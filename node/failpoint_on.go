// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package node

import (
	"os"
	"strings"
	"syscall"
)

// failpoint kills the process at the place that PHALANX_FAILPOINT names, once: the file PHALANX_FAILPOINT_ONCE must not exist
// yet and is made first, so that the restarted daemon goes on.
func failpoint(name string) {
	if strings.TrimSpace(os.Getenv("PHALANX_FAILPOINT")) != name {
		return
	}
	if once := os.Getenv("PHALANX_FAILPOINT_ONCE"); once != "" {
		f, err := os.OpenFile(once, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return
		}
		f.Close()
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}
