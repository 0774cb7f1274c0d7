// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"testing"

	"phalanx"
)

func who(id phalanx.MemberID, life phalanx.Incarnation) phalanx.Incarnate {
	return phalanx.Incarnate{Member: id, Incarnation: life}
}

// TestRefusals: each command is right but for one thing.
func TestRefusals(t *testing.T) {
	made := func(step phalanx.Step, g uint64) phalanx.Label {
		return phalanx.Label{Step: step, Generation: phalanx.Generation{Number: g}, Digest: phalanx.Digest{1, 1}}
	}
	at := func(l phalanx.Label) Floor { return Floor{l.Step, []phalanx.Label{l}} }
	change := func(f func(*FormGeneration)) func(*State) Command {
		return func(s *State) Command {
			c := formed(s, nil, "a/0", "b/0")
			f(&c)
			return c
		}
	}
	for name, c := range map[string]struct {
		command func(*State) Command
		want    string
	}{
		"as it should be":                   {change(func(*FormGeneration) {}), "ok"},
		"an older base":                     {change(func(c *FormGeneration) { c.Base.Number-- }), "base"},
		"a later base":                      {change(func(c *FormGeneration) { c.Base.Number++ }), "base"},
		"a generation too far":              {change(func(c *FormGeneration) { c.World.Generation.Number++ }), "base"},
		"the same generation again":         {change(func(c *FormGeneration) { c.World.Generation = c.Base }), "base"},
		"another epoch":                     {change(func(c *FormGeneration) { c.World.Generation.Epoch++ }), "base"},
		"a seal of a stranger":              {change(func(c *FormGeneration) { c.Seals = append(c.Seals, who("c/0", 1)) }), "base"},
		"a seal of another life":            {change(func(c *FormGeneration) { c.Seals[0].Incarnation++ }), "base"},
		"no seal":                           {change(func(c *FormGeneration) { c.Seals = nil }), "base"},
		"a higher floor":                    {change(func(c *FormGeneration) { c.Floor = at(made(3, 1)) }), "ok"},
		"a floor of another generation":     {change(func(c *FormGeneration) { c.Floor = at(made(3, 0)) }), "lineage"},
		"a floor of the future":             {change(func(c *FormGeneration) { c.Floor = at(made(3, 7)) }), "base"},
		"a floor without labels":            {change(func(c *FormGeneration) { c.Floor.Labels = nil }), "floor"},
		"a floor with two coordinates":      {change(func(c *FormGeneration) { c.Floor = Floor{3, []phalanx.Label{made(3, 1), made(3, 1)}} }), "world"},
		"a floor with a label of elsewhere": {change(func(c *FormGeneration) { c.Floor = Floor{3, []phalanx.Label{made(2, 1)}} }), "floor"},
		"the floor with another label":      {change(func(c *FormGeneration) { c.Floor = at(phalanx.Label{Digest: phalanx.Digest{1}}) }), "floor"},
		"a member twice":                    {change(func(c *FormGeneration) { c.World.Seats[1].Incarnate = c.World.Seats[0].Incarnate }), "world"},
		"a stranger":                        {change(func(c *FormGeneration) { c.World.Seats[1].Incarnate = who("z/0", 1) }), "world"},
		"another life":                      {change(func(c *FormGeneration) { c.World.Seats[1].Incarnation = 2 }), "world"},
		"a quarantined member":              {change(func(c *FormGeneration) { c.World.Seats[1].Incarnate = who("d/0", 1) }), "world"},
		"ranks out of order":                {change(func(c *FormGeneration) { c.World.Seats[0].Rank = 1 }), "world"},
		"slots out of place":                {change(func(c *FormGeneration) { c.World.Seats[0].Slots.End++ }), "world"},
		"another number of slots":           {change(func(c *FormGeneration) { c.World.SlotCount = 8 }), "world"},
		"another group size":                {change(func(c *FormGeneration) { c.World.GroupSize = 2 }), "world"},
		"an evicted member": {change(func(c *FormGeneration) {
			c.Evictions = []Eviction{{Incarnate: who("b/0", 1)}}
		}), "world"},
		"an eviction of another life": {change(func(c *FormGeneration) {
			c.Evictions = []Eviction{{Incarnate: who("c/0", 2)}}
		}), "member"},
		"too few groups": {func(s *State) Command { return formed(s, nil, "a/0") }, "world"},
		"too few groups, halted": {func(s *State) Command {
			return formed(s, &HaltReason{Kind: BelowMinimum}, "a/0")
		}, "ok"},
		"nobody, and no seal": {func(s *State) Command {
			c := formed(s, &HaltReason{Kind: BelowMinimum})
			c.Seals = nil
			c.Evictions = []Eviction{{Incarnate: who("a/0", 1)}, {Incarnate: who("b/0", 1)}}
			return c
		}, "ok"},
		"a rewind without seals": {func(s *State) Command {
			c := formed(s, nil, "a/0", "b/0")
			c.Seals = nil
			return Rewind{FormGeneration: c, Branch: 1}
		}, "ok"},
		"a rewind to the same branch":    {func(s *State) Command { return Rewind{FormGeneration: formed(s, nil, "a/0", "b/0")} }, "illegal"},
		"a rewind that skips a branch":   {func(s *State) Command { return Rewind{FormGeneration: formed(s, nil, "a/0", "b/0"), Branch: 2} }, "illegal"},
		"activate an older generation":   {func(*State) Command { return Activate{} }, "base"},
		"evict somebody in the world":    {func(*State) Command { return EvictMembers{Evictions: []Eviction{{Incarnate: who("a/0", 1)}}} }, "illegal"},
		"evict a stranger":               {func(*State) Command { return EvictMembers{Evictions: []Eviction{{Incarnate: who("z/0", 1)}}} }, "member"},
		"admit the same life":            {func(*State) Command { return AdmitMembers{Members: []Admission{admission(who("c/0", 1))}} }, "member"},
		"admit a later life of a spare":  {func(*State) Command { return AdmitMembers{Members: []Admission{admission(who("c/0", 2))}} }, "member"},
		"admit a later quarantined life": {func(*State) Command { return AdmitMembers{Members: []Admission{admission(who("d/0", 2))}} }, "ok"},
		"admit life zero":                {func(*State) Command { return AdmitMembers{Members: []Admission{admission(who("e/0", 0))}} }, "member"},
		"admit a name without index":     {func(*State) Command { return AdmitMembers{Members: []Admission{admission(who("e", 1))}} }, "member"},
		"drain a stranger":               {func(*State) Command { return Drain{Member: "z/0"} }, "member"},
		"quarantine a stranger":          {func(*State) Command { return Quarantine{Member: "z/0"} }, "member"},
		"lift nothing":                   {func(*State) Command { return Lift{Member: "a/0"} }, "member"},
		"resize to nothing":              {func(*State) Command { return Resize{} }, "illegal"},
		"resize below the minimum":       {func(*State) Command { return Resize{Want: 1} }, "illegal"},
		"halt below the minimum":         {func(*State) Command { return Halt{Reason: HaltReason{Kind: BelowMinimum}} }, "illegal"},
		"done early":                     {func(*State) Command { return Done{Step: 8} }, "illegal"},
		"publish another step's label": {func(*State) Command {
			return PublishCheckpoint{Published{Step: 4, Labels: []phalanx.Label{made(3, 1)}, Commit: 1}}
		}, "lineage"},
		"publish a label of the future": {func(*State) Command {
			return PublishCheckpoint{Published{Step: 3, Labels: []phalanx.Label{made(3, 2)}, Commit: 1}}
		}, "lineage"},
		"reach no level":              {func(*State) Command { return ReachLevel{Reached: Reached{Step: 3, Generation: made(3, 1).Generation}} }, "illegal"},
		"reach a level with the seed": {func(*State) Command { return ReachLevel{Level: LevelLocal} }, "illegal"},
		"reach a level from the future": {func(*State) Command {
			return ReachLevel{Level: LevelLocal, Reached: Reached{Step: 3, Generation: made(3, 2).Generation}}
		}, "lineage"},
		"reach a level made by nobody": {func(*State) Command { return ReachLevel{Level: LevelLocal, Reached: Reached{Step: 3}} }, "lineage"},
		"publish half a state":         {func(*State) Command { return PublishCheckpoint{Published{Step: 3, Commit: 1}} }, "illegal"},
	} {
		s := inPhase(t, "running")
		after, err := s.Apply(c.command(s))
		if got := outcome(err); got != c.want {
			t.Errorf("%s: %s, want %s (%v)", name, got, c.want, err)
		}
		mustHold(t, s, after)
	}
}

