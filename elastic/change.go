// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"

	"phalanx"
)

// change makes planned changes: members that join, drain, or a world of another size. It seals at a named step boundary, so
// that no work is lost.
func (p Planner) change(s *State, f *Facts) Plan {
	if f.Stop && !(f.Round.Asked && f.Round.Planned) { // a change that was begun ends first: its members vote no more
		return Plan{Why: "the job is being stopped; the world stays as it is"}
	}
	next, why := p.wanted(s, f)
	if !next && !(f.Round.Asked && f.Round.Planned) {
		return Plan{Why: "nothing to change"}
	}
	if s.Phase == Halted && !f.Round.Asked {
		return Plan{Ask: &Ask{Generation: s.World.Generation}, Why: why} // nobody votes; there is no boundary to wait for
	}
	if !f.Round.Asked {
		return Plan{Ask: &Ask{Generation: s.World.Generation, Planned: true, Boundary: f.Boundary}, Why: why}
	}
	if f.Round.Planned && f.Round.Late {
		return Plan{Ask: &Ask{Generation: s.World.Generation}, Why: fmt.Sprintf("step %d was not reached by its deadline", f.Round.Boundary)}
	}
	var answers []Answer
	for _, seat := range s.World.Seats {
		m := f.Fact(seat.Member)
		if m == nil || m.Incarnation != seat.Incarnation || m.Answer == nil || m.Answer.Generation != s.World.Generation {
			return Plan{Why: fmt.Sprintf("waits for %s to reach step %d", seat.Member, f.Round.Boundary)}
		}
		answers = append(answers, *m.Answer)
	}
	plan := p.conclude(s, f, nil, answers)
	if c, ok := plan.Command.(FormGeneration); ok {
		c.Planned, c.Cause = true, why
		if why == "" {
			c.Cause = "the planned change was called off"
		}
		plan.Command, plan.Why = c, c.Cause
	}
	return plan
}

// wanted says whether another world than the present one is wanted, and why.
func (p Planner) wanted(s *State, f *Facts) (bool, string) {
	if s.Phase != Halted && f.Boundary > s.Spec.LastStep {
		return false, "" // too near to the end to change the world
	}
	var survivors []candidate
	for _, seat := range s.World.Seats {
		m := s.Member(seat.Member)
		if m != nil && m.State == Draining {
			continue
		}
		survivors = append(survivors, candidate{Incarnate: seat.Incarnate, coordinate: seat.Coordinate, holds: true})
	}
	if len(survivors) < s.World.Size() {
		return true, fmt.Sprintf("%d members leave", s.World.Size()-len(survivors))
	}
	spares := p.spares(s, f, s.Floor)
	seats := assemble(s, survivors, spares)
	if len(seats) > s.World.Size() {
		joined := slices.IndexFunc(seats, func(x phalanx.Seat) bool { return s.World.SeatOf(x.Member) == nil })
		return true, fmt.Sprintf("%s joins, %d ranks", seats[joined].Incarnate, len(seats))
	}
	if len(seats) < s.World.Size() && len(seats) > 0 {
		return true, fmt.Sprintf("the world is resized to %d ranks", len(seats))
	}
	return false, ""
}
