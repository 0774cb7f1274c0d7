// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"slices"
	"testing"

	"phalanx"
)

// has returns the first action of type A.
func has[A Action](acts []Action) (A, bool) {
	for _, a := range acts {
		if x, ok := a.(A); ok {
			return x, true
		}
	}
	var none A
	return none, false
}

func read(t *testing.T, m *Machine, c Command) []Action {
	t.Helper()
	return m.Step(Read{do(t, m.Log(), c)})
}

// TestNoVote: every reason not to vote, alone.
func TestNoVote(t *testing.T) {
	for name, spoil := range map[string]func(*Machine, *Trainer){
		"no lease":            func(m *Machine, _ *Trainer) { m.Step(Lease{false}) },
		"another generation":  func(_ *Machine, t *Trainer) { t.Request.Generation.Number++ },
		"a step too far":      func(_ *Machine, t *Trainer) { t.Request.Step++ },
		"no step":             func(_ *Machine, t *Trainer) { t.Request = Vote{} },
		"the optimizer runs":  func(_ *Machine, t *Trainer) { t.Applying = 1 },
		"no whole state":      func(_ *Machine, t *Trainer) { t.Holds = false },
		"the trainer is dead": func(_ *Machine, t *Trainer) { t.Trainer = false },
		"another coordinate":  func(_ *Machine, t *Trainer) { t.Label.Coordinate = 1 },
		"sealed":              func(m *Machine, _ *Trainer) { m.Step(SealAsked{Generation: m.Log().World.Generation}) },
		"beyond the boundary": func(m *Machine, _ *Trainer) { m.ask = &SealAsked{Generation: m.Log().World.Generation} },
		"a state beside the floor": func(_ *Machine, t *Trainer) {
			t.Label = phalanx.Label{Step: 3, Generation: phalanx.Generation{Number: 7}}
			t.Request.Step = 4
		},
		"": func(*Machine, *Trainer) {},
	} {
		m := inState(t, LocalReady)
		trainer := tableEvents["Seen"](m).(Seen).Trainer
		spoil(m, &trainer)
		if vote, voted := has[WriteVote](m.Step(Seen{trainer})); voted != (name == "") {
			t.Errorf("%s: vote %+v, %v", name, vote, voted)
		}
	}
}

// TestLeaseComesLate: a vote that waited for the lease is cast when it comes.
func TestLeaseComesLate(t *testing.T) {
	m := inState(t, LocalReady)
	m.Step(Lease{false})
	m.Step(tableEvents["Seen"](m))
	if _, ok := has[WriteVote](m.Step(Lease{true})); !ok {
		t.Error("the vote is not cast when the lease comes")
	}
}

// TestEarlyVotes: a vote of a generation that is not read yet counts when it is.
func TestEarlyVotes(t *testing.T) {
	m := inState(t, LocalRunning)
	next := m.Log().World.Generation.Next()
	d := phalanx.Digest{7, 7}
	for _, g := range []phalanx.Generation{next.Next(), next, next.Next()} { // the one in the middle is the older one
		m.Step(PeerVoted{1, Vote{Generation: g, Step: 1, OK: true, Digest: d}})
	}
	if len(m.early) != 1 || m.early[1].Generation != next.Next() {
		t.Fatalf("early votes: %+v", m.early)
	}
	m.early = nil
	m.Step(PeerVoted{1, Vote{Generation: next, Step: 1, OK: true, Digest: d}})
	m.Step(PeerVoted{-1, Vote{Generation: next, Step: 1}})
	m.Step(PeerVoted{99, Vote{Generation: next, Step: 1}})
	read(t, m, formed(m.Log(), nil, "a/0", "b/0"))
	m.Step(Formed{next})
	acts := m.Step(tableEvents["Seen"](m))
	if c, ok := has[WriteCommit](acts); !ok || c != (WriteCommit{next, 1}) {
		t.Errorf("the early vote does not count: %+v", acts)
	}
}

