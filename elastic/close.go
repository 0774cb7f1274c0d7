// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"

	"phalanx"
	"phalanx/internal/planted"
)

// close decides the next generation once the seal round is over: each member of the world has answered, is proven dead or
// has been silent for too long.
func (p Planner) close(s *State, f *Facts, evidence []phalanx.Evidence) Plan {
	g := s.World.Generation
	var answers []Answer
	allDead := true
	for _, seat := range s.World.Seats {
		m := f.Fact(seat.Member)
		switch {
		case m != nil && m.Incarnation == seat.Incarnation && m.Answer != nil && m.Answer.Generation == g:
			answers = append(answers, *m.Answer)
			allDead = false
		case m != nil && (m.Incarnation > seat.Incarnation || m.Dead && !(m.InGrace && m.Possession.Trainer)):
		case m != nil && m.Silent:
			allDead = false
		default:
			return Plan{Why: fmt.Sprintf("waits for the seal of %s", seat.Member)}
		}
	}
	if len(answers) == 0 {
		if !allDead && !f.LeaseOut {
			return Plan{Why: "nobody of the world answers; waits for its lease to run out"}
		}
		return p.rewind(s, f, evidence, nil, s.Floor, s.Floor.Step)
	}
	return p.conclude(s, f, evidence, answers)
}

// conclude makes the next generation from a non-empty set of answers, or opens a branch when a coordinate of the resume step
// is possessed by nobody.
func (p Planner) conclude(s *State, f *Facts, evidence []phalanx.Evidence, answers []Answer) Plan {
	floor, newest, why, err := ResumeStep(s, answers)
	if err != nil {
		return Plan{Why: err.Error()}
	}
	c, missing := p.formation(s, f, evidence, answers, floor)
	c.Newest = newest
	if missing < 0 {
		return Plan{Command: c, Why: why}
	}
	for _, seat := range s.World.Seats {
		m := f.Fact(seat.Member)
		if m == nil || m.Silent && !m.Dead && !f.LeaseOut && m.Incarnation == seat.Incarnation && m.Answer == nil {
			return Plan{Why: fmt.Sprintf("nobody possesses coordinate %d of step %d; asks %s on", missing, floor.Step, seat.Member)}
		}
	}
	return p.rewind(s, f, evidence, answers, floor, newest)
}

// formation is the next generation at the given floor: survivors, then spares. Members without an answer are not in it. It
// returns the first coordinate of the floor that nobody could supply, -1 when all can be had.
func (p Planner) formation(s *State, f *Facts, evidence []phalanx.Evidence, answers []Answer, floor Floor) (FormGeneration, int) {
	blamed := outvoted(s, f, evidence, answers)
	spoiled := spoilers(s, evidence, blamed, answers)
	evidence = slices.Concat(blamed, evidence)
	c := FormGeneration{Base: s.World.Generation, Floor: floor, Evidence: evidence, UnixNS: f.UnixNS}
	for i := range answers {
		c.Seals = append(c.Seals, answers[i].Incarnate)
	}
	var survivors, leavers []candidate
	for _, seat := range s.World.Seats {
		a := answerOf(answers, seat.Incarnate)
		m, known := f.Fact(seat.Member), s.Member(seat.Member)
		lost := a == nil || !a.Possession.Trainer || accused(evidence, seat.Incarnate)
		lost = lost || m != nil && (m.Dead || m.Failed) && !m.InGrace
		lost = lost || slices.ContainsFunc(spoiled, func(e phalanx.Evidence) bool { return e.About == seat.Incarnate })
		if lost {
			c.Evictions = append(c.Evictions, Eviction{seat.Incarnate, bestEvidence(evidence, seat.Incarnate, f)})
			continue
		}
		x := candidate{Incarnate: seat.Incarnate, coordinate: seat.Coordinate, holds: a.Possession.Possesses(floor.Label(seat.Coordinate))}
		if known != nil && known.State == Draining {
			leavers = append(leavers, x)
			continue
		}
		survivors = append(survivors, x)
	}
	spares := p.spares(s, f, floor)
	seats := assemble(s, survivors, spares)
	c.World = p.world(s, floor, seats)
	holders, missing := donors(floor, seats, slices.Concat(survivors, spares), append(leavers, p.outside(s, f, floor, Draining)...))
	c.Source = Source{Kind: FromLive, Holders: holders}
	if initial(floor.Label(0)) {
		_, c.Source = s.beginning(f)
	}
	if len(c.Evidence) == 0 && !f.Round.Planned {
		c.Evidence = slices.Clone(f.Reasons) // it accuses nobody any more
	}
	c.Cause = cause(c.Evictions, c.Evidence)
	c.Halt = p.halt(s, c)
	return c, missing
}

func answerOf(answers []Answer, who phalanx.Incarnate) *Answer {
	i := slices.IndexFunc(answers, func(a Answer) bool { return a.Incarnate == who })
	if i < 0 {
		return nil
	}
	return &answers[i]
}

// donors names those who possess a coordinate of the floor and keep it: in the world at their own coordinate, or outside. Of
// those who leave, only the ones are named that alone possess a coordinate: they serve from outside until the others stand.
// It returns the first coordinate that has none, -1 when all have one; the seed supplies step 0.
func donors(floor Floor, seats []phalanx.Seat, stay, leave []candidate) ([]phalanx.MemberID, int) {
	var names []phalanx.MemberID
	found := make([]bool, len(floor.Labels))
	for _, x := range stay {
		i := slices.IndexFunc(seats, func(seat phalanx.Seat) bool { return seat.Member == x.Member })
		if planted.On(planted.NoCoordinate) && i >= 0 {
			x.coordinate = seats[i].Coordinate
		}
		if !x.holds || i >= 0 && seats[i].Coordinate != x.coordinate {
			continue
		}
		names, found[x.coordinate] = append(names, x.Member), true
	}
	without := slices.Clone(found)
	for _, x := range leave {
		if x.holds && !without[x.coordinate] && len(seats) > 0 {
			names, found[x.coordinate] = append(names, x.Member), true
		}
	}
	slices.SortFunc(names, phalanx.CompareMemberIDs)
	if floor.Step == 0 {
		return names, -1
	}
	return names, slices.Index(found, false)
}