// do applies commands that must be accepted.
func do(t *testing.T, s *State, commands ...Command) *State {
	t.Helper()
	for _, c := range commands {
		next, err := s.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		mustHold(t, s, next)
		s = next
	}
	return s
}

// TestLineage: what a rewind abandons is not published, not rewound to and not the newest checkpoint.
func TestLineage(t *testing.T) {
	s := do(t, inPhase(t, "running"))
	old := phalanx.Label{Step: 5, Generation: s.World.Generation, Digest: phalanx.Digest{5, 5}}
	kept := phalanx.Label{Step: 2, Generation: s.World.Generation, Digest: phalanx.Digest{2, 2}}
	publish := func(l phalanx.Label, commit uint64) Command {
		return PublishCheckpoint{Published{Step: l.Step, Generation: l.Generation, Labels: []phalanx.Label{l}, Commit: commit}}
	}
	rewind := func(s *State, l phalanx.Label, unreadable ...uint64) Command {
		c := formed(s, nil, "a/0", "b/0")
		c.Floor, c.Source = Floor{l.Step, []phalanx.Label{l}}, Source{Kind: FromStore}
		return Rewind{FormGeneration: c, Branch: s.Branch + 1, Unreadable: unreadable}
	}
	s = do(t, s, publish(kept, 1), publish(old, 2))
	if _, err := s.Apply(rewind(s, kept)); outcome(err) != "floor" {
		t.Errorf("a rewind below a published step: %v", err)
	}
	s = do(t, s, rewind(s, kept, 2))
	if n := s.NewestPublished(); n == nil || n.Step != 2 {
		t.Errorf("the newest checkpoint of the lineage is %+v, want step 2", n)
	}
	for name, c := range map[string]Command{"publish": publish(old, 3), "rewind": rewind(s, old)} {
		if _, err := s.Apply(c); outcome(err) != "lineage" {
			t.Errorf("%s to an abandoned label: %v", name, err)
		}
	}
	if _, err := s.Apply(publish(kept, 2)); outcome(err) != "illegal" {
		t.Errorf("publish an older commit: %v", err)
	}
	s = do(t, s, publish(kept, 3), rewind(s, kept))
	if len(s.Rewinds) != 1 || s.Rewinds[0].Branch != 2 || s.Branch != 2 {
		t.Errorf("branch %d, rewinds %+v", s.Branch, s.Rewinds)
	}
}