// TestUnequalDigestsAreRefused whoever votes last, and nothing is committed.
func TestUnequalDigestsAreRefused(t *testing.T) {
	for _, mine := range []bool{true, false} {
		m := inState(t, LocalReady)
		g := m.Log().World.Generation
		peer := PeerVoted{1, Vote{Generation: g, Step: 1, OK: true, Digest: phalanx.Digest{8, 8}}}
		events := []Event{peer, tableEvents["Seen"](m)}
		if !mine {
			slices.Reverse(events)
		}
		acts := append(m.Step(events[0]), m.Step(events[1])...)
		if w, ok := has[WriteRefusal](acts); !ok || w.Step != 1 || w.Generation != g || w.Evidence.Kind != phalanx.DigestsUnequal {
			t.Errorf("own vote last %v: no refusal in %+v", mine, acts)
		}
		if _, ok := has[WriteCommit](acts); ok {
			t.Errorf("own vote last %v: committed", mine)
		}
		if m.Refusal().Step != 1 {
			t.Errorf("the refusal is not remembered: %+v", m.Refusal())
		}
	}
}

// TestCommitAfterSeal: a set of votes that is complete only after the seal counts, until the next entry is read.
func TestCommitAfterSeal(t *testing.T) {
	vote := func(m *Machine) Event {
		return PeerVoted{1, Vote{Generation: m.Log().World.Generation, Step: 1, OK: true, Digest: phalanx.Digest{7, 7}}}
	}
	m := inState(t, LocalRunning)
	g := m.Log().World.Generation
	m.Step(SealAsked{Generation: g})
	if c, ok := has[WriteCommit](m.Step(vote(m))); !ok || c.Step != 1 {
		t.Error("a complete set of votes is not acted on after the seal")
	}
	m = inState(t, LocalRunning)
	late := vote(m)
	read(t, m, Rewind{FormGeneration: formed(m.Log(), nil, "a/0", "b/0"), Branch: 1})
	if acts := m.Step(late); len(acts) != 0 {
		t.Errorf("a vote of the abandoned branch leads to %+v", acts)
	}
}

// TestStrandedByACommit: the trainer carries out a commit that was told just before a rewind was read. It heals.
func TestStrandedByACommit(t *testing.T) {
	m := inState(t, LocalRunning)
	g := m.Log().World.Generation
	m.Step(tableEvents["PeerVoted"](m)) // tells commit 1
	read(t, m, Rewind{FormGeneration: formed(m.Log(), nil, "a/0", "b/0"), Branch: 1})
	m.Step(Formed{g.Next()})
	if m.State() != LocalReady {
		t.Fatalf("the machine is %s", m.State())
	}
	trainer := m.trainer
	trainer.Applying = 1
	m.Step(Seen{trainer})
	trainer.Label = phalanx.Label{Step: 1, Generation: g, Digest: trainer.Gradient.Digest}
	acts := m.Step(Seen{trainer})
	if h, ok := has[Heal](acts); !ok || h.Label != m.Log().Floor.Label(0) || m.State() != LocalHealing {
		t.Errorf("the machine is %s after %+v", m.State(), acts)
	}
}

// TestDonorOutsideRollsForward: the leftover of a broken group is named as a donor and makes the step that it serves.
func TestDonorOutsideRollsForward(t *testing.T) {
	m := inState(t, LocalRunning) // has voted for step 1 and holds its gradient
	s := m.Log()
	c := formed(s, &HaltReason{Kind: BelowMinimum}, "b/0")
	c.Floor = Floor{1, []phalanx.Label{{Step: 1, Generation: s.World.Generation, Digest: phalanx.Digest{7, 7}}}}
	c.Source = Source{Kind: FromLive, Holders: []phalanx.MemberID{"a/0"}}
	acts := read(t, m, c)
	if w, ok := has[WriteCommit](acts); !ok || w != (WriteCommit{s.World.Generation, 1}) || m.State() != LocalIdle {
		t.Errorf("the machine is %s after %+v", m.State(), acts)
	}
}

