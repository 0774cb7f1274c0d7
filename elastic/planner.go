// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"
	"strings"

	"phalanx"
	"phalanx/internal/planted"
)

// Ask is a seal that the leader asks every member of the current generation for. A boundary of 0 is an ordinary seal.
type Ask struct {
	Generation phalanx.Generation
	Planned    bool
	Boundary   phalanx.Step
	Evidence   []phalanx.Evidence // why an ordinary seal is asked for
}

// Plan is the next thing that the leader does: ask for a seal, propose a command, or nothing yet.
type Plan struct {
	Ask     *Ask
	Command Command
	// Look asks the loop to find out what the store holds: the plan waits for it.
	Look bool
	Why  string
}

// PlainSettings are the settings in the spec of a job without the step protocol: its trainers possess nothing that is voted
// on or saved, and it is done when all of them have exited with 0.
const PlainSettings = "without step protocol (--plain)"

// Planner is the leader's policy. It keeps nothing: the same state and facts give the same plan.
type Planner struct {
	// Spec, layout and policy of the job, used by the first admission alone.
	Spec   *phalanx.JobSpec
	State  []phalanx.TensorInfo // of a job whose members may sit anywhere
	Policy Policy
	// WarmStart is the leader's, nil for none.
	WarmStart *WarmStart
}

// Plan decides what the leader does next.
func (p Planner) Plan(s *State, f *Facts) Plan {
	switch {
	case s.Phase == Finished:
		return Plan{Why: "the job is done"}
	case s.Phase == Halted && s.Halt != nil && s.Halt.Kind.Ends():
		if f.Restarted {
			policy := p.Policy
			return Plan{Command: Resume{Policy: &policy, UnixNS: f.UnixNS}, Why: "the job was started again"}
		}
		return Plan{Why: "the job has ended: " + s.Halt.Words}
	}
	if plan, ok := p.admit(s, f); ok {
		return plan
	}
	if plan, ok := p.giveUp(s, f); ok {
		return plan
	}
	if plan, ok := p.finish(s, f); ok {
		return plan
	}
	if plan, ok := p.dropOutside(s, f); ok {
		return plan
	}
	if plan, ok := p.drainLeaving(s, f); ok {
		return plan
	}
	if s.World.Generation.IsZero() || s.World.Size() == 0 {
		return p.open(s, f)
	}
	evidence := p.evidence(s, f)
	// A seal that was asked for is final, whatever became of its reason. A halted world is sealed to be changed.
	if len(evidence) > 0 || f.Round.Asked && !f.Round.Planned && s.Phase != Halted {
		if !f.Round.Asked || f.Round.Planned {
			return Plan{Ask: &Ask{Generation: s.World.Generation, Evidence: evidence}, Why: evidence[0].String()}
		}
		return p.close(s, f, evidence)
	}
	return p.change(s, f)
}

// admit makes every ready incarnation known that the log does not know yet.
func (p Planner) admit(s *State, f *Facts) (Plan, bool) {
	c := AdmitMembers{UnixNS: f.UnixNS}
	after := s // with the layouts that those before have brought
	if s.Spec == nil && p.Spec != nil {
		after = &State{Spec: p.Spec, State: p.State}
	}
	for i := range f.Members {
		m := &f.Members[i]
		old := s.Member(m.Member)
		if !m.Connected || !m.Ready || m.Leaving || m.Failed || m.Dead || old != nil && (old.Incarnation >= m.Incarnation || old.State != Gone && old.State != Quarantined) {
			continue
		}
		a := Admission{Incarnate: m.Incarnate, Host: m.Host, Pin: m.Pin}
		if _, known := after.LayoutOf(m.Pin.Coordinate()); !known && m.Pin != phalanx.AnyPlace && after.Spec != nil {
			a.Layout = m.Layout
		}
		next := after.clone()
		if after.Spec == nil || !after.fits(m.Pin, m.Layout) || next.pin(a) != nil {
			continue // its own daemon tells it, or the next report brings what is missing
		}
		next.Members = append(next.Members, Member{Incarnate: m.Incarnate})
		after = next
		c.Members = append(c.Members, a)
	}
	if len(c.Members) == 0 && s.Spec == nil && p.Spec == nil && slices.ContainsFunc(f.Members, func(m MemberFact) bool { return m.Ready }) {
		return Plan{Why: "no trainer has said what the job is"}, true
	}
	if len(c.Members) == 0 {
		return Plan{}, false
	}
	if s.Spec == nil {
		policy := p.Policy
		c.Spec, c.State, c.Policy, c.WarmStart = p.Spec, p.State, &policy, p.WarmStart
	}
	return Plan{Command: c, Why: fmt.Sprintf("%d members are ready", len(c.Members))}, true
}

