// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"

	"phalanx"
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
		return p.rewind(s, f, evidence, nil, s.Floor.Step)
	}
	floor, newest, why, err := Resume(s, answers)
	if err != nil {
		return Plan{Why: err.Error()}
	}
	c := p.formation(s, f, evidence, answers, floor)
	c.Newest = newest
	if missing, ok := p.unpossessed(s, f, floor, answers); ok && floor.Step > 0 {
		for _, seat := range s.World.Seats {
			m := f.Fact(seat.Member)
			if m == nil || m.Silent && !m.Dead && !f.LeaseOut && m.Incarnation == seat.Incarnation && m.Answer == nil {
				return Plan{Why: fmt.Sprintf("nobody possesses coordinate %d of step %d; asks %s on", missing, floor.Step, seat.Member)}
			}
		}
		return p.rewind(s, f, evidence, answers, newest)
	}
	return Plan{Command: c, Why: why}
}

// unpossessed returns a coordinate of the floor that nobody who answered, and no spare, possesses.
func (p Planner) unpossessed(s *State, f *Facts, floor Floor, answers []Answer) (int, bool) {
	for c, l := range floor.Labels {
		held := slices.ContainsFunc(answers, func(a Answer) bool { return a.Possession.Possesses(l) })
		held = held || slices.ContainsFunc(f.Members, func(m MemberFact) bool {
			known := s.Member(m.Member)
			return m.Connected && !m.Dead && known != nil && known.Incarnation == m.Incarnation && known.State == Spare && m.Possession.Possesses(l)
		})
		if !held {
			return c, true
		}
	}
	return 0, false
}

// formation is the next generation with floor kept: survivors, then spares. Members without an answer are not in it.
func (p Planner) formation(s *State, f *Facts, evidence []phalanx.Evidence, answers []Answer, floor Floor) FormGeneration {
	c := FormGeneration{Base: s.World.Generation, Floor: floor, Evidence: evidence, UnixNS: f.UnixNS, Source: Source{Kind: FromLive}}
	for i := range answers {
		c.Seals = append(c.Seals, answers[i].Incarnate)
	}
	var survivors []candidate
	for _, seat := range s.World.Seats {
		i := slices.IndexFunc(answers, func(a Answer) bool { return a.Incarnate == seat.Incarnate })
		known := s.Member(seat.Member)
		draining := known != nil && (known.State == Draining || known.State == Quarantined)
		lost := i < 0 || !answers[i].Possession.Trainer || accused(evidence, seat.Incarnate)
		if m := f.Fact(seat.Member); m != nil && (m.Dead || m.Leaving || m.Failed) && !m.InGrace {
			lost = true
		}
		if lost {
			c.Evictions = append(c.Evictions, Eviction{seat.Incarnate, bestEvidence(evidence, seat.Incarnate, f)})
			continue
		}
		if draining {
			continue
		}
		survivors = append(survivors, candidate{seat.Incarnate, seat.Coordinate, answers[i].Possession.Possesses(floor.Label(seat.Coordinate))})
	}
	seats := assemble(s, survivors, p.spares(s, f, floor))
	c.World = p.world(s, seats)
	for _, seat := range seats {
		holds := false
		if i := slices.IndexFunc(answers, func(a Answer) bool { return a.Incarnate == seat.Incarnate }); i >= 0 {
			holds = answers[i].Possession.Possesses(floor.Label(seat.Coordinate))
		} else if m := f.Fact(seat.Member); m != nil {
			holds = m.Possession.Possesses(floor.Label(seat.Coordinate))
		}
		if holds {
			c.Source.Holders = append(c.Source.Holders, seat.Member)
		}
	}
	// Leftovers that are not in the world may still be the only ones to hold a coordinate.
	for i := range answers {
		seat := s.World.SeatOf(answers[i].Member)
		if c.World.SeatOf(answers[i].Member) == nil && !slices.ContainsFunc(c.Evictions, func(e Eviction) bool { return e.Incarnate == answers[i].Incarnate }) && answers[i].Possession.Possesses(floor.Label(seat.Coordinate)) {
			c.Source.Holders = append(c.Source.Holders, answers[i].Member)
		}
	}
	if floor.Step == 0 && floor.Label(0).Generation.IsZero() {
		c.Source = Source{Kind: FromSeed}
	}
	c.Cause = cause(c.Evictions, evidence)
	c.Halt = p.halt(s, c)
	return c
}

