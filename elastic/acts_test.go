// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"slices"

	"phalanx"
)

// act is one small thing that a member, its daemon or its trainer may do. can says whether it may now.
type act struct {
	name string
	can  func(*sim, *simMember) bool
	do   func(*sim, *simMember)
}

// acts are in the order in which a story tries them.
var acts = []act{
	{"read", func(s *sim, m *simMember) bool { return m.connected() && m.read < len(s.log)-1 }, func(s *sim, m *simMember) {
		m.read++
		s.step(m, Read{s.log[m.read]})
	}},
	{"seal", canSeal, func(s *sim, m *simMember) {
		m.asked = s.ask()
		s.step(m, m.asked)
	}},
	{"leave", func(_ *sim, m *simMember) bool { return m.connected() && !m.leaving.IsZero() }, func(s *sim, m *simMember) {
		g := m.leaving
		m.leaving = phalanx.Generation{}
		s.step(m, WorkersLeft{g})
	}},
	{"form", func(_ *sim, m *simMember) bool { return m.connected() && !m.forming.IsZero() }, func(s *sim, m *simMember) {
		g := m.forming
		m.forming = phalanx.Generation{}
		s.step(m, Formed{g})
	}},
	{"hear", func(s *sim, m *simMember) bool { return s.unheard(m) != nil }, func(s *sim, m *simMember) {
		o := s.unheard(m)
		m.heard[o.me.Member] = o.page.Vote
		if world := s.worldOf(o.page.Vote.Generation); world != nil {
			if seat := world.SeatOf(o.me.Member); seat != nil && seat.Incarnation == o.me.Incarnation {
				s.step(m, PeerVoted{seat.Rank, o.page.Vote})
			}
		}
	}},
	{"apply", canApply, func(s *sim, m *simMember) {
		m.trainer.Applying = m.page.Told.Step
		s.see(m)
	}},
	{"applied", func(_ *sim, m *simMember) bool { return m.trainer.Trainer && m.trainer.Holds && m.trainer.moving() }, func(s *sim, m *simMember) {
		g := m.trainer.Gradient
		l := phalanx.Label{Step: g.Step, Generation: g.Generation, Digest: g.Digest, Coordinate: g.Coordinate}
		s.applied(m, l)
		m.trainer.Label = l
		m.done = l.Step == s.planner.Spec.LastStep
		s.see(m)
	}},
	{"heal", func(_ *sim, m *simMember) bool {
		return m.trainer.Trainer && m.heal != nil && !(m.trainer.Holds && m.trainer.moving()) && m.seat == SeatHeal && m.trainer.Holds && !m.torn
	}, func(s *sim, m *simMember) {
		m.trainer = Trainer{Possession: m.trainer.Torn(), Healed: m.trainer.Healed}
		m.torn, m.history = true, nil
		s.see(m)
	}},
	{"healed", func(s *sim, m *simMember) bool {
		_, ok := s.source(m)
		return ok && m.torn
	}, func(s *sim, m *simMember) {
		m.history, _ = s.source(m)
		m.torn = false
		m.done = m.heal.Label.Step == s.planner.Spec.LastStep
		g := m.heal.Generation
		m.trainer = Trainer{Possession: Possession{Trainer: true, Holds: true, Label: m.heal.Label, Applying: m.heal.Label.Step}, Healed: HealResult{g, true}}
		m.heal = nil
		s.see(m)
	}},
	{"compute", canCompute, func(s *sim, m *simMember) {
		seat, g := m.machine.Seat(), m.machine.Log().World.Generation
		n := m.trainer.Label.Step + 1
		r := Vote{Generation: g, Step: n, OK: !m.notOK}
		if r.OK {
			r.Digest = s.digest(m, n, seat.Coordinate)
			m.trainer.Gradient = Gradient{g, n, r.Digest, seat.Coordinate}
		}
		m.trainer.Request = r
		m.notOK, m.flip = false, false
		s.see(m)
	}},
}

