// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"

	"phalanx"
	"phalanx/internal/planted"
)

// Vote is the newest vote of a member in one generation. It is final.
type Vote struct {
	Generation phalanx.Generation `json:"generation"`
	Step       phalanx.Step       `json:"step"`
	OK         bool               `json:"ok"`
	Digest     phalanx.Digest     `json:"digest"`
}

// Gradient is the whole reduced gradient that a living trainer holds.
type Gradient struct {
	Generation phalanx.Generation `json:"generation"`
	Step       phalanx.Step       `json:"step"`
	Digest     phalanx.Digest     `json:"digest"`
	Coordinate int                `json:"coordinate"`
}

// Possession is what a living trainer has. The zero value possesses nothing.
type Possession struct {
	Trainer  bool          `json:"trainer"` // alive
	Holds    bool          `json:"holds"`   // Label is valid: neither torn nor healing
	Label    phalanx.Label `json:"label"`
	Gradient Gradient      `json:"gradient"` // zero step: none
	Applying phalanx.Step  `json:"applying"`
}

// Answer is a member's answer to a seal: its promises and its possession.
type Answer struct {
	phalanx.Incarnate
	Generation phalanx.Generation `json:"generation"`
	Unread     bool               `json:"unread,omitempty"`  // sealed before FormGeneration was read: it has not voted
	Vote       *Vote              `json:"vote,omitempty"`    // newest in Generation
	Refused    phalanx.Step       `json:"refused,omitempty"` // newest step of Generation of which it knows a refusal
	Possession Possession         `json:"possession"`
	Slabs      []phalanx.Label    `json:"slabs,omitempty"` // states in its host's memory that outlive the trainer
}

// AnyCoordinate marks the initial state of a trainer that has not been given a coordinate: every coordinate's shard can be
// made from the seed.
const AnyCoordinate = -1

// Possesses reports whether the trainer holds the state l, or stands one step below with the gradient that makes it.
func (p Possession) Possesses(l phalanx.Label) bool { return p.standsAt(l) || p.rollsForwardTo(l) }

// moving reports whether the optimizer has begun and not returned: the state is no longer that of Label and not yet the next.
func (p Possession) moving() bool { return p.Applying > p.Label.Step }

// standsAt reports whether the state is l, now and at rest.
func (p Possession) standsAt(l phalanx.Label) bool {
	if !p.Trainer || !p.Holds || p.moving() {
		return false
	}
	if planted.On(planted.NoLabel) && p.Label.Step == l.Step && p.Label.Coordinate == l.Coordinate {
		return true
	}
	if planted.On(planted.NoCoordinate) && p.Label.Step == l.Step && p.Label.Generation == l.Generation {
		return true
	}
	return p.Label == l || initial(p.Label) && initial(l) && p.Label.Coordinate == AnyCoordinate && p.Label.Digest == l.Digest
}

// Torn is what a trainer possesses from the first byte of a heal to the last one: nothing.
func (p Possession) Torn() Possession {
	if planted.On(planted.HealUnmarked) {
		return p
	}
	return Possession{Trainer: p.Trainer}
}

// rollsForwardTo reports whether the trainer has the gradient that makes l of its state, or is applying it.
func (p Possession) rollsForwardTo(l phalanx.Label) bool {
	if !p.Trainer || !p.Holds || l.Step == 0 || p.Label.Step != l.Step-1 || p.Applying > l.Step {
		return false
	}
	fits := p.Label.Coordinate == l.Coordinate || initial(p.Label) && p.Label.Coordinate == AnyCoordinate
	return fits && p.Gradient == Gradient{l.Generation, l.Step, l.Digest, l.Coordinate}
}

// stands reports whether the trainer may vote at this coordinate of the present world: it stands at the floor, or at a step
// made in this generation. Below, above and beside that it heals first.
func (p Possession) stands(s *State, coordinate int) bool {
	floor, l := s.Floor.Label(coordinate), p.Label
	if planted.On(planted.OnlyBelowHeals) && l.Step >= floor.Step && p.standsAt(l) {
		return true
	}
	return p.standsAt(floor) || p.standsAt(l) && l.Generation == s.World.Generation && l.Coordinate == coordinate && l.Step > floor.Step
}

// held is the coordinate of the floor that the trainer possesses, -1 for none. A fresh trainer at step 0 holds none: the
// seed makes any.
func (p Possession) held(f Floor) int {
	if f.Step == 0 {
		return -1
	}
	return slices.IndexFunc(f.Labels, p.Possesses)
}

