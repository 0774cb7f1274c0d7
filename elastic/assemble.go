// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"slices"

	"phalanx"
)

// candidate is a member that may sit in the next world.
type candidate struct {
	phalanx.Incarnate
	pin        phalanx.Pin
	coordinate int  // of the state it holds, -1 for none
	holds      bool // stands at the floor for its coordinate, or rolls forward to it
}

// assemble makes the most whole groups. survivors are members of the old world. Groups that are whole stay, broken ones are completed from the leftovers of others, then from
// spares; a spare takes the exact rank of the dead. What is left of a broken group is returned to the spares by Apply.
func assemble(s *State, survivors []candidate, spares []candidate) []phalanx.Seat {
	g := s.GroupSize()
	oldGroups := s.World.Groups()
	// place[group][coordinate]: index into survivors, -1 for an empty seat.
	place := make([][]int, oldGroups)
	for i := range place {
		place[i] = slices.Repeat([]int{-1}, g)
	}
	for i, c := range survivors {
		seat := s.World.SeatOf(c.Member)
		place[seat.Group][seat.Coordinate] = i
	}
	perCoordinate := make([]int, g)
	for _, group := range place {
		for c, i := range group {
			if i >= 0 {
				perCoordinate[c]++
			}
		}
	}
	groups := completable(s, perCoordinate, spares)
	kept := keepGroups(place, groups)
	pool := make([][]candidate, g) // leftovers of groups that are not kept, by coordinate
	for i, group := range place {
		if slices.Contains(kept, i) {
			continue
		}
		for c, j := range group {
			if j >= 0 {
				pool[c] = append(pool[c], survivors[j])
			}
		}
	}
	free := slices.Clone(spares)
	// The order of preference: leftovers of this coordinate, for no spare may be used up where one is left; spares that may sit here
	// alone; spares that stand at the floor; spares that possess nothing; last one of those whose coordinate has the most holders, so
	// that no coordinate loses its only one.
	take := func(c int) candidate {
		pick := func(from *[]candidate, fits func(candidate) bool) (x candidate, ok bool) {
			i := slices.IndexFunc(*from, fits)
			if i < 0 {
				return candidate{}, false
			}
			x = (*from)[i]
			*from = slices.Delete(*from, i, i+1)
			return x, true
		}
		if x, ok := pick(&pool[c], func(x candidate) bool { return x.holds }); ok {
			return x
		}
		if x, ok := pick(&pool[c], func(candidate) bool { return true }); ok {
			return x
		}
		here := func(x candidate) bool { return x.pin == phalanx.PinTo(c) }
		if x, ok := pick(&free, func(x candidate) bool { return here(x) && x.holds && x.coordinate == c }); ok {
			return x
		}
		if x, ok := pick(&free, here); ok {
			return x
		}
		anywhere := func(x candidate) bool { return x.pin == phalanx.AnyPlace }
		if x, ok := pick(&free, func(x candidate) bool { return anywhere(x) && x.holds && x.coordinate == c }); ok {
			return x
		}
		if x, ok := pick(&free, func(x candidate) bool { return anywhere(x) && !x.holds }); ok {
			return x
		}
		most, at := 0, 0
		for o := range g {
			n := 0
			for _, x := range free {
				if anywhere(x) && x.coordinate == o {
					n++
				}
			}
			if n > most {
				most, at = n, o
			}
		}
		x, _ := pick(&free, func(x candidate) bool { return anywhere(x) && x.coordinate == at })
		return x
	}
	var seats []phalanx.Seat
	deal, _ := phalanx.DealSlots(slotCount(s), max(1, groups))
	for k := range groups {
		for c := range g {
			var who candidate
			if k < len(kept) && place[kept[k]][c] >= 0 {
				who = survivors[place[kept[k]][c]]
			} else {
				who = take(c)
			}
			seats = append(seats, phalanx.Seat{Incarnate: who.Incarnate, Rank: phalanx.Rank(len(seats)), Group: k, Coordinate: c, Slots: deal[k]})
		}
	}
	return seats
}

// completable is the largest number of groups that a full world allows and that members make: there are so many at each coordinate,
// and spares, of which some may sit at one coordinate alone.
func completable(s *State, perCoordinate []int, spares []candidate) int {
	pinned, free := make([]int, len(perCoordinate)), 0
	for _, x := range spares {
		if c := x.pin.Coordinate(); c >= 0 && c < len(pinned) {
			pinned[c]++
		} else if x.pin == phalanx.AnyPlace {
			free++
		}
	}
	for k := s.WantGroups(); k > 0; k-- {
		need := 0
		for c := range perCoordinate {
			need += max(0, k-perCoordinate[c]-pinned[c])
		}
		if need <= free {
			return k
		}
	}
	return 0
}

// vacant is the first coordinate at which none of the candidates may sit, -1 when each has one.
func vacant(s *State, all []candidate) int {
	for c := range s.GroupSize() {
		if !slices.ContainsFunc(all, func(x candidate) bool { return x.pin.Fits(c) }) {
			return c
		}
	}
	return -1
}

func slotCount(s *State) int {
	if s.Spec == nil {
		return 0
	}
	return s.Spec.Slots
}

// keepGroups chooses up to n old groups, whole ones first, then those with the most survivors, and returns them in old order.
func keepGroups(place [][]int, n int) []int {
	order := make([]int, 0, len(place))
	alive := make([]int, len(place))
	for i, group := range place {
		for _, j := range group {
			if j >= 0 {
				alive[i]++
			}
		}
		if alive[i] > 0 || len(place) <= n {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return alive[b] - alive[a] })
	order = order[:min(n, len(order))]
	slices.Sort(order)
	return order
}
