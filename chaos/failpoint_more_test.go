// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/node"
)

// twoHosts starts a job of two members on each of two hosts. The hosts are two names and folders of this machine, whose daemons
// reach each other by TCP alone. The first one's job knows the history of both. set may change their flags.
func twoHosts(t *testing.T, steps int, floor time.Duration, set ...func(a, b *job)) (a, b *job) {
	t.Helper()
	a = newSmallArmedJob(t, 2, steps, floor)
	b = newSmallArmedJob(t, 2, steps, floor)
	b.host, b.points = "g", a.points
	a.env = append(a.env, "PHALANX_KEY="+node.NewJobKey().String())
	b.env = a.env
	a.flags = []string{"--job", "two", "--nnodes", "2:2", "--bind", "127.0.0.1", "--store", filepath.Join(filepath.Dir(a.dir), "store")}
	b.flags = slices.Clone(a.flags)
	for _, f := range set {
		f(a, b)
	}
	a.run()
	var first node.DaemonFile
	for end := time.Now().Add(patience); first.Addr == ""; time.Sleep(pollTime) {
		_ = json.Unmarshal([]byte(content(node.NewPaths(a.dir, "").DaemonFile(0))), &first) // not there yet
		if time.Now().After(end) {
			t.Fatalf("no daemon of the first host says where it listens\n%s", tail(a.newest().errs(), 15))
		}
	}
	b.flags = append(b.flags[:len(b.flags):len(b.flags)], "--join", first.Addr)
	b.run()
	return a, b
}

// finishBoth wants both hosts to end as the undisturbed run does.
func finishBoth(a, b *job) {
	a.t.Helper()
	a.finish()
	b.history.allowed = "the first host's history is checked"
	b.finish()
}

// TestVoteLostBetweenHosts: a daemon dies when its vote is on its page and was sent to nobody. The one that takes over sends it, and
// nobody is lost.
func TestVoteLostBetweenHosts(t *testing.T) {
	t.Parallel()
	a, b := twoHosts(t, 120, 20*time.Millisecond)
	s := a.until("four ranks train", both(whole(4), at(5)))
	a.arm("vote-written", find(t, s, "g/1").DaemonPID)
	a.untilReached("vote-written")
	now := a.until("four ranks train on", both(whole(4), restarted(find(t, s, "g/1")), at(s.Step+5)))
	for _, m := range s.Members {
		if n := find(t, now, m.Member); n.TrainerPID != m.TrainerPID {
			t.Errorf("the trainer of %s was pid %d and is %d", m.Member, m.TrainerPID, n.TrainerPID)
		}
	}
	finishBoth(a, b)
}

// TestRollForwardAfterALostVote: a member dies for good with a vote that its own host has read and the other one has not. Its
// sibling has applied the step; the others learn from the next generation that it is decided, and roll forward; one of them loses
// its daemon in that.
func TestRollForwardAfterALostVote(t *testing.T) {
	t.Parallel()
	const point = "rolled-forward"
	a, b := twoHosts(t, 200, 25*time.Millisecond)
	s := a.until("four ranks train", both(whole(4), at(5), func(s *node.Status) bool { return s.Leader.Host() == host }))
	dies, rolls := find(t, s, "g/1"), find(t, s, follower1(s))
	b.newest().signal(syscall.SIGKILL) // or it would start the daemon again, which would send the vote
	<-b.newest().ended
	a.arm(point, rolls.DaemonPID)
	a.arm("vote-written", dies.DaemonPID)
	a.hit(dies.TrainerPID, "KILL")
	for end := time.Now().Add(patience); a.reached("vote-written") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("fail point vote-written was not reached")
		}
	}
	if err := syscall.Kill(dies.TrainerPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.untilReached(point)
	s = a.until("three ranks train on", both(whole(3), restarted(rolls), at(s.Step+5)))
	if n := find(t, s, rolls.Member); n.TrainerPID != rolls.TrainerPID {
		t.Errorf("the trainer that rolled forward was pid %d and is %d", rolls.TrainerPID, n.TrainerPID)
	}
	b.run()
	a.until("four ranks train again", both(whole(4), replaced(dies), at(s.Step+3)))
	finishBoth(a, b)
}

// follower1 is a member of the first host that does not lead.
func follower1(s *node.Status) phalanx.MemberID {
	for _, id := range s.World {
		if id.Host() == host && id != s.Leader {
			return id
		}
	}
	return ""
}

// TestRefusalSurvives: votes with different digests decide nothing, also when who writes that down dies before or after it.
func TestRefusalSurvives(t *testing.T) {
	for _, point := range []string{"refusing", "refused"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			j := newSmallArmedJob(t, 3, 80, 20*time.Millisecond)
			j.onceAs(2, append(j.cmd[:len(j.cmd):len(j.cmd)], "--fault-flip-at", "12")...)
			j.arm(point, 0)
			j.run()
			s := j.until("three ranks train", whole(3))
			j.hit(find(t, s, "h/2").TrainerPID, "its digest is wrong once")
			j.untilReached(point)
			j.until("three ranks train again", both(whole(3), at(15)))
			j.finish()
			unequal := false
			for _, x := range j.ordered() {
				for _, e := range x.Evidence {
					unequal = unequal || strings.HasPrefix(string(e.Kind), "digests")
				}
			}
			if !unequal {
				t.Error("no generation rests on the evidence that digests differ")
			}
		})
	}
}

// TestPlainDaemonDiesAtStart: a daemon dies between the record of a trainer and its start. It is not known whether that one
// runs, so all of them start again.
func TestPlainDaemonDiesAtStart(t *testing.T) {
	t.Parallel()
	dir, err := buildArmed()
	if err != nil {
		t.Fatal(err)
	}
	j := newPlainJob(t, 3, plainTrainer)
	j.bin, j.points = dir, t.TempDir()
	j.env = []string{armedFolder(j.points)}
	j.arm("plain-start", 0)
	j.run()
	j.untilReached("plain-start")
	s := j.until("three ranks run", whole(3))
	j.generation(s, 3)
	j.finishPlain(s)
}
