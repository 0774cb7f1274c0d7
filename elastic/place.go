// SPDX-License-Identifier: Apache-2.0

package elastic

import "phalanx"

// Places gives each member that has none a coordinate of groups of the given size: the one that has the fewest, in order of members
// and of coordinates, so that ranks which start together make whole groups, and who comes later takes what is missing. Pins holds
// where members are placed already, which stays so; it gets the others.
func Places(members []phalanx.MemberID, pins map[phalanx.MemberID]phalanx.Pin, groupSize int) {
	held := make([]int, groupSize)
	for _, id := range members {
		if p := pins[id]; p != phalanx.AnyPlace && p.Valid(groupSize) {
			held[p.Coordinate()]++
		}
	}
	for _, id := range members {
		if p := pins[id]; p != phalanx.AnyPlace && p.Valid(groupSize) {
			continue
		}
		c := 0
		for o := range held {
			if held[o] < held[c] {
				c = o
			}
		}
		held[c]++
		pins[id] = phalanx.PinTo(c)
	}
}
