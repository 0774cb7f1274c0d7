// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"errors"
	"fmt"

	"phalanx"
)

// Check reports what is wrong with a state, nil when every invariant holds. It is the assertion of tests and explorers: what
// Apply accepts keeps it.
func Check(s *State) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Version < versionBase || s.Version > FormatVersion || s.FeatureLevel > FormatVersion {
		wrong("version %d, feature level %d", s.Version, s.FeatureLevel)
	}
	if s.Spec == nil && (len(s.Members) > 0 || !s.World.Generation.IsZero()) {
		wrong("members or a world without a spec")
	}
	errs = append(errs, checkPhase(s)...)
	errs = append(errs, checkMembers(s)...)
	errs = append(errs, checkPins(s)...)
	if !s.World.Generation.IsZero() {
		errs = append(errs, checkSeats(s)...)
		errs = append(errs, checkFloor(s)...)
	}
	errs = append(errs, checkHistory(s)...)
	return errors.Join(errs...)
}

func checkPhase(s *State) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if (s.Phase == Halted) != (s.Halt != nil) {
		wrong("phase %s with halt reason %v", s.Phase, s.Halt)
	}
	if (s.Phase == Finished) != (s.Done != nil) {
		wrong("phase %s with done %v", s.Phase, s.Done)
	}
	if s.Phase == Running && !s.Activated || s.Phase == Forming && s.Activated {
		wrong("phase %s, activated %v", s.Phase, s.Activated)
	}
	if s.Phase == Idle && !s.World.Generation.IsZero() || (s.Phase == Forming || s.Phase == Running) && s.World.Generation.IsZero() {
		wrong("phase %s in generation %s", s.Phase, s.World.Generation)
	}
	if (s.Phase == Forming || s.Phase == Running) && s.World.Size() == 0 {
		wrong("phase %s with an empty world", s.Phase)
	}
	return errs
}

func checkMembers(s *State) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seated := make(map[phalanx.Incarnate]bool, len(s.World.Seats))
	for _, seat := range s.World.Seats {
		seated[seat.Incarnate] = true
	}
	for i, m := range s.Members {
		if i > 0 && phalanx.CompareMemberIDs(s.Members[i-1].Member, m.Member) >= 0 {
			wrong("member %s is not after %s", m.Member, s.Members[i-1].Member)
		}
		if !m.Member.Valid() || m.Incarnation == 0 {
			wrong("member %s is not valid", m.Incarnate)
		}
		if m.Coordinate < -1 || m.Coordinate >= s.GroupSize() {
			wrong("%s has coordinate %d in groups of %d", m.Incarnate, m.Coordinate, s.GroupSize())
		}
		inWorld := seated[m.Incarnate]
		switch m.State {
		case Active:
			if !inWorld {
				wrong("%s is active and not in the world", m.Incarnate)
			}
		case Draining:
			if !inWorld && !s.donates(m.Member) {
				wrong("%s is draining, not in the world and nobody's donor", m.Incarnate)
			}
		case Joining, Spare, Quarantined, Gone:
			if inWorld {
				wrong("%s is %s and in the world", m.Incarnate, m.State)
			}
		default:
			wrong("%s is %s", m.Incarnate, m.State)
		}
		if m.State == Quarantined && !m.Quarantine || m.State != Quarantined && m.State != Gone && m.State != Draining && m.Quarantine {
			wrong("%s is %s, quarantine %v", m.Incarnate, m.State, m.Quarantine)
		}
	}
	return errs
}

