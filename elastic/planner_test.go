// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"phalanx"
)

// plant makes a sim of groups at rest at the given step, with everybody of the ids in the world that fits.
func plant(t *testing.T, group, want int, step phalanx.Step, ids ...phalanx.MemberID) *sim {
	t.Helper()
	s := newSim(phalanx.JobSpec{LastStep: 20, Slots: 8, GlobalBatch: 8, GroupSize: group, Threads: 1}, Policy{Want: want, Min: group}, ids...)
	s.closed, s.limit = true, step
	rest(t, s)
	return s
}

func rest(t *testing.T, s *sim) {
	t.Helper()
	if !s.run() {
		t.Fatal("it does not come to rest")
	}
	for _, w := range s.wrong {
		t.Fatal(w)
	}
}

func seats(s *State) string {
	var words []string
	for _, seat := range s.World.Seats {
		words = append(words, string(seat.Member))
	}
	return strings.Join(words, " ")
}

// TestAssemble: the seats of the next world after members were lost, by what the others possess.
func TestAssemble(t *testing.T) {
	for name, c := range map[string]struct {
		group int
		old   string // the world
		lost  string
		// spares are NAME or NAME:COORDINATE of the floor that it possesses, and NAME@COORDINATE where it may sit alone.
		spares string
		want   int
		seats  string
	}{
		"nothing lost":                             {1, "a b c", "", "", 3, "a b c"},
		"close up in order":                        {1, "a b c d", "b", "", 4, "a c d"},
		"a spare takes the rank of the dead":       {1, "a b c", "b", "x", 3, "a x c"},
		"it grows at the end":                      {1, "a b", "", "x", 3, "a b x"},
		"no more than wanted":                      {1, "a b c", "", "x", 2, "a b"},
		"two lost, one spare":                      {1, "a b c d", "b c", "x", 4, "a d x"},
		"a broken group goes":                      {2, "a b c d", "d", "", 4, "a b"},
		"a spare for the exact rank":               {2, "a b c d", "b", "x", 4, "a x c d"},
		"survivors regroup by coordinate":          {2, "a b c d", "b c", "", 4, "a d"},
		"three broken groups, one whole":           {2, "a b c d e f", "a d f", "", 6, "c b"},
		"only one coordinate is left":              {2, "a b c d", "b d", "", 4, ""},
		"a spare for the coordinate that is gone":  {2, "a b c d", "b d", "x", 4, "a x"},
		"the holder among spares":                  {2, "a b c d", "b d", "x y:1", 4, "a y c x"},
		"the holder among spares, one place":       {2, "a b c d", "b d", "x y:1", 2, "a y"},
		"a new group from spares":                  {2, "a b", "", "x y", 4, "a b x y"},
		"holders keep their coordinate":            {2, "", "", "x:1 y:0", 2, "y x"},
		"the only holder of another is not used":   {3, "", "", "x:2 y:1 z:1", 3, "y z x"},
		"the only holder of a lower one":           {3, "", "", "x:1 y:2 z:2", 3, "y x z"},
		"half a group of spares is of no use":      {2, "a b", "", "x", 4, "a b"},
		"a leftover is taken before a spare":       {2, "a b c d", "b", "", 4, "c d"},
		"a group of four from what is left of two": {4, "a b c d e f g h", "a f", "", 8, "e b c d"},
		"a pinned spare for the exact rank":        {2, "a b c d", "b", "x@1", 4, "a x c d"},
		"a spare pinned elsewhere does not help":   {2, "a b c d", "b", "x@0", 4, "c d"},
		"pinned spares make a new group":           {2, "a b", "", "x@1 y@0", 4, "a b y x"},
		"two of one coordinate make none":          {2, "a b", "", "x@1 y@1", 4, "a b"},
		"who may sit anywhere sits where it must":  {2, "a b", "", "x y@0", 4, "a b y x"},
		"one that may not is not used up":          {2, "a b c d", "b d", "x y@1 z@0", 4, "a y c x"},
		"a leftover before a pinned spare":         {2, "a b c d", "a d", "x@0", 4, "c b"},
		"whole groups from the start":              {2, "", "", "a@0 b@1 c@0 d@1 e@0", 6, "a b c d"},
		"pinned holders before others":             {2, "a b c d", "b", "x@1 y:1@1", 4, "a y c d"},
	} {
		s := &State{Spec: &phalanx.JobSpec{GroupSize: c.group, Slots: 8}, Policy: Policy{Want: c.want}}
		s.World.GroupSize = c.group
		var survivors, spares []candidate
		for r, id := range strings.Fields(c.old) {
			i := who(phalanx.MemberID(id+"/0"), 1)
			s.World.Seats = append(s.World.Seats, phalanx.Seat{Incarnate: i, Rank: phalanx.Rank(r), Group: r / c.group, Coordinate: r % c.group})
			if !strings.Contains(c.lost, id) {
				survivors = append(survivors, candidate{Incarnate: i, coordinate: r % c.group, holds: true})
			}
		}
		for _, word := range strings.Fields(c.spares) {
			word, at, pinned := strings.Cut(word, "@")
			id, held, holds := strings.Cut(word, ":")
			x := candidate{Incarnate: who(phalanx.MemberID(id+"/0"), 1), coordinate: -1, holds: holds}
			if holds {
				x.coordinate = int(held[0] - '0')
			}
			if pinned {
				x.pin = phalanx.PinTo(int(at[0] - '0'))
			}
			spares = append(spares, x)
		}
		var got []string
		for r, seat := range assemble(s, survivors, spares) {
			got = append(got, seat.Member.Host())
			if int(seat.Rank) != r || seat.Group != r/c.group || seat.Coordinate != r%c.group || seat.Incarnation != 1 {
				t.Errorf("%s: seat %d is %+v", name, r, seat)
			}
		}
		if strings.Join(got, " ") != c.seats {
			t.Errorf("%s: %v, want %s", name, got, c.seats)
		}
	}
}

