// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/node"
)

// stop sends STOP, and CONT after a while if it is short. The returned function sends CONT; it is called at the end anyway.
func (j *job) stop(what string, pid int) (wake func()) {
	j.t.Helper()
	j.t.Logf("STOP %s, pid %d", what, pid)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		j.t.Fatalf("stop %s, pid %d: %v", what, pid, err)
	}
	wake = func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			j.t.Errorf("wake %s, pid %d: %v", what, pid, err)
		}
	}
	j.t.Cleanup(wake)
	return wake
}

// without reports whether a world of n ranks trains without a member.
func without(n int, id phalanx.MemberID) func(*node.Status) bool {
	return func(s *node.Status) bool { return len(s.World) == n && !slices.Contains(s.World, id) }
}

// follower is a member of the world that does not lead, the last one in rank order.
func follower(t *testing.T, s *node.Status) node.MemberStatus {
	t.Helper()
	for _, id := range slices.Backward(s.World) {
		if id != s.Leader {
			return find(t, s, id)
		}
	}
	t.Fatalf("nobody follows in %s", describe(s))
	return node.MemberStatus{}
}

// TestP2OneWorldStoppedMemberIsFencedOut: a short stop changes nothing, a long one costs the member its life in the world.
func TestP2OneWorldStoppedMemberIsFencedOut(t *testing.T) {
	j := newJob(t, 4, 450, 40*time.Millisecond)
	j.run()
	s := j.until("four ranks train", both(whole(4), at(10)))

	// For 0.3 s: a trainer, a daemon, the leader's daemon.
	first := s
	f := follower(t, s)
	for what, pid := range map[string]int{"a trainer": f.TrainerPID, "a daemon": f.DaemonPID, "the leader's daemon": find(t, s, s.Leader).DaemonPID} {
		wake := j.stop(what, pid)
		time.Sleep(300 * time.Millisecond) // this is the disturbance
		wake()
		s = j.until("training goes on after a stop of "+what, both(whole(4), at(j.newestStep(s)+5)))
		if s.Generation != first.Generation {
			t.Errorf("stopping %s for 0.3 s made generation %d of %d", what, s.Generation, first.Generation)
		}
	}
	for _, m := range first.Members {
		now := find(t, s, m.Member)
		if now.TrainerPID != m.TrainerPID || now.DaemonPID != m.DaemonPID || now.Incarnation != m.Incarnation {
			t.Errorf("%s: was life %d, daemon %d, trainer %d; is life %d, daemon %d, trainer %d", m.Member,
				m.Incarnation, m.DaemonPID, m.TrainerPID, now.Incarnation, now.DaemonPID, now.TrainerPID)
		}
	}

	// For good: a trainer.
	f = follower(t, s)
	j.hit(f.TrainerPID, "STOP")
	wake := j.stop("the trainer of "+string(f.Member), f.TrainerPID)
	s = j.until("the others go on without it", func(n *node.Status) bool {
		return n.Generation > s.Generation && n.Step > s.Step+5
	})
	wake()
	s = j.until("it is back by another life", both(whole(4), replaced(f), at(s.Step+5)))
	if alive(f.TrainerPID) {
		t.Errorf("the trainer %d of an ended life lives", f.TrainerPID)
	}

	// For good: a daemon. Its trainer goes on computing until it is told.
	f = follower(t, s)
	j.hit(f.TrainerPID, "its daemon was stopped")
	wake = j.stop("the daemon of "+string(f.Member), f.DaemonPID)
	s = j.until("the others go on without it", both(without(3, f.Member), at(s.Step+5)))
	wake()
	s = j.until("it is back by another life", both(whole(4), replaced(f), at(s.Step+5)))
	if alive(f.TrainerPID) {
		t.Errorf("the trainer %d of an ended life lives", f.TrainerPID)
	}
	if now := find(t, s, f.Member); now.DaemonPID != f.DaemonPID {
		t.Errorf("the daemon of %s was stopped and woken: it was pid %d and is %d", f.Member, f.DaemonPID, now.DaemonPID)
	}

	// For good: the leader's daemon.
	f = find(t, s, s.Leader)
	j.hit(f.TrainerPID, "its daemon was stopped")
	wake = j.stop("the leader's daemon, of "+string(f.Member), f.DaemonPID)
	s = j.until("the others go on under another leader", both(without(3, f.Member), at(s.Step+5), func(n *node.Status) bool { return n.Leader != f.Member }))
	wake()
	j.until("it is back by another life", both(whole(4), replaced(f), at(s.Step+5)))
	j.finish()
}

// newestStep is the newest step that is known, at least that of s.
func (j *job) newestStep(s *node.Status) phalanx.Step {
	if n, err := j.look(); err == nil {
		return max(s.Step, n.Step)
	}
	return s.Step
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