// TestMembersMove follows members through drains and quarantines that cross a formation.
func TestMembersMove(t *testing.T) {
	s := inPhase(t, "running")
	state := func(id phalanx.MemberID, want MemberState) {
		t.Helper()
		if m := s.Member(id); m.State != want {
			t.Errorf("%s is %s, want %s", id, m.State, want)
		}
	}
	state("a/0", Active)
	state("c/0", Spare)
	state("d/0", Quarantined)
	late := formed(s, nil, "a/0", "b/0")
	s = do(t, s, Drain{Member: "b/0"}, Drain{Member: "c/0"})
	state("b/0", Draining)
	state("c/0", Gone)
	s = do(t, s, late)
	state("b/0", Draining) // a formation on its way does not undo the drain
	s = do(t, s, AdmitMembers{Members: []Admission{admission(who("c/0", 2))}})
	s = do(t, s, formed(s, nil, "a/0", "c/0"))
	state("b/0", Gone)
	state("c/0", Active)
	s = do(t, s, Quarantine{Member: "c/0"})
	state("c/0", Draining)
	s = do(t, s, formed(s, &HaltReason{Kind: BelowMinimum}, "a/0"))
	state("c/0", Quarantined)
	s = do(t, s, AdmitMembers{Members: []Admission{admission(who("c/0", 3)), admission(who("b/0", 2))}})
	state("c/0", Quarantined)
	state("b/0", Joining)
	s = do(t, s, Lift{Member: "c/0"})
	state("c/0", Gone)
	s = do(t, s, AdmitMembers{Members: []Admission{admission(who("c/0", 4))}})
	state("c/0", Spare) // the world wants two, and b/0 has come before
}