// TestPlanIsPure: the same state and facts give the same plan, and neither is changed.
func TestPlanIsPure(t *testing.T) {
	s := plant(t, 2, 4, 3, "a/0", "b/0", "c/0", "d/0", "e/0")
	s.stop(s.member("b/0"))
	for range 20 {
		f := s.facts()
		before := fmt.Sprintf("%+v %+v", *s.state(), *f)
		first, second := s.planner.Plan(s.state(), f), s.planner.Plan(s.state(), f)
		if !reflect.DeepEqual(first, second) {
			t.Fatalf("two plans: %+v and %+v", first, second)
		}
		if after := fmt.Sprintf("%+v %+v", *s.state(), *f); after != before {
			t.Fatalf("planning changed\n%s\nto\n%s", before, after)
		}
		if !s.lead() && !s.round1() {
			break
		}
	}
}

// TestHintsDoNotSeal: gossip and wishes are no evidence against a generation.
func TestHintsDoNotSeal(t *testing.T) {
	for kind, seals := range map[phalanx.EvidenceKind]bool{phalanx.GossipDead: false, phalanx.Asked: false, phalanx.Hung: true, phalanx.Unreachable: true, phalanx.DigestsUnequal: true} {
		s := plant(t, 1, 2, 2, "a/0", "b/0")
		b := s.member("b/0")
		b.evidence = []phalanx.Evidence{{Kind: kind, About: b.me, Source: "a/0"}}
		plan := s.planner.Plan(s.state(), s.facts())
		if asks := plan.Ask != nil; asks != seals {
			t.Errorf("%s: asks for a seal %v (%s)", kind, asks, plan.Why)
		}
	}
}

// TestHungIsEvicted although it answers: it would hang again.
func TestHungIsEvicted(t *testing.T) {
	s := plant(t, 1, 2, 2, "a/0", "b/0")
	b := s.member("b/0")
	b.evidence = []phalanx.Evidence{{Kind: phalanx.Hung, About: b.me, Source: "a/0"}}
	rest(t, s)
	if got := seats(s.state()); got != "a/0" {
		t.Errorf("the world is %s", got)
	}
	if m := s.state().Member("b/0"); m.State != Gone || !strings.Contains(m.Why, "hung") {
		t.Errorf("b/0 is %s: %s", m.State, m.Why)
	}
}

// TestCutOffIsEvicted although it lives and answers: it and another cannot be in one world.
func TestCutOffIsEvicted(t *testing.T) {
	s := plant(t, 1, 3, 2, "a/0", "b/0", "c/0")
	b := s.member("b/0")
	b.evidence = []phalanx.Evidence{{Kind: phalanx.CutOff, About: b.me, Source: "a/0"}}
	rest(t, s)
	if got := seats(s.state()); got != "a/0 c/0" {
		t.Errorf("the world is %s", got)
	}
}

