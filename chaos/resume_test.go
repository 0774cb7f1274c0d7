// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx/node"
)

// TestP4EverythingKilled: nothing lives any more, and the same command goes on from the newest state that is left.
func TestP4EverythingKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		reboot bool
	}{{"host memory is left", false}, {"after a reboot", true}} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t, 4, 250, 10*time.Millisecond)
			j.flags = []string{"--save-every", "50"}
			j.run()
			s := j.until("a checkpoint is published and training goes on", func(s *node.Status) bool {
				return s.Published != nil && s.Published.Step >= 50 && s.Step >= s.Published.Step+10
			})
			killed := s.Step
			j.killAll()
			if c.reboot {
				j.reboot()
			}
			j.forget()
			j.run()
			s = j.until("it trains again", both(whole(4), func(n *node.Status) bool { return n.Generation > s.Generation }))
			t.Logf("killed at step %d, goes on from step %d", killed, s.Floor)
			if s.Floor < 50 {
				t.Errorf("goes on from step %d although step 50 was published", s.Floor)
			}
			j.history.allowed = "everything was killed"
			j.finish()
		})
	}
}

// TestP7RunMayDie: without a run the job goes on, and the same run takes it over.
func TestP7RunMayDie(t *testing.T) {
	t.Parallel()
	j := newJob(t, 4, 250, 25*time.Millisecond)
	first := j.run()
	s := j.until("four ranks train", both(whole(4), at(10)))
	first.signal(syscall.SIGKILL)
	<-first.ended
	s = j.until("training goes on without a run", both(whole(4), at(s.Step+20)))

	j.run()
	j.until("the new run has taken over", func(*node.Status) bool { return strings.Count(j.newest().errs(), "attached to a living daemon") == 4 })
	// It holds daemons up as if it had started them.
	f := follower(t, s)
	s = j.until("training goes on", whole(4))
	j.strike(s, nil, []node.MemberStatus{f})
	j.until("the daemon is started again", both(whole(4), restarted(f), at(s.Step+5)))
	j.finish()
	if n := len(j.transitions); n != 1 {
		t.Errorf("%d generations, want the first alone", n)
	}
}

// TestInterruptedRunGoesOn: TERM finishes the step, publishes and leaves in order; the same command goes on from there.
func TestInterruptedRunGoesOn(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			j := newJob(t, 4, 200, 15*time.Millisecond)
			p := j.run()
			s := j.until("four ranks train", both(whole(4), at(30)))
			p.signal(sig)
			if p = j.end(); p.code != 75 {
				t.Fatalf("%v: the run ended with %d, want 75\n%s", sig, p.code, tail(p.errs(), 15))
			}
			out, code := j.verb("ckpt", "latest")
			if code != 0 || !strings.HasPrefix(out, "step=") {
				t.Fatalf("ckpt latest: %d %s", code, out)
			}
			if left := j.own(); len(left) != 0 {
				t.Errorf("daemons or trainers are left: %v", left)
			}
			j.reboot() // what was promised is in the store
			j.forget()
			floor := s.Step
			j.run()
			s = j.until("it trains again", whole(4))
			if s.Floor < floor {
				t.Errorf("goes on from step %d; step %d was committed before the signal", s.Floor, floor)
			}
			j.history.allowed = "stopped and started"
			j.finish()
		})
	}
}

// TestHealthyStepsWriteNothing: the log is for changes.
func TestHealthyStepsWriteNothing(t *testing.T) {
	j := newJob(t, 4, 600, 10*time.Millisecond)
	j.run()
	from := j.until("four ranks train, and the voters are chosen", both(whole(4), at(40), func(s *node.Status) bool { return len(s.Raft.Voters) == 3 }))
	to := j.until("a hundred steps later", at(from.Step+100))
	for window := 0; from.Raft.Term != to.Raft.Term; window++ { // an election on a busy machine writes an entry of its own
		if window == 4 {
			t.Fatalf("leadership changed in each of %d windows of a hundred steps, up to term %d", window+1, to.Raft.Term)
		}
		from = to
		to = j.until("a hundred more steps later", at(from.Step+100))
	}
	if from.Raft.Commit != to.Raft.Commit || from.Raft.LastIndex != to.Raft.LastIndex {
		t.Errorf("the log grew from %d (%d committed) to %d (%d committed) over %d healthy steps",
			from.Raft.LastIndex, from.Raft.Commit, to.Raft.LastIndex, to.Raft.Commit, to.Step-from.Step)
	}
	j.finish()
}

// TestSpareTakesTheRank: a parked trainer takes the place of a dead one in one generation, and the dead one's successor parks.
func TestSpareTakesTheRank(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3, 300, 15*time.Millisecond)
	j.flags = []string{"--spares", "1"}
	j.run()
	s := j.until("three ranks train and one is parked", both(whole(3), at(10), func(s *node.Status) bool { return len(spares(s)) == 1 }))
	spare := spares(s)[0]
	dead := follower(t, s)
	j.strike(s, []node.MemberStatus{dead}, nil)
	generation := s.Generation
	s = j.until("the spare is in the world", both(whole(3), at(s.Step+3), func(n *node.Status) bool { return n.Generation > generation }))
	now := find(t, s, spare.Member)
	if s.Generation != generation+1 {
		t.Errorf("one kill took the generation from %d to %d", generation, s.Generation)
	}
	if now.Rank != dead.Rank || now.TrainerPID != spare.TrainerPID {
		t.Errorf("rank %d of %s is to be taken by the parked trainer, pid %d; %s has rank %d, pid %d", dead.Rank, dead.Member, spare.TrainerPID, now.Member, now.Rank, now.TrainerPID)
	}
	s = j.until("the successor of the dead one is parked", func(n *node.Status) bool {
		p := spares(n)
		return len(p) == 1 && p[0].Member == dead.Member && p[0].Incarnation > dead.Incarnation
	})
	s = j.until("training goes on", at(s.Step+10))
	if s.Generation != generation+1 {
		t.Errorf("the successor of the dead one parked by generation %d, want none after %d", s.Generation, generation+1)
	}
	j.finish()
}