func checkSeats(s *State) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	w, g := &s.World, s.GroupSize()
	if w.GroupSize != g || w.Size()%g != 0 {
		wrong("%d seats in groups of %d, the job has groups of %d", w.Size(), w.GroupSize, g)
		return errs
	}
	next := phalanx.Slot(0)
	seen := map[phalanx.MemberID]bool{}
	for r, seat := range w.Seats {
		if int(seat.Rank) != r || seat.Group != r/g || seat.Coordinate != r%g {
			wrong("seat %d is rank %d, group %d, coordinate %d", r, seat.Rank, seat.Group, seat.Coordinate)
		}
		if seen[seat.Member] {
			wrong("%s has two seats", seat.Member)
		}
		seen[seat.Member] = true
		if m := s.Member(seat.Member); m == nil || m.Incarnation != seat.Incarnation || m.State != Active && m.State != Draining {
			wrong("seat %d is %s, which is not active or draining", r, seat.Incarnate)
		}
		if r%g != 0 {
			if seat.Slots != w.Seats[r-1].Slots {
				wrong("rank %d has other slots than its group", r)
			}
			continue
		}
		if seat.Slots.First != next || seat.Slots.Len() <= 0 {
			wrong("group %d has slots %v, the next one is %d", seat.Group, seat.Slots, next)
		}
		next = seat.Slots.End
	}
	if w.Size() > 0 && int(next) != slotCount(s) {
		wrong("%d of %d slots are dealt", next, slotCount(s))
	}
	if w.Groups() < s.MinGroups() && s.Phase != Halted {
		wrong("%d groups are fewer than the minimum of %d and the job is not halted", w.Groups(), s.MinGroups())
	}
	return errs
}

func checkFloor(s *State) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(s.Floor.Labels) != s.GroupSize() {
		wrong("the floor has %d labels in groups of %d", len(s.Floor.Labels), s.GroupSize())
	}
	for c, l := range s.Floor.Labels {
		if l.Step != s.Floor.Step || l.Coordinate != c || l.Generation != s.Floor.Labels[0].Generation {
			wrong("floor label %s at coordinate %d of step %d", l, c, s.Floor.Step)
		}
		if (l.Step == 0) != l.Generation.IsZero() {
			wrong("floor label %s: step 0 alone is made by no generation", l)
		}
		if !l.Generation.Less(s.World.Generation) {
			wrong("floor label %s was not made before %s", l, s.World.Generation)
		}
		if !s.OfLineage(l) {
			wrong("floor label %s is not of the lineage", l)
		}
	}
	for _, id := range s.Source.Holders {
		if m := s.Member(id); m == nil {
			wrong("source %s names %s, which is not known", s.Source.Kind, id)
		}
	}
	return errs
}

func checkHistory(s *State) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, t := range s.Transitions {
		if i > 0 && !s.Transitions[i-1].Generation.Less(t.Generation) {
			wrong("transition to %s after %s", t.Generation, s.Transitions[i-1].Generation)
		}
	}
	if n := len(s.Transitions); n > MaxTransitions || n > 0 && s.Transitions[n-1].Generation != s.World.Generation {
		wrong("%d transitions, the last one is not to the current generation", n)
	}
	for i, r := range s.Rewinds {
		if i == 0 {
			continue
		}
		if old := s.Rewinds[i-1]; !old.Generation.Less(r.Generation) || old.Branch >= r.Branch || old.Source >= r.Source {
			wrong("rewind to branch %d at step %d in %s after branch %d at step %d in %s", r.Branch, r.Source, r.Generation, old.Branch, old.Source, old.Generation)
		}
	}
	if n := len(s.Rewinds); n > MaxRewinds || n == 0 && s.Branch != 0 || n > 0 && s.Rewinds[n-1].Branch != s.Branch {
		wrong("branch %d, and the records of %d rewinds do not end with it", s.Branch, n)
	}
	for i, p := range s.Published {
		if i > 0 && s.Published[i-1].Commit >= p.Commit {
			wrong("published commit %d after %d", p.Commit, s.Published[i-1].Commit)
		}
		for c, l := range p.Labels {
			if l.Step != p.Step || l.Coordinate != c {
				wrong("published label %s at coordinate %d of step %d", l, c, p.Step)
			}
		}
	}
	local, memory := s.Levels.Local, s.Levels.Memory
	for _, r := range []*Reached{local, memory} {
		if r != nil && (r.Step == 0 || r.Generation.IsZero() || s.World.Generation.Less(r.Generation) || !s.OfLineage(r.label())) {
			wrong("level of %s, which is not of the lineage", r.label())
		}
	}
	if memory != nil && (local == nil || local.Step < memory.Step) {
		wrong("step %d is in the memory of two hosts and not in that of one", memory.Step)
	}
	if len(s.Published) > MaxPublished {
		wrong("%d published checkpoints are named", len(s.Published))
	}
	return errs
}

