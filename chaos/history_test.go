// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"phalanx"
	"phalanx/chaos/internal/ask"
	"phalanx/elastic"
	"phalanx/node"
)

// history is what the job said of itself, put together from many looks: daemons keep the newest transitions only, and no
// status says who was there before.
type history struct {
	transitions map[phalanx.Generation]elastic.Transition
	trainers    map[phalanx.MemberID]int // newest trainer seen
	struck      map[int]string           // pids of trainers that a test hit, and how
	faults      []string                 // what must not happen and was seen
	allowed     string                   // why the job may go back to a stored state, "" when it may not
	points      string                   // folder of armed fail points, "" for none
}

func newHistory() *history {
	return &history{transitions: map[phalanx.Generation]elastic.Transition{}, trainers: map[phalanx.MemberID]int{}, struck: map[int]string{}}
}

// note adds one look.
func (h *history) note(s *node.Status) {
	for _, t := range s.Transitions {
		h.transitions[t.Generation] = t
	}
	if !s.Fresh {
		return // a daemon without the leader knows pids of the past
	}
	for _, m := range s.Members {
		if m.TrainerPID <= 1 || m.State == "gone" {
			continue
		}
		old := h.trainers[m.Member]
		if old != 0 && old != m.TrainerPID && h.struck[old] == "" {
			h.faults = append(h.faults, fmt.Sprintf("the trainer of %s was not hit and did not survive: pid %d, then %d (generation %d, step %d)", m.Member, old, m.TrainerPID, s.Generation, s.Step))
			h.struck[old] = "reported"
		}
		h.trainers[m.Member] = m.TrainerPID
	}
}

// hit notes that a trainer is about to be ended by the test.
func (h *history) hit(pid int, how string) { h.struck[pid] = how }

// forget begins anew with pids: everything was killed.
func (h *history) forget() { clear(h.trainers) }

// ordered are the transitions seen, oldest first.
func (h *history) ordered() []elastic.Transition {
	return slices.SortedFunc(maps.Values(h.transitions), func(a, b elastic.Transition) int { return a.Generation.Compare(b.Generation) })
}

// check fails the test when the history shows what a job that passes by starting everything again would show.
func (h *history) check(t *testing.T) {
	t.Helper()
	for _, f := range h.faults {
		t.Error(f)
	}
	var before *elastic.Transition
	for _, x := range h.ordered() {
		if h.allowed != "" {
			continue
		}
		if x.Rewind {
			t.Errorf("generation %s is a rewind, and holders of the state lived", x.Generation)
		}
		if x.Newest > x.ResumeStep+1 {
			t.Errorf("generation %s computes %d steps again", x.Generation, x.Newest-x.ResumeStep)
		}
		if before != nil {
			if x.ResumeStep < before.ResumeStep {
				t.Errorf("generation %s resumes at step %d, below the floor %d of the one before", x.Generation, x.ResumeStep, before.ResumeStep)
			}
			if x.Generation == before.Generation.Next() {
				for _, id := range survivors(*before, x) {
					unfinished := before.Seconds == nil && slices.Contains(before.Healing, id)
					if slices.Contains(x.Healing, id) && !unfinished {
						t.Errorf("generation %s: %s survived and heals all the same", x.Generation, id)
					}
				}
			}
		}
		before = &x
	}
}

// survivors are in both worlds, and not by another life.
func survivors(before, now elastic.Transition) []phalanx.MemberID {
	return slices.DeleteFunc(slices.Clone(now.Members), func(id phalanx.MemberID) bool {
		lost := slices.ContainsFunc(now.Lost, func(i phalanx.Incarnate) bool { return i.Member == id })
		return lost || !slices.Contains(before.Members, id)
	})
}

func (h *history) String() string { return cmp.Or(ask.Lines(h.ordered()), "  none") }

// whole reports whether n ranks train, with daemon and trainer alive.
func whole(n int) func(*node.Status) bool {
	return func(s *node.Status) bool {
		if s.Phase != "running" || len(s.World) != n || s.Leader == "" {
			return false
		}
		ranks := 0
		for _, m := range s.Members {
			if m.Rank >= 0 {
				if m.DaemonPID <= 1 || m.TrainerPID <= 1 {
					return false
				}
				ranks++
			}
		}
		return ranks == n
	}
}

// both is a conjunction of conditions.
func both(all ...func(*node.Status) bool) func(*node.Status) bool {
	return func(s *node.Status) bool {
		for _, ok := range all {
			if !ok(s) {
				return false
			}
		}
		return true
	}
}

// at reports whether a step is committed.
func at(step phalanx.Step) func(*node.Status) bool {
	return func(s *node.Status) bool { return s.Step >= step }
}

// find returns a member's part of a status. The member must be in it.
func find(t *testing.T, s *node.Status, id phalanx.MemberID) node.MemberStatus {
	t.Helper()
	i := slices.IndexFunc(s.Members, func(m node.MemberStatus) bool { return m.Member == id })
	if i < 0 {
		t.Fatalf("no member %s in %s", id, describe(s))
	}
	return s.Members[i]
}

// replaced reports whether a member's trainer is another one.
func replaced(m node.MemberStatus) func(*node.Status) bool {
	return func(s *node.Status) bool {
		i := slices.IndexFunc(s.Members, func(o node.MemberStatus) bool { return o.Member == m.Member })
		return i >= 0 && s.Members[i].TrainerPID > 1 && s.Members[i].TrainerPID != m.TrainerPID && s.Members[i].Incarnation > m.Incarnation
	}
}

// restarted reports whether a member's daemon is another one.
func restarted(m node.MemberStatus) func(*node.Status) bool {
	return func(s *node.Status) bool {
		i := slices.IndexFunc(s.Members, func(o node.MemberStatus) bool { return o.Member == m.Member })
		return i >= 0 && s.Members[i].DaemonPID > 1 && s.Members[i].DaemonPID != m.DaemonPID
	}
}