// initial reports whether l is a state of step 0: without a digest the one that the seed makes.
func initial(l phalanx.Label) bool { return l.Step == 0 && l.Generation.IsZero() }

// ResumeStep computes the resume step of the generation after s's from a non-empty set of answers, with the labels of the state
// per coordinate and the newest step anybody voted for. Different sets may give different steps; each is safe alone.
func ResumeStep(s *State, answers []Answer) (floor Floor, newest phalanx.Step, why string, err error) {
	if len(answers) == 0 {
		return Floor{}, 0, "", fmt.Errorf("resume step of %s: nobody answered", s.World.Generation)
	}
	g := s.World.Generation
	top := s.Floor.Step
	for i := range answers {
		if !s.World.Has(answers[i].Incarnate) {
			return Floor{}, 0, "", fmt.Errorf("resume step of %s: %s answered and is not in it", g, answers[i].Incarnate)
		}
		v := answers[i].vote(g)
		if v != nil && planted.On(planted.OnlyOKCounts) && !v.OK {
			v = nil
		}
		if v != nil && v.Step > top {
			top = v.Step
		}
	}
	if planted.On(planted.ResumeApplied) || planted.On(planted.FloorForgotten) && top == s.Floor.Step {
		return newestApplied(s, answers)
	}
	if top == s.Floor.Step {
		return s.Floor, top, fmt.Sprintf("nobody voted above the floor %d", top), nil
	}
	labels := make([]phalanx.Label, s.GroupSize())
	known := make([]bool, len(labels))
	note := func(step phalanx.Step, coordinate int, d phalanx.Digest) bool {
		l := phalanx.Label{Step: step, Generation: g, Digest: d, Coordinate: coordinate}
		if known[coordinate] && labels[coordinate] != l {
			return false
		}
		known[coordinate], labels[coordinate] = true, l
		return true
	}
	all, applied := true, false
	for i := range answers {
		a := &answers[i]
		seat := s.World.SeatOf(a.Member)
		v := a.vote(g)
		if v == nil || v.Step != top || !v.OK || a.Refused == top || !note(top, seat.Coordinate, v.Digest) {
			all = false
		}
		if l := a.Possession.Label; a.Possession.Trainer && a.Possession.Holds && l.Generation == g && l.Step >= top && l.Coordinate == seat.Coordinate {
			applied = true
		}
	}
	if all || applied {
		why = fmt.Sprintf("all %d that answered voted ok for %d", len(answers), top)
		if applied {
			why = fmt.Sprintf("step %d was applied", top)
		}
		return fill(Floor{top, labels}, known, s), top, why, nil
	}
	r := top - 1
	why = fmt.Sprintf("not all voted ok for %d, so nobody applied it", top)
	if r == s.Floor.Step {
		return s.Floor, top, why, nil
	}
	clear(known)
	for i := range answers {
		a := &answers[i]
		seat := s.World.SeatOf(a.Member)
		if v := a.vote(g); v != nil && v.Step == r && v.OK {
			note(r, seat.Coordinate, v.Digest)
		}
		if l := a.Possession.Label; a.Possession.Trainer && a.Possession.Holds && l.Generation == g && l.Step == r && l.Coordinate == seat.Coordinate {
			note(r, seat.Coordinate, l.Digest)
		}
	}
	return fill(Floor{r, labels}, known, s), top, why, nil
}

// newestApplied is what planted bugs take for the resume step.
func newestApplied(s *State, answers []Answer) (Floor, phalanx.Step, string, error) {
	floor := InitialFloor(s.GroupSize())
	for i := range answers {
		if l := answers[i].Possession.Label; answers[i].Possession.Holds && l.Step > floor.Step {
			floor.Step = l.Step
			for c := range floor.Labels {
				floor.Labels[c] = phalanx.Label{Step: l.Step, Generation: l.Generation, Digest: l.Digest, Coordinate: c}
			}
		}
	}
	return floor, floor.Step, "the newest step that was applied", nil
}

// fill completes the labels of coordinates of which no answer names the digest. Generation and step name the state alone:
// the votes of a decided step were equal. A digest of zero says that it is not known, and nobody possesses it.
func fill(f Floor, known []bool, s *State) Floor {
	for c := range f.Labels {
		if !known[c] {
			f.Labels[c] = phalanx.Label{Step: f.Step, Generation: s.World.Generation, Coordinate: c}
		}
	}
	return f
}

// vote is the answer's newest vote if it was cast in g.
func (a *Answer) vote(g phalanx.Generation) *Vote {
	if a.Unread || a.Vote == nil || a.Vote.Generation != g {
		return nil
	}
	return a.Vote
}