// spares are the members that are ready and in no world.
func spares(s *node.Status) []node.MemberStatus {
	var out []node.MemberStatus
	for _, m := range s.Members {
		if m.State == "spare" && m.Rank < 0 && m.TrainerPID > 1 {
			out = append(out, m)
		}
	}
	return out
}

// TestDrainAndResize: members leave and come at the end of a step, and nobody else notices.
func TestDrainAndResize(t *testing.T) {
	t.Parallel()
	j := newJob(t, 4, 250, 30*time.Millisecond)
	j.run()
	s := j.until("four ranks train", both(whole(4), at(10)))
	f := follower(t, s)
	j.hit(f.TrainerPID, "drained")
	if out, code := j.verb("drain", string(f.Member), "--why", "a test"); code != 0 {
		t.Fatalf("drain: %d\n%s", code, out)
	}
	s = j.until("three ranks train", both(without(3, f.Member), at(s.Step+5)))
	if out, code := j.verb("drain", "nobody/7"); code != node.CodeNotFound || !strings.Contains(out, "no such member") {
		t.Errorf("drain of a stranger: %d\n%s", code, out)
	}
	if out, code := j.verb("resize", "99"); code != node.CodeUsage || !strings.Contains(out, "it can have 16 ranks") {
		t.Errorf("resize beyond the slots: %d\n%s", code, out)
	}

	for _, id := range s.World { // whoever leaves was asked to
		j.hit(find(t, s, id).TrainerPID, "resize")
	}
	if out, code := j.verb("resize", "2"); code != 0 {
		t.Fatalf("resize: %d\n%s", code, out)
	}
	s = j.until("two ranks train", both(func(s *node.Status) bool { return len(s.World) == 2 }, at(s.Step+5)))
	if out, code := j.verb("resize", "3"); code != 0 {
		t.Fatalf("resize: %d\n%s", code, out)
	}
	s = j.until("three ranks train again", both(func(s *node.Status) bool { return len(s.World) == 3 }, at(s.Step+5)))
	if slices.Contains(s.World, f.Member) {
		t.Errorf("%s was drained and is back in %v", f.Member, s.World)
	}
	for _, x := range j.ordered() {
		if !x.Planned && x.Generation.Number > 1 || x.Newest != x.ResumeStep {
			t.Errorf("generation %s was not planned, or lost a step: %+v", x.Generation, x)
		}
	}
	j.finish()
}

// TestTwoRunsOfOneName: two runs that publish under one name into one store do not both go on. One of them is told and ends; what
// is published is of the other alone.
func TestTwoRunsOfOneName(t *testing.T) {
	t.Parallel()
	a, b := newJob(t, 1, 400, 5*time.Millisecond), newJob(t, 1, 400, 5*time.Millisecond, "--seed", "2")
	b.flags = []string{"--store", filepath.Join(a.dir, "store"), "--job", filepath.Base(a.dir), "--save-every", "5"}
	a.flags = []string{"--save-every", "5"}
	a.run()
	b.run()
	codes := []int{a.end().code, b.end().code}
	slices.Sort(codes)
	// The second one may also have found the first one's checkpoint at its start.
	if codes[0] != 0 || codes[1] != node.CodeLocked && codes[1] != node.CodeUsage {
		t.Fatalf("the runs ended with %v\n%s\n%s", codes, tail(a.newest().errs(), 8), tail(b.newest().errs(), 8))
	}
	if out, code := a.verb("ckpt", "verify", "--all"); code != 0 {
		t.Errorf("verify ended with %d: %s", code, out)
	}
}

// TestStoreOfAnotherTraining: a new directory goes on from a store only with the settings that it was trained with, and only
// forwards. What is stored stays as it is.
func TestStoreOfAnotherTraining(t *testing.T) {
	t.Parallel()
	first := newJob(t, 2, 40, time.Millisecond)
	first.run()
	first.finish()
	store := []string{"--store", filepath.Join(first.dir, "store"), "--job", filepath.Base(first.dir)}
	for _, c := range []struct {
		name  string
		steps int
		more  []string
		code  int
		words string
	}{
		{"another seed", 60, []string{"--seed", "2"}, 2, "seed is 2, the job has 1"},
		{"fewer steps", 30, nil, 2, "holds step 40 of job job, which is to end with step 30"},
		{"as many steps", 40, nil, 0, ""},
		{"more steps", 60, nil, 0, ""},
	} {
		j := newJob(t, 1, c.steps, time.Millisecond, c.more...)
		j.flags = store
		j.run()
		if c.code == 0 {
			j.history.allowed = "a new directory goes on from the store"
			j.finish()
		} else {
			j.refused(c.code, c.words)
		}
	}
}
