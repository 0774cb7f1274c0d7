// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
)

// drawRewinds plays a job that publishes and is rewound, each rewind to a step of the lineage that its records allow, and
// returns the state with every record that there ever was.
func drawRewinds(t *rapid.T, rewinds int) (*State, []RewindRecord) {
	s := NewState()
	var all []RewindRecord
	step, commit := phalanx.Step(0), uint64(0)
	backs := rapid.SampledFrom([][]int{{0, 1, 3, 40}, {0, 0, 0, 1}}).Draw(t, "backs")
	for i := range rewinds {
		g := phalanx.Generation{Number: uint64(i*3 + 1)}
		reached := step + phalanx.Step(rapid.IntRange(0, 9).Draw(t, "steps"))
		if rapid.IntRange(0, 2).Draw(t, "publishes") == 0 && reached > step {
			commit++
			s.Published = append(s.Published, Published{Step: reached, Labels: []phalanx.Label{{Step: reached, Generation: g}}, Commit: commit})
			if n := len(s.Published) - MaxPublished; n > 0 {
				s.Published = s.Published[n:]
			}
		}
		low := max(0, int(reached)-rapid.SampledFrom(backs).Draw(t, "back"))
		step = phalanx.Step(rapid.IntRange(low, int(reached)).Draw(t, "source"))
		r := RewindRecord{Generation: phalanx.Generation{Number: uint64(i*3 + 3)}, Branch: i + 1, Source: step}
		all = append(all, r)
		s.recordRewind(r)
		s.Branch = r.Branch
	}
	return s, all
}

func abandonedBy(all []RewindRecord, l phalanx.Label) bool {
	for _, r := range all {
		if r.abandons(l) {
			return true
		}
	}
	return false
}

// TestRewindsAreBounded: however often a job is rewound, few records judge its labels as all would. While they fit they judge
// exactly alike. Beyond, no label comes back that was abandoned, and neither the newest state nor a named checkpoint of the
// lineage is lost.
func TestRewindsAreBounded(t *testing.T) {
	merged := false
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 5, 50, 700}).Draw(t, "rewinds")
		s, all := drawRewinds(t, n)
		if errs := checkHistory(s); len(errs) > 0 {
			t.Fatal(errs)
		}
		exact := &State{} // what would be kept without the bound
		for _, r := range all {
			for len(exact.Rewinds) > 0 && exact.Rewinds[len(exact.Rewinds)-1].Source >= r.Source {
				exact.Rewinds = exact.Rewinds[:len(exact.Rewinds)-1]
			}
			exact.Rewinds = append(exact.Rewinds, r)
		}
		fits := len(exact.Rewinds) <= MaxRewinds && n < 700
		merged = merged || len(exact.Rewinds) > MaxRewinds
		for range 200 {
			l := phalanx.Label{Step: phalanx.Step(rapid.IntRange(0, 6*n).Draw(t, "step")), Generation: phalanx.Generation{Number: uint64(rapid.IntRange(0, 3*n+3).Draw(t, "generation"))}}
			want := !abandonedBy(all, l)
			if got := s.OfLineage(l); got != want && (fits || got) {
				t.Fatalf("%s is of the lineage: %v, with all records %v", l, got, want)
			}
		}
		last := all[len(all)-1]
		for _, g := range []phalanx.Generation{{}, last.Generation} {
			l := phalanx.Label{Step: last.Source, Generation: g}
			if s.OfLineage(l) == abandonedBy(all, l) {
				t.Fatalf("the source of the newest rewind, %s, is judged otherwise", l)
			}
		}
		for _, p := range s.Published {
			if s.OfLineage(p.Labels[0]) == abandonedBy(all, p.Labels[0]) {
				t.Fatalf("the published %s is judged otherwise", p.Labels[0])
			}
		}
	})
	if !merged {
		t.Error("no run had more rewinds than fit")
	}
}

// crowd admits and evicts members one after the other, as hosts do that come under a new name each time.
func crowd(t *testing.T, s *State, from, n int) *State {
	t.Helper()
	for i := range n {
		m := phalanx.Incarnate{Member: phalanx.NewMemberID(fmt.Sprintf("new-%d", from+i), 0), Incarnation: 1}
		for _, c := range []Command{AdmitMembers{Members: []Admission{admission(m)}}, EvictMembers{Evictions: []Eviction{{Incarnate: m}}}} {
			next, err := s.Apply(c)
			if err != nil {
				t.Fatal(err)
			}
			mustHold(t, s, next)
			s = next
		}
	}
	return s
}

// TestGoneAreBounded: those that went longest ago are forgotten, and neither who lives nor who is quarantined.
func TestGoneAreBounded(t *testing.T) {
	s := inPhase(t, "running") // d/0 is quarantined
	s = do(t, s, AdmitMembers{Members: []Admission{admission(who("q/0", 1))}}, EvictMembers{Evictions: []Eviction{{Incarnate: who("q/0", 1)}}}, Quarantine{Member: "q/0"})
	before := len(s.Members)
	s = crowd(t, s, 0, MinGone+40)
	if n := len(s.Members); n > before+MinGone {
		t.Fatalf("%d members are named", n)
	}
	for _, id := range []phalanx.MemberID{"a/0", "b/0", "c/0", "d/0", "q/0", phalanx.NewMemberID(fmt.Sprintf("new-%d", MinGone+39), 0), "new-40/0"} {
		if s.Member(id) == nil {
			t.Errorf("%s is forgotten", id)
		}
	}
	if s.Member("new-0/0") != nil || s.Member("new-39/0") != nil {
		t.Error("those that went first are still named")
	}
	old := s.Member("new-290/0").Went
	s = do(t, s, AdmitMembers{Members: []Admission{admission(who("new-290/0", 2))}})
	if m := s.Member("new-290/0"); m.Went != 0 {
		t.Errorf("it lives and went at %d", m.Went)
	}
	s = do(t, s, Drain{Member: "new-290/0"})
	if m := s.Member("new-290/0"); m.State != Gone || m.Went <= old {
		t.Errorf("drained, it is %s and went at %d, the last time at %d", m.State, m.Went, old)
	}
}

// TestForgottenFences: a life that the log names no more ends, whether it was read there or has promised something to a
// generation that is read by now. One that the log has yet to name does not.
func TestForgottenFences(t *testing.T) {
	known := do(t, inPhase(t, "running"), AdmitMembers{Members: []Admission{admission(who("e/0", 1))}})
	gone := do(t, known, EvictMembers{Evictions: []Eviction{{Incarnate: who("e/0", 1)}}})
	forgotten := crowd(t, gone, 0, MinGone+1)
	if forgotten.Member("e/0") != nil {
		t.Fatal("it is not forgotten")
	}
	g := forgotten.World.Generation
	for name, c := range map[string]struct {
		read *State
		page Page
		want bool
	}{
		"read in the log":                      {known, Page{}, true},
		"sealed a generation that is read now": {NewState(), Page{Sealed: g}, true},
		"voted in one":                         {NewState(), Page{Vote: Vote{Generation: g, Step: 1}}, true},
		"sealed one that is not read yet":      {NewState(), Page{Sealed: g.Next()}, false},
		"never named":                          {NewState(), Page{}, false},
	} {
		m := NewMachine(who("e/0", 1), c.read, c.page)
		if _, fenced := has[Fence](m.Adopt(Trainer{})); fenced {
			t.Errorf("%s: fenced before it reads", name)
		}
		if _, fenced := has[Fence](m.Step(Read{forgotten})); fenced != c.want {
			t.Errorf("%s: fenced %v, want %v", name, fenced, c.want)
		}
	}
}
