// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"syscall"
	"testing"
	"time"

	"phalanx/node"
)

// TestP1TwoVotersLeave: two daemons that vote in the log are asked to end at once. The standby takes a vote before they go,
// and the others go on; without that the quorum would leave with them.
func TestP1TwoVotersLeave(t *testing.T) {
	t.Parallel()
	j := newJob(t, 4, 200, 20*time.Millisecond)
	j.run()
	s := j.until("four ranks train, three of them vote", both(whole(4), at(10), func(s *node.Status) bool {
		voters := 0
		for _, m := range s.Members {
			if m.Role == "voter" {
				voters++
			}
		}
		return voters == 3
	}))
	left := 0
	for _, m := range s.Members {
		if m.Role == "voter" && m.Member != s.Leader && left < 2 {
			left++
			t.Logf("step %d: TERM the daemon of %s, pid %d", s.Step, m.Member, m.DaemonPID)
			j.hit(m.TrainerPID, "leaves")
			if err := syscall.Kill(m.DaemonPID, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if left != 2 {
		t.Fatalf("%d voters beside the leader: %s", left, describe(s))
	}
	j.finish()
}