// giveUp ends a job that cannot be started any more: members gave up and those that are left are too few.
func (p Planner) giveUp(s *State, f *Facts) (Plan, bool) {
	failed, able := 0, 0
	var words []string
	for i := range f.Members {
		m := &f.Members[i]
		if m.Failed {
			failed++
			for _, e := range m.Evidence {
				if e.Kind == phalanx.TrainerExited {
					words = append(words, fmt.Sprintf("%s: %s", m.Member, e.Detail))
				}
			}
		} else if m.Connected && !m.Dead {
			able++
		}
	}
	minimum := max(1, p.Policy.Min)
	if s.Spec != nil {
		minimum = s.MinGroups() * s.GroupSize()
	}
	if failed == 0 || able >= minimum || s.Phase == Running || s.Phase == Forming {
		return Plan{}, false
	}
	why := fmt.Sprintf("%d members gave up starting their trainers and %d of at least %d are left", failed, able, minimum)
	if len(words) > 0 {
		why += "; " + strings.Join(words, "; ")
	}
	return Plan{Command: Halt{HaltReason{Kind: CrashLoop, Words: why}, f.UnixNS}, Why: why}, true
}

// finish ends a job whose last step is committed, whose trainers have ended and whose last save is durable.
func (p Planner) finish(s *State, f *Facts) (Plan, bool) {
	if s.Spec == nil || s.World.Size() == 0 || s.Phase == Halted {
		return Plan{}, false
	}
	newest := s.NewestPublished()
	plain := s.Spec.Settings == PlainSettings
	published := !plain && newest != nil && newest.Step == s.Spec.LastStep
	var digest phalanx.Digest
	for _, seat := range s.World.Seats {
		m := f.Fact(seat.Member)
		if m == nil || m.Incarnation != seat.Incarnation || !m.Finished {
			if m != nil && published {
				if _, lost := lostEvidence(f, m, seat.Incarnate); lost {
					continue // what it had is published
				}
			}
			return Plan{}, false
		}
		if digest.IsZero() {
			digest = m.Digest
		}
	}
	if plain {
		return Plan{Command: Done{s.Spec.LastStep, digest, f.UnixNS}, Why: "every trainer has exited with 0"}, true
	}
	if digest.IsZero() {
		return Plan{}, false
	}
	if !published {
		return Plan{Why: "every trainer has ended; the last save is not durable yet"}, true
	}
	return Plan{Command: Done{s.Spec.LastStep, digest, f.UnixNS}, Why: "the last step is committed and published"}, true
}

// dropOutside evicts lost members that are not in the world.
func (p Planner) dropOutside(s *State, f *Facts) (Plan, bool) {
	c := EvictMembers{UnixNS: f.UnixNS}
	for i := range s.Members {
		m := &s.Members[i]
		if m.State == Gone || m.State == Quarantined || s.World.Has(m.Incarnate) {
			continue
		}
		x := f.Fact(m.Member)
		if x == nil {
			continue
		}
		if m.State == Draining && x.Leaving { // it leaves already, and still serves those that heal from it
			stays := *x
			stays.Leaving = false
			x = &stays
		}
		if e, lost := lostEvidence(f, x, m.Incarnate); lost {
			c.Evictions = append(c.Evictions, Eviction{m.Incarnate, e})
		}
	}
	if len(c.Evictions) == 0 {
		return Plan{}, false
	}
	return Plan{Command: c, Why: c.Evictions[0].Evidence.String()}, true
}