// TestHistoryIsBounded: old transitions and checkpoints are forgotten, oldest first.
func TestHistoryIsBounded(t *testing.T) {
	s := inPhase(t, "running")
	for range MaxTransitions + 5 {
		s = do(t, s, formed(s, nil, "a/0", "b/0"))
	}
	if n := len(s.Transitions); n != MaxTransitions || s.Transitions[n-1].Generation != s.World.Generation {
		t.Errorf("%d transitions are kept", n)
	}
	for i := range MaxPublished + 5 {
		l := phalanx.Label{Step: phalanx.Step(i + 1), Generation: s.World.Generation}
		s = do(t, s, PublishCheckpoint{Published{Step: l.Step, Labels: []phalanx.Label{l}, Commit: uint64(i + 1)}})
	}
	if n := len(s.Published); n != MaxPublished || s.Published[n-1].Step != MaxPublished+5 {
		t.Errorf("%d checkpoints are named", n)
	}
}

// TestCheckSees: Check and CheckStep are not blind.
func TestCheckSees(t *testing.T) {
	for name, spoil := range map[string]func(*State){
		"members out of order":      func(s *State) { s.Members[0], s.Members[1] = s.Members[1], s.Members[0] },
		"a spare in the world":      func(s *State) { s.Members[0].State = Spare },
		"an active one outside":     func(s *State) { s.Members[2].State = Active },
		"a draining one outside":    func(s *State) { s.Members[2].State = Draining },
		"an unknown member state":   func(s *State) { s.Members[0].State = 77 },
		"a quarantine of nobody":    func(s *State) { s.Members[3].Quarantine = false },
		"a seat out of place":       func(s *State) { s.World.Seats[0].Rank = 1 },
		"half a group":              func(s *State) { s.Spec.GroupSize = 3 },
		"slots with a gap":          func(s *State) { s.World.Seats[0].Slots.End-- },
		"a floor of another step":   func(s *State) { s.Floor.Step = 1 },
		"a floor of the future":     func(s *State) { s.Floor = Floor{1, []phalanx.Label{{Step: 1, Generation: s.World.Generation}}} },
		"a floor without labels":    func(s *State) { s.Floor.Labels = nil },
		"an unknown holder":         func(s *State) { s.Source.Holders = []phalanx.MemberID{"z/0"} },
		"running, not activated":    func(s *State) { s.Activated = false },
		"halted without a reason":   func(s *State) { s.Phase = Halted },
		"done without being so":     func(s *State) { s.Phase = Finished },
		"too few groups":            func(s *State) { s.Policy.Min = 3 },
		"a branch without a rewind": func(s *State) { s.Branch = 1 },
		"transitions out of order":  func(s *State) { s.Transitions = append(s.Transitions, s.Transitions[0]) },
		"no version":                func(s *State) { s.Version = 0 },
	} {
		s := inPhase(t, "running")
		spoil(s)
		if Check(s) == nil {
			t.Errorf("%s is not seen", name)
		}
	}
	for name, spoil := range map[string]func(*State){
		"an older generation":   func(s *State) { s.World.Generation = phalanx.Generation{} },
		"a lower floor":         func(s *State) { s.Floor.Step = 0 },
		"another label":         func(s *State) { s.Floor.Labels = []phalanx.Label{{Step: 3, Digest: phalanx.Digest{9}}} },
		"an earlier life":       func(s *State) { s.Members[0].Incarnation = 0 },
		"a forgotten member":    func(s *State) { s.Members = s.Members[1:] },
		"a member that is back": func(s *State) { s.Members[3].State = Spare },
		"a life that was used":  func(s *State) { s.Members[0].Incarnation = 2 },
		"a branch by itself":    func(s *State) { s.Branch++ },
		"a skipped entry":       func(s *State) { s.Seq++ },
	} {
		before := inPhase(t, "running")
		before.Floor = Floor{3, []phalanx.Label{{Step: 3}}}
		before.Members[3].State = Gone
		after := before.clone()
		after.Seq++
		if err := CheckStep(before, after); err != nil {
			t.Fatal(err)
		}
		spoil(after)
		if CheckStep(before, after) == nil {
			t.Errorf("%s is not seen", name)
		}
	}
}
