// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"testing"

	"phalanx"
)

// TestPlainIsDoneByExits: without the step protocol the job is done when every trainer of the world has exited with 0, and
// nothing else ends it: neither a checkpoint, which does not exist, nor the death of one that did not finish.
func TestPlainIsDoneByExits(t *testing.T) {
	finished := func(ids ...phalanx.MemberID) func(*Facts) {
		return func(f *Facts) {
			for _, id := range ids {
				f.Fact(id).Finished = true
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*Facts)
		done   bool
	}{
		"all run":                        {finished(), false},
		"one has exited":                 {finished("a/0"), false},
		"all have exited":                {finished("a/0", "b/0"), true},
		"one has exited, the other died": {func(f *Facts) { finished("a/0")(f); f.Fact("b/0").Dead = true }, false},
		"all have exited, a daemon died": {func(f *Facts) { finished("a/0", "b/0")(f); f.Fact("b/0").Dead = true }, true},
		"one of an older life":           {func(f *Facts) { finished("a/0", "b/0")(f); f.Fact("b/0").Incarnation++ }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(phalanx.JobSpec{LastStep: 1, Slots: 8, GlobalBatch: 8, GroupSize: 1, Settings: PlainSettings}, Policy{Want: 2, Min: 1}, "a/0", "b/0")
			s.closed, s.limit = true, 0
			rest(t, s)
			if s.state().World.Size() != 2 {
				t.Fatalf("the world is %q", seats(s.state()))
			}
			f := s.facts()
			c.change(f)
			plan := s.planner.Plan(s.state(), f)
			d, done := plan.Command.(Done)
			if done != c.done {
				t.Fatalf("done %t, want %t: %+v", done, c.done, plan)
			}
			if done {
				if next, err := s.state().Apply(d); err != nil || next.Phase != Finished {
					t.Errorf("the log refuses it: %v", err)
				}
			}
		})
	}
}

// TestOpenWaitsForNobodyWhoFailed: members that gave up starting their trainers are not waited for, and the others begin.
func TestOpenWaitsForNobodyWhoFailed(t *testing.T) {
	s := newSim(phalanx.JobSpec{LastStep: 9, Slots: 8, GlobalBatch: 8, GroupSize: 1}, Policy{Want: 3, Min: 2}, "a/0", "b/0")
	rest(t, s)
	if s.state().World.Size() != 0 {
		t.Fatalf("the world is %q before the third member came", seats(s.state()))
	}
	for failed, forms := range map[phalanx.MemberID]bool{"c/0": true, "b/0": false} {
		f := s.facts()
		if failed == "c/0" {
			f.Members = append(f.Members, MemberFact{Incarnate: who("c/0", 4), Connected: true, Failed: true})
		} else {
			f.Fact(failed).Failed = true
		}
		_, got := s.planner.Plan(s.state(), f).Command.(FormGeneration)
		if got != forms {
			t.Errorf("%s failed: a world is formed %t, want %t", failed, got, forms)
		}
	}
}