// drainLeaving makes a drain of what a host asks for its member in the world: it is a planned change like any other.
func (p Planner) drainLeaving(s *State, f *Facts) (Plan, bool) {
	if f.Stop {
		return Plan{}, false // they all leave when the last step is saved
	}
	for _, seat := range s.World.Seats {
		x, m := f.Fact(seat.Member), s.Member(seat.Member)
		if x != nil && x.Incarnation == seat.Incarnation && x.Leaving && m != nil && m.State == Active {
			return Plan{Command: Drain{seat.Member, "its host asks it to leave"}, Why: fmt.Sprintf("%s is asked to leave", seat.Incarnate)}, true
		}
	}
	return Plan{}, false
}

// lostEvidence reports whether the incarnation is lost according to x.
func lostEvidence(f *Facts, x *MemberFact, who phalanx.Incarnate) (phalanx.Evidence, bool) {
	e := phalanx.Evidence{Kind: phalanx.Unreachable, About: who, Source: f.Leader, UnixNS: f.UnixNS}
	if x.Incarnation != who.Incarnation {
		if x.Incarnation < who.Incarnation {
			return e, false
		}
		e.Kind, e.Detail = phalanx.DaemonExited, "a newer incarnation has taken its place"
		return e, true
	}
	if !x.Dead && !x.Silent && !x.Failed && !x.Leaving && x.Possession.Trainer {
		return e, false
	}
	if x.InGrace && x.Possession.Trainer {
		return e, false
	}
	for _, k := range x.Evidence {
		if k.About == who {
			return k, true
		}
	}
	switch {
	case !x.Possession.Trainer:
		e.Kind, e.Source = phalanx.TrainerExited, who.Member
	case x.Dead:
		e.Kind = phalanx.DaemonExited
	case x.Leaving && !x.Dead && !x.Silent && !x.Failed:
		e.Kind, e.Source, e.Detail = phalanx.Asked, who.Member, "it was asked to leave"
	}
	return e, true
}

// evidence collects what is known against the current generation.
func (p Planner) evidence(s *State, f *Facts) []phalanx.Evidence {
	var out []phalanx.Evidence
	for _, seat := range s.World.Seats {
		m := f.Fact(seat.Member)
		if m == nil {
			continue // not heard of since the leader's election; Silent comes by deadline
		}
		if m.Incarnation != seat.Incarnation || (m.Dead || m.Silent || !m.Possession.Trainer) && !(m.InGrace && m.Possession.Trainer) {
			if m.Finished && m.Incarnation == seat.Incarnation {
				continue // it ended well; a lost world is decided by those that are left
			}
			if e, lost := lostEvidence(f, m, seat.Incarnate); lost {
				out = append(out, e)
				continue
			}
		}
		for _, e := range m.Evidence {
			// Gossip is a hint; what was asked for is a planned change.
			if s.World.Has(e.About) && e.Kind != phalanx.GossipDead && e.Kind != phalanx.Asked {
				out = append(out, e)
			}
		}
		a := m.Answer
		if a == nil || a.Generation != s.World.Generation {
			// One sealed member makes the generation dead, whoever asked for it and whatever became of the reason.
			if !f.Round.Asked && m.Sealed == s.World.Generation && !planted.On(planted.SealNoEvidence) {
				out = append(out, phalanx.Evidence{Kind: phalanx.Sealed, About: seat.Incarnate, Source: seat.Member, UnixNS: f.UnixNS, Detail: "sealed by an earlier leader"})
			}
			continue
		}
		short := f.Round.Planned && (f.Round.Late || !a.reached(s, f.Round.Boundary))
		if !f.Round.Asked && !planted.On(planted.SealNoEvidence) || short {
			e := phalanx.Evidence{Kind: phalanx.Sealed, About: seat.Incarnate, Source: seat.Member, UnixNS: f.UnixNS}
			if short {
				e.Detail = fmt.Sprintf("short of the boundary %d", f.Round.Boundary)
			}
			out = append(out, e)
		}
	}
	return out
}