// TestWithdrawnEvidenceIsTheReason: a seal that was asked for is final. When its evidence is gone by the end of the round nobody
// is evicted for it, and the history says why there was another generation.
func TestWithdrawnEvidenceIsTheReason(t *testing.T) {
	s := plant(t, 1, 2, 2, "a/0", "b/0")
	e := phalanx.Evidence{Kind: phalanx.HostSilent, About: s.member("b/0").me, Source: "a/0"}
	f := s.facts()
	f.Fact("b/0").Evidence = []phalanx.Evidence{e}
	ask := s.planner.Plan(s.state(), f).Ask
	if ask == nil || !reflect.DeepEqual(ask.Evidence, []phalanx.Evidence{e}) {
		t.Fatalf("asks %+v", ask)
	}
	f = s.facts()
	f.Round, f.Reasons = Round{Asked: true}, ask.Evidence
	for i := range f.Members {
		m := &f.Members[i]
		m.Answer = &Answer{Incarnate: m.Incarnate, Generation: s.state().World.Generation, Possession: m.Possession}
	}
	c, ok := s.planner.Plan(s.state(), f).Command.(FormGeneration)
	if !ok || len(c.Evictions) != 0 || c.World.Size() != 2 || !reflect.DeepEqual(c.Evidence, ask.Evidence) || c.Cause != e.String() {
		t.Errorf("forms %+v", c)
	}
}

// TestApartWaitsOutside: who would not be reached in the world is not taken into it, neither for the lost nor to grow it.
func TestApartWaitsOutside(t *testing.T) {
	s := plant(t, 1, 2, 2, "a/0", "b/0", "c/0")
	for _, apart := range []bool{true, false} {
		f := s.facts()
		f.Fact("c/0").Apart = apart
		if got := len(s.planner.spares(s.state(), f, s.state().Floor)); (got == 0) != apart {
			t.Errorf("apart %v: %d spares", apart, got)
		}
	}
}

// TestDoneWithoutTheDead: what a member had is published, so its death after the last step keeps nobody from the end.
func TestDoneWithoutTheDead(t *testing.T) {
	s := plant(t, 1, 2, 20, "a/0", "b/0")
	b := s.member("b/0")
	b.done = false
	s.publish(1)
	s.stop(b)
	rest(t, s)
	if s.state().Phase != Finished {
		t.Errorf("the job is %s: %s", s.state().Phase, s.why)
	}
}

// TestCrashLoop: when too few can be started at all the job ends and says why.
func TestCrashLoop(t *testing.T) {
	spec := phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 1}
	p := Planner{Spec: &spec, Policy: Policy{Want: 2, Min: 2}}
	f := &Facts{Members: []MemberFact{
		{Incarnate: who("a/0", 3), Connected: true, Failed: true, Evidence: []phalanx.Evidence{{Kind: phalanx.TrainerExited, About: who("a/0", 3), Detail: "exit status 2"}}},
		{Incarnate: who("b/0", 1), Connected: true, Possession: Possession{Trainer: true}},
	}}
	plan := p.Plan(NewState(), f)
	if c, ok := plan.Command.(Halt); !ok || c.Reason.Kind != CrashLoop || !strings.Contains(c.Reason.Words, "exit status 2") {
		t.Errorf("the plan is %+v", plan)
	}
}

// TestWaitsForEverySeat: silence has a deadline, grace has one, and a lease too; the planner waits until they are facts.
func TestWaitsForEverySeat(t *testing.T) {
	s := plant(t, 1, 2, 2, "a/0", "b/0")
	s.publish(1)
	s.stop(s.member("a/0"))
	s.lead()
	for _, m := range s.members {
		m.held["seal"] = true
	}
	try := func(words string, change func(*Facts)) {
		t.Helper()
		f := s.facts()
		change(f)
		if plan := s.planner.Plan(s.state(), f); plan.Command != nil || !strings.Contains(plan.Why, words) {
			t.Errorf("want %q, the plan is %+v", words, plan)
		}
	}
	silent := func(f *Facts) {
		for i := range f.Members {
			f.Members[i].Silent, f.Members[i].Connected = true, false
		}
	}
	try("waits for the seal of a/0", func(*Facts) {})
	try("waits for the seal of b/0", func(f *Facts) { f.Members[0].Dead = true })
	try("waits for the seal of b/0", func(f *Facts) {
		f.Members[0].Dead, f.Members[1].Dead, f.Members[1].InGrace = true, true, true
	})
	try("lease", silent)
	try("not known yet", func(f *Facts) { silent(f); f.LeaseOut = true; f.Store.Known = false })
	f := s.facts()
	silent(f)
	f.LeaseOut = true
	if c, ok := s.planner.Plan(s.state(), f).Command.(FormGeneration); !ok || c.World.Size() != 0 || len(c.Evictions) != 2 || c.Halt == nil {
		t.Errorf("with nobody left: %+v", c)
	}
}