// halt says why the formation may not vote, nil when it may.
func (p Planner) halt(s *State, c FormGeneration) *HaltReason {
	for _, e := range c.Evictions {
		v := e.Evidence
		if s.Kill != nil && v.Kind == phalanx.TrainerExited && v.Working && s.Kill.Step == v.Step && s.Kill.Slot == v.Slot {
			return &HaltReason{Poison, fmt.Sprintf("slot %d of step %d killed %s and then %s; look at these samples, or skip them by a rewind", v.Slot, v.Step, s.Kill.Who, e.Incarnate)}
		}
	}
	if groups := c.World.Groups(); groups < s.MinGroups() {
		return &HaltReason{BelowMinimum, fmt.Sprintf("%d whole groups are left of at least %d", groups, s.MinGroups())}
	}
	return nil
}

// rewind opens a new branch at the newest step of which every coordinate exists somewhere.
func (p Planner) rewind(s *State, f *Facts, evidence []phalanx.Evidence, answers []Answer, newest phalanx.Step) Plan {
	if !f.Store.Known {
		return Plan{Why: "nobody possesses the floor; what the store holds is not known yet"}
	}
	floor, source, _ := p.origin(s, f)
	c := p.formation(s, f, evidence, answers, floor)
	for _, seat := range s.World.Seats {
		if !slices.ContainsFunc(answers, func(a Answer) bool { return a.Incarnate == seat.Incarnate }) && !slices.ContainsFunc(c.Evictions, func(e Eviction) bool { return e.Incarnate == seat.Incarnate }) {
			c.Evictions = append(c.Evictions, Eviction{seat.Incarnate, bestEvidence(evidence, seat.Incarnate, f)})
		}
	}
	c.Newest = newest
	if c.World.Size() == 0 {
		// Nobody can read it yet: the floor and the branch stay, the members' next incarnations join and open the branch.
		c.Floor, c.Source = s.Floor, s.Source
		return Plan{Command: c, Why: "no living trainer is left"}
	}
	c.Source = source
	c.Cause = fmt.Sprintf("nobody possesses the state any more: rewind to step %d from %s; %s", floor.Step, source.Kind, c.Cause)
	return Plan{Command: Rewind{FormGeneration: c, Branch: s.Branch + 1, Unreadable: f.Store.Unreadable}, Why: c.Cause}
}

// spares are the members outside of the world that can sit in the next one.
func (p Planner) spares(s *State, f *Facts, floor Floor) []candidate {
	var out []candidate
	for i := range s.Members {
		m := &s.Members[i]
		if m.State != Spare && m.State != Joining {
			continue
		}
		x := f.Fact(m.Member)
		if x == nil || x.Incarnation != m.Incarnation || !x.Connected || x.Dead || x.Silent || !x.Possession.Trainer || x.Leaving || x.Failed {
			continue
		}
		c := candidate{m.Incarnate, m.Coordinate, false}
		if m.Coordinate >= 0 && x.Possession.Possesses(floor.Label(m.Coordinate)) {
			c.holds = true
		}
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
		case phalanx.TrainerExited, phalanx.HostSilent, phalanx.Stalled, phalanx.Hung, phalanx.NotReady:
			return true
		}
		return false
	})
}

func bestEvidence(evidence []phalanx.Evidence, who phalanx.Incarnate, f *Facts) phalanx.Evidence {
	for _, e := range evidence {
		if e.About == who {
			return e
		}
	}
	e := phalanx.Evidence{Kind: phalanx.Unreachable, About: who, UnixNS: f.UnixNS, Detail: "gave no answer to the seal"}
	if m := f.Fact(who.Member); m != nil {
		if x, lost := lostEvidence(m, who, f.UnixNS); lost {
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
	return "change"
}