// halt says why the formation may not vote, nil when it may.
func (p Planner) halt(s *State, c FormGeneration) *HaltReason {
	for _, e := range c.Evictions {
		v := e.Evidence
		if s.Kill != nil && v.Kind == phalanx.TrainerExited && v.Working && s.Kill.Step == v.Step && s.Kill.Slot == v.Slot {
			return &HaltReason{Kind: Poison, Words: fmt.Sprintf("slot %d of step %d killed %s and then %s; look at these samples, or skip them by a rewind", v.Slot, v.Step, s.Kill.Who, e.Incarnate)}
		}
	}
	if groups := c.World.Groups(); groups < s.MinGroups() {
		return &HaltReason{Kind: BelowMinimum, Words: fmt.Sprintf("%d whole groups are left of at least %d", groups, s.MinGroups())}
	}
	return nil
}

// rewind opens a new branch at the newest step of which every coordinate exists somewhere. resume is what the answers
// promise, which nobody can supply.
func (p Planner) rewind(s *State, f *Facts, evidence []phalanx.Evidence, answers []Answer, resume Floor, newest phalanx.Step) Plan {
	if !f.Store.Known {
		return Plan{Look: true, Why: "nobody possesses the floor; what the store holds is not known yet"}
	}
	floor, source := p.origin(s, f, true)
	c, missing := p.formation(s, f, evidence, answers, floor)
	if source.Kind == FromLive && missing >= 0 { // its holders are lost themselves
		floor, source = p.origin(s, f, false)
		c, _ = p.formation(s, f, evidence, answers, floor)
	}
	c.Newest = newest
	if c.World.Size() == 0 {
		// Nobody can read it yet: the branch stays, the members' next incarnations join and open the next one.
		c.Floor, c.Source = resume, Source{Kind: FromLive}
		c.World = p.world(s, resume, nil)
		return Plan{Command: c, Why: "no whole group is left"}
	}
	if plan, ok := startsAnew(s, f, source); ok {
		return plan
	}
	if source.Kind != FromLive {
		c.Source = source
	}
	c.Cause = fmt.Sprintf("nobody possesses the state any more: rewind to step %d from %s; %s", floor.Step, source.Kind, c.Cause)
	return Plan{Command: Rewind{FormGeneration: c, Branch: s.Branch + 1, Unreadable: f.Store.Unreadable}, Why: c.Cause}
}

// spares are the members outside of the world that can sit in the next one.
func (p Planner) spares(s *State, f *Facts, floor Floor) []candidate {
	return p.outside(s, f, floor, Spare, Joining)
}

// outside are the members outside of the world in one of the states that are there with a living trainer.
func (p Planner) outside(s *State, f *Facts, floor Floor, states ...MemberState) []candidate {
	var out []candidate
	for i := range s.Members {
		m := &s.Members[i]
		if !slices.Contains(states, m.State) || s.World.Has(m.Incarnate) {
			continue
		}
		x := f.Fact(m.Member)
		if x == nil || x.Incarnation != m.Incarnation || !x.Connected || x.Dead || x.Silent || !x.Possession.Trainer || x.Failed {
			continue
		}
		if x.Leaving && m.State != Draining || x.Apart && m.State != Draining { // who leaves still serves
			continue
		}
		c := candidate{Incarnate: m.Incarnate, pin: m.Pin, coordinate: x.Possession.held(floor)}
		c.holds = c.coordinate >= 0
		out = append(out, c)
	}
	return out
}

// accused reports whether the evidence is of a kind that removes the member itself.
func accused(evidence []phalanx.Evidence, who phalanx.Incarnate) bool {
	return slices.ContainsFunc(evidence, func(e phalanx.Evidence) bool {
		if e.About != who {
			return false
		}
		switch e.Kind {
		case phalanx.TrainerExited, phalanx.HostSilent, phalanx.Stalled, phalanx.Hung, phalanx.NotReady, phalanx.CutOff, phalanx.HealFailed:
			return true
		default:
			return false
		}
	})
}

func bestEvidence(evidence []phalanx.Evidence, who phalanx.Incarnate, f *Facts) phalanx.Evidence {
	for _, e := range evidence {
		if e.About == who {
			return e
		}
	}
	e := phalanx.Evidence{Kind: phalanx.Unreachable, About: who, Source: f.Leader, UnixNS: f.UnixNS, Detail: "gave no answer to the seal"}
	if m := f.Fact(who.Member); m != nil {
		if x, lost := lostEvidence(f, m, who); lost {
			x.Detail = firstNonEmpty(x.Detail, e.Detail)
			return x
		}
	}
	return e
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func cause(evictions []Eviction, evidence []phalanx.Evidence) string {
	if len(evictions) > 0 {
		s := evictions[0].Evidence.String()
		if n := len(evictions) - 1; n > 0 {
			s += fmt.Sprintf(" and %d more", n)
		}
		return s
	}
	if len(evidence) > 0 {
		return evidence[0].String()
	}
	return "the generation was sealed"
}