// TestGradientSeenAfterTheEntry: the trainer is known only after the entry was read. It rolls forward all the same.
func TestGradientSeenAfterTheEntry(t *testing.T) {
	s := inPhase(t, "forming")
	c := formed(s, nil, "a/0", "b/0")
	d := phalanx.Digest{7, 7}
	c.Floor = Floor{1, []phalanx.Label{{Step: 1, Generation: s.World.Generation, Digest: d}}}
	m := NewMachine(who("a/0", 1), s, Page{})
	read(t, m, c)
	trainer := Trainer{Possession: Possession{Trainer: true, Holds: true, Label: phalanx.Label{Coordinate: AnyCoordinate}, Gradient: Gradient{s.World.Generation, 1, d, 0}}}
	acts := m.Step(Seen{trainer})
	if w, ok := has[WriteCommit](acts); !ok || w != (WriteCommit{s.World.Generation, 1}) {
		t.Errorf("no roll forward in %+v", acts)
	}
	if _, ok := has[Heal](acts); ok {
		t.Error("it heals what it can make")
	}
	if again := m.Step(Seen{trainer}); len(again) != 0 {
		t.Errorf("seeing nothing new leads to %+v", again)
	}
}

// TestBoundary: a planned seal comes when the step is applied, and at once for one that cannot be held there.
func TestBoundary(t *testing.T) {
	m := inState(t, LocalReady)
	g := m.Log().World.Generation
	if acts := m.Step(SealAsked{g, 1}); len(acts) != 0 {
		t.Fatalf("sealed before the boundary: %+v", acts)
	}
	trainer := tableEvents["Seen"](m).(Seen).Trainer
	if _, ok := has[WriteVote](m.Step(Seen{trainer})); !ok {
		t.Fatal("no vote up to the boundary")
	}
	trainer.Label = phalanx.Label{Step: 1, Generation: g, Digest: phalanx.Digest{7, 7}}
	trainer.Request = Vote{Generation: g, Step: 2, OK: true}
	acts := m.Step(Seen{trainer})
	if _, ok := has[WriteSealed](acts); !ok || m.Sealed() != g {
		t.Errorf("not sealed at the boundary: %+v", acts)
	}
	if _, ok := has[WriteVote](acts); ok {
		t.Error("a vote beyond the boundary")
	}
	m = inState(t, LocalRunning) // has voted for 1
	m.vote.Step = 2
	if _, ok := has[WriteSealed](m.Step(SealAsked{g, 1})); !ok {
		t.Error("a member that voted beyond the boundary is not sealed at once")
	}
	m = inState(t, LocalHealing) // stands at 2 of nowhere
	if acts := m.Step(SealAsked{g, 1}); len(acts) != 0 {
		t.Errorf("a state beside the lineage passes for the boundary: %+v", acts)
	}
}

// TestSealedUnread: a generation that was sealed before it was read is aborted when it is, and never voted in.
func TestSealedUnread(t *testing.T) {
	m := inState(t, LocalRunning)
	next := m.Log().World.Generation.Next()
	m.Step(SealAsked{Generation: next})
	acts := m.Step(WorkersLeft{next})
	if a, ok := has[AnswerSeal](acts); !ok || !a.Answer.Unread || a.Answer.Vote != nil || a.Answer.Generation != next {
		t.Errorf("the answer is %+v", acts)
	}
	acts = read(t, m, formed(m.Log(), nil, "a/0", "b/0"))
	if _, ok := has[Form](acts); ok || m.State() != LocalAborting {
		t.Errorf("the machine is %s after %+v", m.State(), acts)
	}
	acts = m.Step(WorkersLeft{next})
	if a, ok := has[AnswerSeal](acts); !ok || a.Answer.Unread {
		t.Errorf("the answer is %+v", acts)
	}
	read(t, m, formed(m.Log(), nil, "a/0", "b/0"))
	if m.State() != LocalForming {
		t.Errorf("the generation after it: %s", m.State())
	}
	if acts := m.Step(SealAsked{Generation: next}); len(acts) != 0 {
		t.Errorf("a seal of an older generation leads to %+v", acts)
	}
}

