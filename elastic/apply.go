// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"errors"
	"fmt"
	"slices"

	"phalanx"
	"phalanx/internal/planted"
)

// Sentinels of Apply. A refused command leaves the state as it was, but for Seq.
var (
	// ErrIllegal: the command does not fit the phase of the job.
	ErrIllegal = errors.New("command does not fit the phase")
	// ErrBase: the command was computed for another generation than the current one.
	ErrBase = errors.New("base is not the current generation")
	// ErrFloor: the command would lower the floor.
	ErrFloor = errors.New("the floor never falls")
	// ErrWorld: the world is not made of whole groups of living members.
	ErrWorld = errors.New("world is not made of whole groups of living members")
	// ErrLineage: the label is not of the lineage.
	ErrLineage = errors.New("label is not of the lineage")
	// ErrMember: the member or its incarnation is not the one the log knows.
	ErrMember = errors.New("member or incarnation does not fit the log")
)

// Apply returns the state after the command. A refused command returns an error and a state that differs in Seq alone: every
// daemon refuses the same commands.
func (s *State) Apply(c Command) (*State, error) {
	t := s.clone()
	t.Seq++
	err := t.apply(c)
	if err != nil {
		refused := *s
		refused.Seq++
		return &refused, fmt.Errorf("apply %s in phase %s: %w", c.kind(), s.Phase, err)
	}
	t.forget()
	return t, nil
}

func (s *State) apply(c Command) error {
	if s.Phase == Finished {
		if p, ok := c.(PublishCheckpoint); ok {
			return s.publish(p)
		}
		return ErrIllegal
	}
	switch c := c.(type) {
	case AdmitMembers:
		return s.admit(c)
	case EvictMembers:
		return s.evictOutside(c)
	case FormGeneration:
		return s.form(c)
	case Rewind:
		return s.rewind(c)
	case Activate:
		return s.activate(c)
	case PublishCheckpoint:
		return s.publish(c)
	case ReachLevel:
		return s.reach(c)
	case Quarantine:
		return s.mark(c.Member, Quarantined, c.Evidence.String())
	case Lift:
		return s.lift(c)
	case Drain:
		return s.mark(c.Member, Draining, c.Why)
	case Resize:
		s.Policy.Want = c.Want
		if c.Want < 1 || s.WantGroups() < s.MinGroups() {
			return fmt.Errorf("resize to %d ranks, of which %d are the minimum: %w", c.Want, s.Policy.Min, ErrIllegal)
		}
		return nil
	case Halt:
		if s.ended() || !c.Reason.Kind.Ends() {
			return fmt.Errorf("halt for %q: %w", c.Reason.Kind, ErrIllegal)
		}
		reason := c.Reason
		reason.UnixNS = c.UnixNS
		s.Phase, s.Halt = Halted, &reason
		return nil
	case Resume:
		return s.resume(c)
	case Done:
		return s.done(c)
	}
	return ErrUnknownCommand
}

// resume makes an ended job one that waits for members. What killed it is forgotten: it was looked at, or is met again.
func (s *State) resume(c Resume) error {
	if !s.ended() {
		return ErrIllegal
	}
	s.Kill = nil
	if c.Policy != nil {
		s.Policy = *c.Policy
	}
	s.Phase, s.Halt = Halted, &HaltReason{Kind: BelowMinimum, Words: "started again", UnixNS: c.UnixNS}
	if s.World.Generation.IsZero() {
		s.Phase, s.Halt = Idle, nil
	}
	return nil
}

// ended reports whether the run is over without being done.
func (s *State) ended() bool { return s.Phase == Halted && s.Halt != nil && s.Halt.Kind.Ends() }

// EndsRun reports whether the job is over, and why, for a run that was started at the given time in Unix nanoseconds. An end
// that was decided before is not the end of that run, unless the job is done.
func (s *State) EndsRun(started int64) (why string, over bool) {
	switch {
	case s.Phase == Finished:
		return "the job is done", true
	case s.ended() && s.Halt.UnixNS >= started:
		return s.Halt.Words, true
	}
	return "", false
}