// CheckStep reports what one command may never do, nil when it did not: a generation only grows, the floor never falls but
// by a rewind, a life of a member is never used again and never comes back.
func CheckStep(before, after *State) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if after.Seq != before.Seq+1 {
		wrong("sequence %d after %d", after.Seq, before.Seq)
	}
	if after.World.Generation.Less(before.World.Generation) {
		wrong("generation %s after %s", after.World.Generation, before.World.Generation)
	}
	formed := before.World.Generation.Less(after.World.Generation)
	rewound := after.Branch > before.Branch
	if rewound && !formed || after.Branch < before.Branch {
		wrong("branch %d after %d without a rewind of its own generation", after.Branch, before.Branch)
	}
	for _, r := range before.Rewinds {
		if corner := r.corner(); r.abandons(corner) && after.OfLineage(corner) {
			wrong("%s was abandoned and is of the lineage again", corner)
		}
	}
	if !rewound && after.Floor.Step < before.Floor.Step {
		wrong("the floor fell from %d to %d", before.Floor.Step, after.Floor.Step)
	}
	if !rewound && after.Floor.Step == before.Floor.Step && len(before.Floor.Labels) > 0 {
		for c, l := range before.Floor.Labels {
			if after.Floor.Label(c) != l {
				wrong("the floor %d changed its label from %s to %s", after.Floor.Step, l, after.Floor.Label(c))
			}
		}
	}
	if !formed && after.Floor.Step != before.Floor.Step {
		wrong("the floor moved within %s", after.World.Generation)
	}
	for _, old := range before.Members {
		m := after.Member(old.Member)
		switch {
		case m == nil && (old.State != Gone || old.Quarantine || len(after.Members) < MinGone):
			wrong("%s is forgotten", old.Incarnate)
		case m == nil:
		case m.Incarnation < old.Incarnation:
			wrong("%s came back after %s", m.Incarnate, old.Incarnate)
		case m.Incarnation == old.Incarnation && old.State == Gone && m.State != Gone:
			wrong("%s was gone and is %s", m.Incarnate, m.State)
		case m.Incarnation > old.Incarnation && old.State != Gone && old.State != Quarantined:
			wrong("%s took the place of %s, which was %s", m.Incarnate, old.Incarnate, old.State)
		}
	}
	for _, pair := range [][2]*Reached{{before.Levels.Local, after.Levels.Local}, {before.Levels.Memory, after.Levels.Memory}} {
		if old, now := pair[0], pair[1]; old != nil && (now == nil || now.Step < old.Step) && after.OfLineage(old.label()) {
			wrong("level of step %d fell", old.Step)
		}
	}
	if before.Phase == Finished && after.Phase != Finished || before.ended() && !after.ended() && after.Phase != Finished && !resumed(before, after) {
		wrong("phase %s after %s", after.Phase, before.Phase)
	}
	return errors.Join(errs...)
}

// resumed reports whether after looks like before once the job was started again: nothing but the halt has changed.
func resumed(before, after *State) bool {
	return after.World.Generation == before.World.Generation && after.Kill == nil && after.Branch == before.Branch
}

// corner is the newest generation and the lowest step that r abandons: who refuses it refuses all that r does.
func (r RewindRecord) corner() phalanx.Label {
	l := phalanx.Label{Step: r.Source + 1, Generation: r.Generation}
	if l.Generation.Number > 0 {
		l.Generation.Number--
	}
	return l
}