// TestStoreAndSlabs: what is published and still in slabs of members is read from both.
func TestStoreAndSlabs(t *testing.T) {
	s := plant(t, 1, 3, 2, "a/0", "b/0")
	rest(t, s)
	f := s.facts()
	at := f.Members[0].Possession.Label
	if at.Step == 0 {
		t.Fatal("nothing is trained")
	}
	f.Store.Published = &Published{Step: at.Step, Labels: []phalanx.Label{at}, Commit: 7}
	older := at
	older.Step--
	f.Members[0].Slabs = []phalanx.Label{older}
	f.Members[1].Slabs = []phalanx.Label{older, at}
	floor, source := s.planner.origin(s.state(), f, false)
	if floor.Step != at.Step || source.Kind != FromStore || source.Commit != 7 || !slices.Equal(source.Holders, []phalanx.MemberID{"b/0"}) {
		t.Errorf("floor %d from %+v", floor.Step, source)
	}
	f.Members[1].Connected = false
	if _, source := s.planner.origin(s.state(), f, false); len(source.Holders) != 0 {
		t.Errorf("from %+v", source)
	}
}

// TestNoWorldFits: a policy that no world can satisfy is said, not proposed again and again.
func TestNoWorldFits(t *testing.T) {
	s := newSim(phalanx.JobSpec{LastStep: 9, Slots: 8, GlobalBatch: 8, GroupSize: 2}, Policy{Want: 3, Min: 3}, "a/0", "b/0", "c/0", "d/0")
	s.closed = true
	rest(t, s)
	if len(s.log) != 2 || !strings.Contains(s.why, "no world fits") {
		t.Errorf("%d entries: %s", len(s.kinds), s.why)
	}
}

// TestStopLeavesTheWorld: while the job is being stopped nobody joins, and failures are still handled.
func TestStopLeavesTheWorld(t *testing.T) {
	s := plant(t, 1, 3, 2, "a/0", "b/0")
	s.start("c/0")
	s.lead()
	f := s.facts()
	f.Stop = true
	if plan := s.planner.Plan(s.state(), f); plan.Ask != nil || plan.Command != nil {
		t.Errorf("the plan is %+v", plan)
	}
	s.stop(s.member("a/0"))
	f = s.facts()
	f.Stop = true
	if plan := s.planner.Plan(s.state(), f); plan.Ask == nil {
		t.Errorf("a failure is not handled: %+v", plan)
	}
}

// TestStopEndsAChangeThatWasBegun: members that were sealed for a change vote no more, so the change is made before the job is
// saved and stopped, and nobody is drained for the stop.
func TestStopEndsAChangeThatWasBegun(t *testing.T) {
	s := plant(t, 1, 3, 2, "a/0", "b/0")
	s.start("c/0")
	s.lead()
	g := s.state().World.Generation
	s.round = Round{Asked: true, Planned: true, Boundary: 2}
	f := s.facts()
	f.Stop = true
	for i := range f.Members {
		m := &f.Members[i]
		if s.state().World.Has(m.Incarnate) {
			m.Leaving = true
			m.Answer = &Answer{Incarnate: m.Incarnate, Generation: g, Vote: &Vote{Generation: g, Step: 2, OK: true, Digest: m.Possession.Label.Digest}, Possession: m.Possession}
		}
	}
	if c, ok := s.planner.Plan(s.state(), f).Command.(FormGeneration); !ok || !c.Planned || c.World.Size() != 3 {
		t.Errorf("the plan is %+v", s.planner.Plan(s.state(), f))
	}
}

// TestNearTheEnd: a world is not changed for the last steps, but a halted one is completed.
func TestNearTheEnd(t *testing.T) {
	s := plant(t, 1, 3, 19, "a/0", "b/0")
	s.start("c/0")
	s.lead()
	if plan := s.planner.Plan(s.state(), s.facts()); plan.Ask != nil {
		t.Errorf("a change is begun at the end: %+v", plan)
	}
	halted := s.state().clone()
	halted.Phase, halted.Halt = Halted, &HaltReason{Kind: BelowMinimum}
	if plan := s.planner.Plan(halted, s.facts()); plan.Ask == nil {
		t.Errorf("a halted job is not completed: %+v", plan)
	}
}
