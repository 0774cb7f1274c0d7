// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"syscall"
	"testing"
	"time"

	"phalanx/node"
)

// strike sends KILL to processes of members of this job, as close to the same instant as a caller can.
func (j *job) strike(s *node.Status, trainers, daemons []node.MemberStatus) {
	j.t.Helper()
	var pids []int
	for _, m := range daemons {
		j.t.Logf("step %d generation %d: KILL the daemon of %s, pid %d", s.Step, s.Generation, m.Member, m.DaemonPID)
		pids = append(pids, m.DaemonPID)
	}
	for _, m := range trainers {
		j.t.Logf("step %d generation %d: KILL the trainer of %s, pid %d", s.Step, s.Generation, m.Member, m.TrainerPID)
		j.hit(m.TrainerPID, "KILL")
		pids = append(pids, m.TrainerPID)
	}
	for _, pid := range pids {
		if pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it ended by itself meanwhile: the job goes on either way
		}
	}
}

// TestP1NoSpecialHost ends those that other systems cannot lose.
func TestP1NoSpecialHost(t *testing.T) {
	j := newJob(t, 4, 250, 25*time.Millisecond)
	j.run()

	s := j.until("four ranks train", both(whole(4), at(10)))
	leader := find(t, s, s.Leader)
	j.strike(s, nil, []node.MemberStatus{leader})
	s = j.until("the leader's daemon is back beside its trainer", both(whole(4), restarted(leader), at(s.Step+5)))

	rank0 := find(t, s, s.World[0])
	j.strike(s, []node.MemberStatus{rank0}, nil)
	s = j.until("rank 0 is replaced", both(whole(4), replaced(rank0), at(s.Step+5)))

	leader = find(t, s, s.Leader)
	j.strike(s, []node.MemberStatus{leader}, []node.MemberStatus{leader})
	s = j.until("leader and trainer are replaced", both(whole(4), replaced(leader), restarted(leader), at(s.Step+5)))

	rank0 = find(t, s, s.World[0])
	leader = find(t, s, s.Leader)
	j.strike(s, []node.MemberStatus{rank0}, []node.MemberStatus{leader})
	j.until("rank 0 and the leader are replaced", both(whole(4), replaced(rank0), restarted(leader), at(s.Step+5)))
	j.finish()
}
