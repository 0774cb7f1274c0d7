// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"

	"phalanx"
)

// LayoutOf is the layout of the state that a rank with the given coordinate has; known is false while no member has said it.
func (s *State) LayoutOf(coordinate int) (layout []phalanx.TensorInfo, known bool) {
	switch {
	case s.Spec == nil:
		return nil, false
	case len(s.Layouts) == 0:
		return s.State, s.State != nil
	case coordinate < 0 || coordinate >= len(s.Layouts):
		return nil, false
	}
	return s.Layouts[coordinate], s.Layouts[coordinate] != nil
}

// Pinned reports whether each member of the job has its coordinate.
func (s *State) Pinned() bool { return len(s.Layouts) > 0 }

// undecided reports whether it is the first member that says whether the job has one layout or one for each coordinate.
func (s *State) undecided() bool { return !s.Pinned() && s.State == nil && len(s.Members) == 0 }

// unheard is the first coordinate of which no layout is known in a job of pinned members, -1 when there is none.
func (s *State) unheard() int {
	return slices.IndexFunc(s.Layouts, func(layout []phalanx.TensorInfo) bool { return layout == nil })
}

// PinOf is where a life of a member may sit alone.
func (s *State) PinOf(i phalanx.Incarnate) phalanx.Pin {
	if m := s.Member(i.Member); m != nil && m.Incarnation == i.Incarnation {
		return m.Pin
	}
	return phalanx.AnyPlace
}

// Register says why a trainer that may sit where the pin says cannot take part with a state of this layout, nil when it can.
func (s *State) Register(pin phalanx.Pin, layout []phalanx.TensorInfo) error {
	switch {
	case s.Spec == nil:
		return nil
	case !pin.Valid(s.GroupSize()):
		return fmt.Errorf("the trainer asks for %s; the job has groups of %d", pin, s.GroupSize())
	case s.undecided() && pin != phalanx.AnyPlace:
		return nil // the first one
	case s.Pinned() && pin == phalanx.AnyPlace:
		return fmt.Errorf("the job's state differs between coordinates and the trainer names none: let it ask for its place first")
	}
	known, ok := s.LayoutOf(pin.Coordinate())
	if !s.Pinned() {
		known, ok = s.State, true
	}
	if ok && !slices.EqualFunc(known, layout, phalanx.TensorInfo.Equal) {
		where := ""
		if s.Pinned() {
			where = " at " + pin.String()
		}
		return fmt.Errorf("the trainer registers another state than the job has%s", where)
	}
	return nil
}

// fits reports whether a member may be admitted. What it registers is compared where it was said.
func (s *State) fits(pin phalanx.Pin, layout []phalanx.TensorInfo) bool {
	if layout == nil && s.Spec != nil { // its own daemon has compared it
		layout, _ = s.LayoutOf(pin.Coordinate())
		if !s.Pinned() {
			layout = s.State
		}
	}
	return s.Register(pin, layout) == nil
}

// pin checks the coordinate of an admission and keeps the layout that it brings.
func (s *State) pin(a Admission) error {
	switch {
	case !a.Pin.Valid(s.GroupSize()):
		return fmt.Errorf("admit %s at %s in groups of %d: %w", a.Incarnate, a.Pin, s.GroupSize(), ErrMember)
	case a.Pin == phalanx.AnyPlace && (a.Layout != nil || s.Pinned()):
		return fmt.Errorf("admit %s, which has no coordinate: %w", a.Incarnate, ErrMember)
	case a.Pin == phalanx.AnyPlace:
		return nil
	case s.undecided() && a.Layout != nil: // the first member decides
		s.Layouts = make([][]phalanx.TensorInfo, s.GroupSize())
	case !s.Pinned() && a.Layout != nil:
		return fmt.Errorf("admit %s with a layout of its own; the job has one for all: %w", a.Incarnate, ErrMember)
	}
	s.Version, s.FeatureLevel = max(s.Version, versionPinned), max(s.FeatureLevel, versionPinned)
	if !s.Pinned() {
		return nil
	}
	c := a.Pin.Coordinate()
	switch known := s.Layouts[c]; {
	case known == nil && a.Layout == nil:
		return fmt.Errorf("admit %s, the first at %s, without a layout: %w", a.Incarnate, a.Pin, ErrMember)
	case known == nil:
		s.Layouts[c] = a.Layout
	case a.Layout != nil && !slices.EqualFunc(known, a.Layout, phalanx.TensorInfo.Equal):
		return fmt.Errorf("admit %s with another layout than %s has: %w", a.Incarnate, a.Pin, ErrMember)
	}
	return nil
}

// checkPins reports members that are where they cannot be.
func checkPins(s *State) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if n := len(s.Layouts); n > 0 && (n != s.GroupSize() || s.State != nil || s.Version < versionPinned) {
		wrong("layouts of %d coordinates in groups of %d, beside one of %d tensors, version %d", n, s.GroupSize(), len(s.State), s.Version)
		return errs
	}
	for i := range s.Members {
		m := &s.Members[i]
		_, known := s.LayoutOf(m.Pin.Coordinate())
		switch {
		case !m.Pin.Valid(s.GroupSize()) || m.Pin != phalanx.AnyPlace && s.Version < versionPinned:
			wrong("%s is pinned to %s in groups of %d, version %d", m.Incarnate, m.Pin, s.GroupSize(), s.Version)
		case s.Pinned() && (m.Pin == phalanx.AnyPlace || !known):
			wrong("%s is at %s, whose layout is not known", m.Incarnate, m.Pin)
		}
		if seat := s.World.SeatOf(m.Member); seat != nil && seat.Incarnation == m.Incarnation && !m.Pin.Fits(seat.Coordinate) {
			wrong("%s sits at coordinate %d and is pinned to %s", m.Incarnate, seat.Coordinate, m.Pin)
		}
	}
	return errs
}