// reached reports whether the member stands at the boundary or beyond, in the present generation.
func (a *Answer) reached(s *State, b phalanx.Step) bool {
	if planted.On(planted.BoundaryUnnamed) {
		return true
	}
	seat := s.World.SeatOf(a.Member)
	return seat != nil && a.Possession.stands(s, seat.Coordinate) && a.Possession.Label.Step >= b
}

// open makes the first world, or the next one when no member is left in the present one.
func (p Planner) open(s *State, f *Facts) Plan {
	if s.Spec == nil {
		return Plan{Why: "no trainer has said hello yet"}
	}
	if c := s.unheard(); c >= 0 && !f.Store.Known { // what is found there is compared with what all register
		return Plan{Why: fmt.Sprintf("nobody at coordinate %d has said hello yet", c)}
	}
	if !f.Store.Known {
		return Plan{Look: true, Why: "what the store holds is not known yet"}
	}
	if s.WantGroups() < s.MinGroups() {
		return Plan{Why: fmt.Sprintf("a full world has %d groups and %d are the minimum: no world fits; want more ranks or slots, or a lower minimum", s.WantGroups(), s.MinGroups())}
	}
	ready := p.spares(s, f, InitialFloor(s.GroupSize()))
	groups, want := completable(s, make([]int, s.GroupSize()), ready), s.WantGroups()*s.GroupSize()
	failed := 0 // they gave up: nobody waits for them
	for i := range f.Members {
		if f.Members[i].Failed {
			failed++
		}
	}
	if groups < s.WantGroups() && !((f.JoinClosed || len(ready)+failed >= want) && groups >= s.MinGroups()) {
		why := fmt.Sprintf("%d of %d members are ready", len(ready), want)
		if c := vacant(s, ready); c >= 0 && len(ready) >= s.GroupSize() {
			why += fmt.Sprintf(", and nobody at coordinate %d", c)
		}
		return Plan{Why: why}
	}
	if why := f.Store.OtherJob; why != "" && s.World.Generation.IsZero() {
		return Plan{Command: Halt{HaltReason{Kind: OtherJob, Words: why}, f.UnixNS}, Why: why}
	}
	floor, source := p.origin(s, f, true)
	if plan, ok := startsAnew(s, f, source); ok {
		return plan
	}
	ready = p.spares(s, f, floor)
	seats := assemble(s, nil, ready)
	if source.Kind == FromLive {
		var missing int
		if source.Holders, missing = donors(floor, seats, ready, p.outside(s, f, floor, Draining)); missing >= 0 {
			floor, source = p.origin(s, f, false)
		}
	}
	c := FormGeneration{Base: s.World.Generation, Floor: floor, Source: source, Cause: "start", Newest: floor.Step, UnixNS: f.UnixNS}
	c.World = p.world(s, floor, seats)
	if (source.Kind == FromSeed || source.Kind == FromWarmStart) && s.World.Generation.IsZero() {
		return Plan{Command: c, Why: fmt.Sprintf("%d members are ready", len(ready))}
	}
	c.Cause = fmt.Sprintf("resume from %s", source.Kind)
	return Plan{Command: Rewind{FormGeneration: c, Branch: s.Branch + 1, Unreadable: f.Store.Unreadable}, Why: c.Cause}
}

// origin is the newest state of the lineage of which every coordinate exists somewhere: with living trainers if live, in
// slabs, in the store, or in the seed.
func (p Planner) origin(s *State, f *Facts, live bool) (Floor, Source) {
	best, source := s.beginning(f)
	if pub := f.Store.Published; pub != nil && pub.Step > 0 && len(pub.Labels) == s.GroupSize() && s.OfLineage(pub.Labels[0]) {
		best, source = Floor{pub.Step, slices.Clone(pub.Labels)}, Source{Kind: FromStore, Commit: pub.Commit, Holders: slabsOf(s, f, pub.Labels)}
	}
	if floor, holders, ok := newestCopies(s, f, FromSlab); ok && floor.Step > best.Step {
		best, source = floor, Source{Kind: FromSlab, Holders: holders}
	}
	if floor, holders, ok := newestCopies(s, f, FromLive); live && ok && floor.Step >= best.Step && floor.Step > 0 {
		best, source = floor, Source{Kind: FromLive, Holders: holders}
	}
	return best, source
}

