// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"phalanx/ckpt/s3/s3test"
	"phalanx/node"
)

// slowBucket lets a job save into a server of this test that takes seconds for each object of a checkpoint, until it is let go.
func slowBucket(t *testing.T, j *job, delay time.Duration) (letGo func()) {
	t.Helper()
	server := s3test.NewServer(t, false)
	inBucket(t, j, server)
	var slow atomic.Bool
	slow.Store(true)
	server.Hook(func(q s3test.Request) s3test.Fault {
		if slow.Load() && q.Op == "PUT" && strings.Contains(q.Key, "/step-") {
			return s3test.Fault{Delay: delay}
		}
		return s3test.Fault{}
	})
	return func() { slow.Store(false) }
}

// bothFull reports whether two saves are under way, and both of their states whole in slabs.
func bothFull(s *node.Status) bool {
	u := s.Saves.Under
	return len(u) == 2 && !u[1].Waiting && s.Saves.Levels.Local != nil && s.Saves.Levels.Local.Held && s.Saves.Levels.Local.Step >= u[1].Step
}

// TestKillsWithBothSlabsFull: a save takes seconds and the next one is begun in the second slab. Somebody dies then: the run goes on
// with the same bits, nothing that was in memory is lost, and what was not published is, in the order of the steps.
func TestKillsWithBothSlabsFull(t *testing.T) {
	for _, who := range []string{"nobody", "a trainer", "a daemon", "the leader", "the leader as it begins the second", "everything"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			j := newSmallArmedJob(t, 3, 180, 40*time.Millisecond)
			letGo := slowBucket(t, j, 2*time.Second)
			j.flags[len(j.flags)-1] = "20"
			j.flags = append(j.flags, "--slabs", "2")
			j.run()
			j.until("three ranks train", both(whole(3), at(5)))
			if who == "the leader as it begins the second" {
				j.arm("second-save-announced", 0)
				j.untilReached("second-save-announced")
			}
			s := j.until("two saves are under way", bothFull)
			at := s.Saves.Under[1].Step
			for _, m := range s.Members {
				if m.Slabs != 2 {
					t.Errorf("%s has %d slabs", m.Member, m.Slabs)
				}
			}
			lost := follower(t, s)
			switch who {
			case "a trainer":
				j.strike(s, []node.MemberStatus{lost}, nil)
			case "a daemon":
				j.strike(s, nil, []node.MemberStatus{lost})
			case "the leader":
				for _, m := range s.Members {
					if m.Member == s.Leader {
						j.strike(s, nil, []node.MemberStatus{m})
					}
				}
			case "everything":
				j.killAll()
				j.forget()
				j.run()
				s = j.until("it trains again", whole(3))
				if s.Floor < at {
					t.Errorf("goes on from step %d although step %d was in every slab", s.Floor, at)
				}
				j.history.allowed = "everything was killed"
			}
			letGo()
			j.until("the second one is published, or a later one", func(s *node.Status) bool { return s.Published != nil && s.Published.Step >= at })
			j.finish()
			if who == "nobody" {
				if n := j.said("checkpoint published"); n < 3 {
					t.Errorf("%d checkpoints were published", n)
				}
				if n := j.said("a save is skipped", "reason=busy"); n == 0 {
					t.Error("no save was skipped although both slabs were full for seconds")
				}
			}
		})
	}
}

// TestTornSlab: the only trainer dies while it stages, and nothing is published yet. The state before is whole in the other slab, and the
// next life goes on from there, found by the same daemon or by another one.
func TestTornSlab(t *testing.T) {
	for _, daemon := range []string{"lives", "dies"} {
		t.Run("the daemon "+daemon, func(t *testing.T) {
			t.Parallel()
			j := newSmallArmedJob(t, 1, 120, 40*time.Millisecond)
			letGo := slowBucket(t, j, 6*time.Second)
			j.flags[len(j.flags)-1] = "20"
			j.flags = append(j.flags, "--slabs", "2")
			j.run()
			s := j.until("a state is staged", func(s *node.Status) bool { return s.Saves != nil && s.Saves.Levels.Local != nil })
			if s.Saves.Levels.Local.Step != 20 {
				t.Fatalf("step %d is local", s.Saves.Levels.Local.Step)
			}
			j.arm("client-staging", s.Members[0].TrainerPID)
			j.untilReached("client-staging")
			j.history.allowed = "the only trainer was killed"
			if daemon == "dies" {
				j.killAll()
				j.forget()
				j.run()
			}
			letGo()
			s = j.until("it trains again", both(whole(1), replaced(s.Members[0])))
			if s.Floor != 20 {
				t.Errorf("goes on from step %d, want 20", s.Floor)
			}
			j.finish()
		})
	}
}