func (s *State) admit(c AdmitMembers) error {
	if s.Spec == nil {
		if c.Spec == nil || c.Policy == nil {
			return fmt.Errorf("the first admission must bring spec and policy: %w", ErrIllegal)
		}
		if err := c.Spec.Validate(); err != nil {
			return err
		}
		spec := *c.Spec
		s.Spec, s.State, s.Policy, s.WarmStart = &spec, c.State, *c.Policy, c.WarmStart
		if c.WarmStart != nil {
			s.Version, s.FeatureLevel = versionPinned, versionPinned
		}
	}
	for _, a := range c.Members {
		if err := s.pin(a); err != nil {
			return err
		}
		m := Member{Incarnate: a.Incarnate, State: Joining, Host: a.Host, Coordinate: -1, Pin: a.Pin}
		old := s.Member(a.Member)
		switch {
		case !a.Member.Valid() || a.Incarnation == 0:
			return fmt.Errorf("admit %s: %w", a.Incarnate, ErrMember)
		case old == nil:
			s.Members = append(s.Members, m)
			slices.SortFunc(s.Members, func(a, b Member) int { return phalanx.CompareMemberIDs(a.Member, b.Member) })
		case old.Incarnation >= a.Incarnation:
			return fmt.Errorf("admit %s: incarnation %d is known and never used again: %w", a.Incarnate, old.Incarnation, ErrMember)
		case old.State != Gone && old.State != Quarantined:
			return fmt.Errorf("admit %s: incarnation %d is %s: %w", a.Incarnate, old.Incarnation, old.State, ErrMember)
		case old.Quarantine:
			m.State, m.Why, m.Quarantine = Quarantined, old.Why, true
			*old = m
		default:
			*old = m
		}
	}
	s.sortOutSpares()
	return nil
}

// sortOutSpares calls joining members spares while the world is full.
func (s *State) sortOutSpares() {
	room := s.WantGroups()*s.GroupSize() - s.World.Size()
	for i := range s.Members {
		m := &s.Members[i]
		if m.State != Joining {
			continue
		}
		if s.World.Generation.IsZero() || room > 0 {
			room--
			continue
		}
		m.State = Spare
	}
}