// startsAnew ends a job that could only begin anew although it has published: whether what was saved can be mended, or is given
// up, is for its operator to say.
func startsAnew(s *State, f *Facts, source Source) (Plan, bool) {
	n := s.NewestPublished()
	if source.Kind != FromSeed && source.Kind != FromWarmStart {
		return Plan{}, false
	}
	if n == nil && len(f.Store.Unreadable) == 0 {
		why := f.Store.Warm.Problem
		return Plan{Command: Halt{HaltReason{Kind: Misfit, Words: why}, f.UnixNS}, Why: why}, source.Kind == FromWarmStart && why != ""
	}
	why := fmt.Sprintf("none of the published checkpoints can be read (damaged: %d) and nobody holds a state in memory", len(f.Store.Unreadable))
	if n != nil {
		why += fmt.Sprintf("; the newest is step %d in %s", n.Step, n.Folder)
	}
	return Plan{Command: Halt{HaltReason{Kind: Unreadable, Words: why}, f.UnixNS}, Why: why}, true
}

// slabsOf are the connected members that hold some coordinate of a state in slabs. Who reads it from the store asks them first.
func slabsOf(s *State, f *Facts, labels []phalanx.Label) []phalanx.MemberID {
	var out []phalanx.MemberID
	for i := range f.Members {
		m := &f.Members[i]
		if m.Connected && !m.Dead && s.Member(m.Member) != nil && slices.ContainsFunc(m.Slabs, func(l phalanx.Label) bool { return slices.Contains(labels, l) }) {
			out = append(out, m.Member)
		}
	}
	slices.SortFunc(out, phalanx.CompareMemberIDs)
	return out
}

// newestCopies finds the newest step of the lineage of which connected members hold every coordinate, all made by one
// generation. Holders are named in member order.
func newestCopies(s *State, f *Facts, kind SourceKind) (Floor, []phalanx.MemberID, bool) {
	type have struct {
		label  phalanx.Label
		holder phalanx.MemberID
	}
	var all []have
	for i := range f.Members {
		m := &f.Members[i]
		if !m.Connected || m.Dead {
			continue
		}
		if kind == FromLive {
			if m.Possession.standsAt(m.Possession.Label) && !m.Silent && !m.Failed {
				all = append(all, have{m.Possession.Label, m.Member})
			}
			continue
		}
		for _, l := range m.Slabs {
			all = append(all, have{l, m.Member})
		}
	}
	all = slices.DeleteFunc(all, func(h have) bool { return !s.OfLineage(h.label) && !planted.On(planted.RewindAnywhere) })
	slices.SortStableFunc(all, func(a, b have) int {
		if a.label.Step != b.label.Step {
			return int(b.label.Step) - int(a.label.Step)
		}
		return b.label.Generation.Compare(a.label.Generation)
	})
	for i := range all {
		at := all[i].label
		floor := Floor{at.Step, make([]phalanx.Label, s.GroupSize())}
		found := make([]bool, s.GroupSize())
		var holders []phalanx.MemberID
		for _, h := range all {
			if h.label.Step != at.Step || h.label.Generation != at.Generation || h.label.Coordinate < 0 || h.label.Coordinate >= len(found) {
				continue
			}
			if !found[h.label.Coordinate] {
				found[h.label.Coordinate], floor.Labels[h.label.Coordinate] = true, h.label
			}
			if floor.Labels[h.label.Coordinate] == h.label {
				holders = append(holders, h.holder)
			}
		}
		if !slices.Contains(found, false) {
			slices.SortFunc(holders, phalanx.CompareMemberIDs)
			return floor, slices.Compact(holders), true
		}
	}
	return Floor{}, nil, false
}

func (p Planner) world(s *State, floor Floor, seats []phalanx.Seat) phalanx.World {
	return phalanx.World{Generation: s.NextGeneration(floor), GroupSize: s.GroupSize(), SlotCount: slotCount(s), Seats: seats}
}