func (s *sim) ask() SealAsked {
	return SealAsked{Generation: s.state().World.Generation, Boundary: s.round.Boundary}
}

func canSeal(s *sim, m *simMember) bool {
	return m.connected() && s.round.Asked && m.answer == nil && m.asked != s.ask() && s.state().World.Has(m.me)
}

func canApply(_ *sim, m *simMember) bool {
	t, c := &m.trainer, m.page.Told
	return t.Trainer && t.Holds && !t.moving() && c.Step == t.Label.Step+1 && t.Gradient.Step == c.Step && t.Gradient.Generation == c.Generation && c.Step > 0
}

// canCompute: the trainer waits in its seat of the generation that its daemon has read, and has not asked for this vote.
func canCompute(s *sim, m *simMember) bool {
	t := &m.trainer
	if m.down || m.lost || m.fenced || m.ended || m.done || !t.Trainer || !t.Holds || t.moving() || m.seat != SeatRun || t.Label.Step >= s.limit || t.Label.Step >= s.planner.Spec.LastStep {
		return false
	}
	g := m.machine.Log().World.Generation
	return m.seatIn == g && m.machine.Seat() != nil && !canApply(s, m) && !(t.Request.Generation == g && t.Request.Step == t.Label.Step+1)
}

// unheard returns a member whose page shows a vote that m has not heard.
func (s *sim) unheard(m *simMember) *simMember {
	if !m.connected() {
		return nil
	}
	for _, o := range s.members {
		if o == m || o.lost || o.mute || o.page.Vote.Step == 0 || m.heard[o.me.Member] == o.page.Vote {
			continue
		}
		return o
	}
	return nil
}

func (s *sim) worldOf(g phalanx.Generation) *phalanx.World {
	i := slices.IndexFunc(s.log, func(x *State) bool { return x.World.Generation == g })
	if i < 0 {
		return nil
	}
	return &s.log[i].World
}

// source returns the history of the state that m may read now.
func (s *sim) source(m *simMember) ([]phalanx.Label, bool) {
	if m.heal == nil || !m.trainer.Trainer || !m.connected() {
		return nil, false
	}
	h := m.heal
	switch h.Source.Kind {
	case FromSeed, FromWarmStart:
		return nil, true
	case FromStore:
		history, ok := s.stored[h.Source.Commit][h.Label]
		return history, ok
	case FromSlab:
		for _, id := range h.Source.Holders {
			if o := s.member(id); o != nil && !o.lost && !o.mute {
				if history, ok := o.slabs[h.Label]; ok {
					return history, true
				}
			}
		}
	case FromLive:
		for _, id := range h.Source.Holders {
			// A donor serves the generation that it has read, and no other.
			if o := s.member(id); o != nil && o != m && o.connected() && o.machine.Log().World.Generation == h.Generation && o.trainer.standsAt(h.Label) {
				return o.history, true
			}
		}
	}
	return nil, false
}

// run does everything that can happen, in a fixed order, until nothing more does. At rest, heals without any donor break.
func (s *sim) run() bool {
	for range 4000 {
		moved := s.round1()
		if s.lead() || moved || s.breakHeals() {
			continue
		}
		return true
	}
	return false
}

// round1 lets every member do each act once.
func (s *sim) round1() (moved bool) {
	for _, m := range slices.Clone(s.members) {
		for _, a := range acts {
			for !m.held[a.name] && a.can(s, m) {
				a.do(s, m)
				moved = true
				if a.name == "compute" || a.name == "apply" {
					break
				}
			}
		}
	}
	return moved
}

func (s *sim) breakHeals() (moved bool) {
	for _, m := range s.members {
		if m.heal == nil || !m.connected() || m.held["heal"] || m.held["healed"] {
			continue
		}
		g := m.heal.Generation
		m.heal = nil
		s.step(m, HealBroken{g, "no source answers"})
		moved = true
	}
	return moved
}