// TestAdopt: a restarted daemon repeats its vote, keeps its seal and does not vote again.
func TestAdopt(t *testing.T) {
	s := inPhase(t, "forming")
	g := s.World.Generation
	trainer := tableEvents["Seen"](inState(t, LocalReady)).(Seen).Trainer
	page := Page{Vote: trainer.Request}
	m := NewMachine(who("a/0", 1), s, page)
	if v, ok := has[WriteVote](m.Adopt(trainer)); !ok || v.Vote != page.Vote || m.NewestVote() != page.Vote {
		t.Errorf("the vote is not repeated: %+v", v)
	}
	m.Step(Lease{true})
	m.Step(Formed{g})
	trainer.Request.OK = false
	if v, ok := has[WriteVote](m.Step(Seen{trainer})); ok || m.State() != LocalRunning {
		t.Errorf("%s, voted again: %+v", m.State(), v)
	}
	if c, ok := has[WriteCommit](m.Step(tableEvents["PeerVoted"](m))); !ok || c.Step != 1 {
		t.Error("the repeated vote does not count")
	}
	page.Sealed = g
	m = NewMachine(who("a/0", 1), s, page)
	acts := m.Adopt(trainer)
	if _, ok := has[WriteVote](acts); ok || m.State() != LocalAborting {
		t.Errorf("a sealed member %s: %+v", m.State(), acts)
	}
	if a, ok := has[AnswerSeal](m.Step(WorkersLeft{g})); !ok || a.Answer.Vote == nil || *a.Answer.Vote != page.Vote {
		t.Errorf("the answer is %+v", a)
	}
}

// TestFenced: an entry that ends this life, or knows a later one, ends the trainer; nothing follows.
func TestFenced(t *testing.T) {
	for name, c := range map[string]func(*State) []Command{
		"evicted": func(s *State) []Command {
			c := formed(s, &HaltReason{Kind: BelowMinimum}, "b/0")
			c.Evictions = []Eviction{{Incarnate: who("a/0", 1)}}
			return []Command{c}
		},
		"drained": func(s *State) []Command {
			return []Command{Drain{Member: "a/0"}, formed(s, &HaltReason{Kind: BelowMinimum}, "b/0")}
		},
		"a later life": func(s *State) []Command {
			return []Command{Drain{Member: "a/0"}, formed(s, &HaltReason{Kind: BelowMinimum}, "b/0"), AdmitMembers{Members: []Admission{admission(who("a/0", 2))}}}
		},
	} {
		m := inState(t, LocalRunning)
		acts := m.Step(Read{do(t, m.Log(), c(m.Log())...)})
		if _, ok := has[Fence](acts); !ok {
			t.Errorf("%s: %+v", name, acts)
		}
		if acts := m.Step(Lease{true}); acts != nil {
			t.Errorf("%s: acts after the end: %+v", name, acts)
		}
	}
}

// TestHaltedWorldParks: nobody heals, runs or votes while the job is halted.
func TestHaltedWorldParks(t *testing.T) {
	m := inState(t, LocalRunning)
	read(t, m, formed(m.Log(), &HaltReason{Kind: BelowMinimum}, "a/0"))
	g := m.Log().World.Generation
	acts := append(m.Step(Formed{g}), m.Step(tableEvents["Seen"](m))...)
	for _, a := range acts {
		t.Errorf("a halted machine wants %T", a)
	}
	if _, ok := has[WriteSealed](m.Step(SealAsked{Generation: g})); !ok {
		t.Error("a halted world cannot be sealed")
	}
}