func (s *State) evictOutside(c EvictMembers) error {
	for _, e := range c.Evictions {
		if s.World.Has(e.Incarnate) {
			return fmt.Errorf("evict %s: it is in the world; only a new generation removes it: %w", e.Incarnate, ErrIllegal)
		}
		if err := s.gone(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) gone(e Eviction) error {
	m := s.Member(e.Member)
	if m == nil || m.Incarnation != e.Incarnation || m.State == Gone {
		return fmt.Errorf("evict %s: %w", e.Incarnate, ErrMember)
	}
	m.State, m.Why, m.Coordinate, m.Went = Gone, e.Evidence.String(), -1, s.Seq
	return nil
}

func (s *State) form(c FormGeneration) error {
	if err := s.based(&c); err != nil {
		return err
	}
	if !c.Base.IsZero() && len(c.Seals) == 0 && c.World.Size() > 0 {
		return fmt.Errorf("generation %s rests on no seal of %s; only a rewind may: %w", c.World.Generation, c.Base, ErrBase)
	}
	if c.Floor.Step < s.Floor.Step && !planted.On(planted.FloorForgotten) {
		return fmt.Errorf("resume at %d below %d: %w", c.Floor.Step, s.Floor.Step, ErrFloor)
	}
	if c.Floor.Step == s.Floor.Step && len(s.Floor.Labels) > 0 && !slices.Equal(c.Floor.Labels, s.Floor.Labels) {
		return fmt.Errorf("resume at %d with other labels: %w", c.Floor.Step, ErrFloor)
	}
	for _, l := range c.Floor.Labels {
		if c.Floor.Step > s.Floor.Step && l.Generation != c.Base {
			return fmt.Errorf("resume at %s, which %s did not make: %w", l, c.Base, ErrLineage)
		}
	}
	return s.seat(c, s.Branch, false)
}

func (s *State) rewind(c Rewind) error {
	if err := s.based(&c.FormGeneration); err != nil {
		return err
	}
	if c.Branch != s.Branch+1 {
		return fmt.Errorf("branch %d after %d: %w", c.Branch, s.Branch, ErrIllegal)
	}
	for _, l := range c.Floor.Labels {
		if !s.OfLineage(l) && !planted.On(planted.RewindAnywhere) {
			return fmt.Errorf("rewind to %s: %w", l, ErrLineage)
		}
	}
	for _, p := range s.Published {
		if planted.On(planted.RewindBelowPublished) {
			break
		}
		if p.Step > c.Floor.Step && len(p.Labels) > 0 && s.OfLineage(p.Labels[0]) && !slices.Contains(c.Unreadable, p.Commit) {
			return fmt.Errorf("rewind to step %d below the published step %d: %w", c.Floor.Step, p.Step, ErrFloor)
		}
	}
	if err := s.seat(c.FormGeneration, c.Branch, true); err != nil {
		return err
	}
	s.recordRewind(RewindRecord{c.World.Generation, c.Branch, c.Floor.Step, c.Source.Kind, c.Cause})
	s.abandonLevels()
	return nil
}

// based checks that c was computed for the current generation and rests on seals of it alone.
func (s *State) based(c *FormGeneration) error {
	if planted.On(planted.BaseUnchecked) {
		c.World.Generation = s.NextGeneration(c.Floor)
		return nil
	}
	if c.Base != s.World.Generation || c.World.Generation != s.NextGeneration(c.Floor) {
		return fmt.Errorf("generation %s on base %s while %s is current: %w", c.World.Generation, c.Base, s.World.Generation, ErrBase)
	}
	for _, i := range c.Seals {
		if !s.World.Has(i) {
			return fmt.Errorf("rests on a seal of %s, which is not in %s: %w", i, c.Base, ErrBase)
		}
	}
	return nil
}

// seat makes c's world the current one.
func (s *State) seat(c FormGeneration, branch int, rewind bool) error {
	if s.ended() {
		return fmt.Errorf("the job has ended (%s): %w", s.Halt.Words, ErrIllegal)
	}
	for _, e := range c.Evictions {
		if err := s.gone(e); err != nil {
			return err
		}
		s.remember(e.Evidence)
	}
	if err := s.checkWorld(c); err != nil {
		return err
	}
	old := s.World
	s.World, s.Branch, s.Floor, s.Source = c.World.Clone(), branch, c.Floor, c.Source
	s.Activated, s.Halt, s.Phase = false, nil, Forming
	if c.Halt != nil {
		halt := *c.Halt
		halt.UnixNS = c.UnixNS
		s.Phase, s.Halt = Halted, &halt
	}
	s.moveMembers(old)
	t := Transition{Generation: c.World.Generation, Cause: c.Cause, Planned: c.Planned, Rewind: rewind, Branch: branch,
		Evidence: c.Evidence, ResumeStep: c.Floor.Step, Newest: c.Newest, UnixNS: c.UnixNS}
	for _, seat := range c.World.Seats {
		t.Members = append(t.Members, seat.Member)
		if c.Source.Kind != FromSeed && !(c.Source.Kind == FromLive && slices.Contains(c.Source.Holders, seat.Member)) {
			t.Healing = append(t.Healing, seat.Member)
		}
	}
	for _, e := range c.Evictions {
		t.Lost = append(t.Lost, e.Incarnate)
	}
	s.Transitions = append(s.Transitions, t)
	if n := len(s.Transitions) - MaxTransitions; n > 0 {
		s.Transitions = slices.Delete(s.Transitions, 0, n)
	}
	return nil
}

// moveMembers gives the members the states that the new world means.
func (s *State) moveMembers(old phalanx.World) {
	for i := range s.Members {
		m := &s.Members[i]
		seat := s.World.SeatOf(m.Member)
		switch {
		case m.State == Gone:
		case seat != nil && m.State == Draining:
			m.Coordinate = seat.Coordinate // asked while this world was being made: it leaves with the next one
		case seat != nil:
			m.State, m.Coordinate, m.Why = Active, seat.Coordinate, ""
		case m.State == Draining && s.donates(m.Member):
			// It alone possesses a coordinate: it leaves when the others stand. Nobody heals in a halted world, which may need it
			// to go on, so there the drain is void.
			if s.Phase == Halted && m.Quarantine {
				m.leave(s.Seq)
			} else if s.Phase == Halted {
				m.State, m.Drained = Spare, false
			}
		case m.State == Draining:
			m.leave(s.Seq)
		case old.Has(m.Incarnate):
			m.State = Spare // a leftover of a broken group keeps its coordinate and shard
		}
	}
	s.sortOutSpares()
}

// donates reports whether others may still read the state of the floor from this member.
func (s *State) donates(id phalanx.MemberID) bool {
	return !s.Activated && s.Source.Kind == FromLive && slices.Contains(s.Source.Holders, id)
}

// leave ends a drain by the entry seq.
func (m *Member) leave(seq uint64) {
	m.State, m.Coordinate, m.Went = Gone, -1, seq
	if m.Quarantine {
		m.State, m.Went = Quarantined, 0
	}
}

// remember keeps the slot in work of the trainer that died last.
func (s *State) remember(e phalanx.Evidence) {
	if e.Kind == phalanx.TrainerExited && e.Working {
		s.Kill = &Kill{e.Step, e.Slot, e.About}
	}
}

func (s *State) checkWorld(c FormGeneration) error {
	g := s.GroupSize()
	w := &c.World
	if w.GroupSize != g || w.SlotCount != slotCount(s) || len(w.Seats)%g != 0 || len(c.Floor.Labels) != g {
		return fmt.Errorf("%d seats in groups of %d, %d slots, %d labels: %w", len(w.Seats), w.GroupSize, w.SlotCount, len(c.Floor.Labels), ErrWorld)
	}
	for coordinate, l := range c.Floor.Labels {
		if l.Step != c.Floor.Step || l.Coordinate != coordinate || l.Generation != c.Floor.Labels[0].Generation || (l.Step == 0) != l.Generation.IsZero() {
			return fmt.Errorf("floor label %s at coordinate %d of step %d: %w", l, coordinate, c.Floor.Step, ErrFloor)
		}
	}
	if w.Groups() < s.MinGroups() && c.Halt == nil {
		return fmt.Errorf("%d groups are fewer than the minimum of %d: %w", w.Groups(), s.MinGroups(), ErrWorld)
	}
	var deal []phalanx.SlotRange
	if w.Groups() > 0 {
		var err error
		if deal, err = phalanx.DealSlots(w.SlotCount, w.Groups()); err != nil {
			return fmt.Errorf("%w: %w", ErrWorld, err)
		}
	}
	seen := map[phalanx.MemberID]bool{}
	for r, seat := range w.Seats {
		m := s.Member(seat.Member)
		if m == nil || m.Incarnation != seat.Incarnation || m.State == Gone || m.State == Quarantined || seen[seat.Member] {
			return fmt.Errorf("seat %d is %s: %w", r, seat.Incarnate, ErrWorld)
		}
		seen[seat.Member] = true
		if int(seat.Rank) != r || seat.Group != r/g || seat.Coordinate != r%g || seat.Slots != deal[r/g] || !m.Pin.Fits(seat.Coordinate) {
			return fmt.Errorf("seat %d of %s is out of place: %w", r, seat.Incarnate, ErrWorld)
		}
	}
	return nil
}

func (s *State) activate(c Activate) error {
	if c.Generation != s.World.Generation {
		return ErrBase
	}
	if s.Phase != Forming || s.Activated {
		return ErrIllegal
	}
	s.Phase, s.Activated = Running, true
	for i := range s.Members {
		if m := &s.Members[i]; m.State == Draining && !s.World.Has(m.Incarnate) {
			m.leave(s.Seq) // a step was committed: everybody has healed
		}
	}
	if n := len(s.Transitions); n > 0 && s.Transitions[n-1].Generation == c.Generation {
		seconds := c.Seconds
		s.Transitions[n-1].Seconds = &seconds
	}
	return nil
}

func (s *State) publish(c PublishCheckpoint) error {
	if s.World.Generation.IsZero() || len(c.Labels) != s.GroupSize() {
		return ErrIllegal
	}
	for i, l := range c.Labels {
		if l.Step != c.Step || l.Coordinate != i || s.World.Generation.Less(l.Generation) || !s.OfLineage(l) {
			return fmt.Errorf("publish %s: %w", l, ErrLineage)
		}
	}
	if n := len(s.Published); n > 0 && s.Published[n-1].Commit >= c.Commit {
		return fmt.Errorf("publish commit %d after %d: %w", c.Commit, s.Published[n-1].Commit, ErrIllegal)
	}
	s.Published = append(s.Published, c.Published)
	if n := len(s.Published) - MaxPublished; n > 0 {
		s.Published = slices.Delete(s.Published, 0, n)
	}
	return nil
}

func (s *State) mark(id phalanx.MemberID, to MemberState, why string) error {
	m := s.Member(id)
	if m == nil || m.State == Gone && to == Draining {
		return fmt.Errorf("%s: %w", id, ErrMember)
	}
	m.Quarantine = m.Quarantine || to == Quarantined
	m.Drained = m.Drained || to == Draining
	switch {
	case m.State != Gone && (s.World.Has(m.Incarnate) || s.Phase == Forming && s.donates(m.Member)):
		to = Draining // only the next generation takes it out of the world, and the end of its heals out of service
	case to == Draining:
		to, m.Coordinate, m.Went = Gone, -1, s.Seq
	case m.State == Gone:
		to = Gone // its next life is admitted into quarantine
	}
	m.State, m.Why = to, why
	return nil
}

func (s *State) lift(c Lift) error {
	m := s.Member(c.Member)
	if m == nil || !m.Quarantine {
		return fmt.Errorf("%s is not quarantined: %w", c.Member, ErrMember)
	}
	m.Quarantine = false
	if m.State == Quarantined {
		m.State, m.Why, m.Went = Gone, c.Why, s.Seq // its next incarnation is admitted like any other
	}
	return nil
}

func (s *State) done(c Done) error {
	if s.Phase != Running && s.Phase != Forming || s.Spec == nil || c.Step != s.Spec.LastStep {
		return ErrIllegal
	}
	s.Phase, s.Done = Finished, &c
	return nil
}
