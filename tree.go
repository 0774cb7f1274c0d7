// SPDX-License-Identifier: Apache-2.0

package phalanx

import "fmt"

// Node is a node of the slot tree: the contiguous range of leaves below it. A leaf has one slot.
type Node = SlotRange

// SlotTree is the fixed balanced binary tree over the slots of a step. Gradients are summed in its shape, whatever rank
// holds which slot, so that the bits of the sum do not depend on the world. A node with n leaves splits at the largest power
// of two below n: the left child has that many leaves, the right child the rest.
type SlotTree struct{ Slots int }

// Root is the node over all slots.
func (t SlotTree) Root() Node { return Node{0, Slot(t.Slots)} }

// Children returns the two children of an inner node. It must not be called on a leaf.
func (t SlotTree) Children(n Node) (left, right Node) {
	half := 1
	for half*2 < n.Len() {
		half *= 2
	}
	mid := n.First + Slot(half)
	return Node{n.First, mid}, Node{mid, n.End}
}

// Cover returns the fewest nodes of the tree whose leaves are exactly the slots of r, in slot order. A range of k slots has
// at most max(1, 2⌈log2 k⌉) of them.
func (t SlotTree) Cover(r SlotRange) []Node {
	if r.Len() <= 0 || r.First < 0 || int(r.End) > t.Slots {
		return nil
	}
	return t.cover(nil, t.Root(), r)
}

func (t SlotTree) cover(out []Node, n Node, r SlotRange) []Node {
	if r.First <= n.First && n.End <= r.End {
		return append(out, n)
	}
	if r.End <= n.First || n.End <= r.First {
		return out
	}
	left, right := t.Children(n)
	return t.cover(t.cover(out, left, r), right, r)
}

// MaxCover is an upper bound of len(Cover(r)) over all ranges r: how many gradient buffers a rank may need.
func (t SlotTree) MaxCover() int {
	depth := 0
	for 1<<depth < t.Slots {
		depth++
	}
	return max(1, 2*depth)
}

// Merge joins two neighbouring nodes when they are the children of one node, and returns that node.
func (t SlotTree) Merge(left, right Node) (Node, bool) {
	if left.End != right.First {
		return Node{}, false
	}
	n := t.Root()
	for n.Len() > 1 {
		l, r := t.Children(n)
		switch {
		case l == left && r == right:
			return n, true
		case left.First >= l.First && right.End <= l.End:
			n = l
		case left.First >= r.First && right.End <= r.End:
			n = r
		default:
			return Node{}, false
		}
	}
	return Node{}, false
}

// DealSlots deals the slots to groups as contiguous ranges in group order. Sizes differ by at most one; which groups get one
// more is chosen so that the ranges need the fewest aligned subtrees, the earlier groups first among equals.
func DealSlots(slots, groups int) ([]SlotRange, error) {
	if groups <= 0 || slots < groups {
		return nil, fmt.Errorf("deal %d slots to %d groups: every group needs a slot; run fewer groups or raise --slots", slots, groups)
	}
	if slots > MaxSlots {
		return nil, fmt.Errorf("deal %d slots: at most %d can be dealt", slots, MaxSlots)
	}
	tree := SlotTree{slots}
	small, extra := slots/groups, slots%groups
	// best[i][e]: fewest subtrees for the first i groups when e of them got one more.
	const far = int(^uint(0) >> 1)
	best := make([][]int, groups+1)
	took := make([][]bool, groups+1)
	for i := range best {
		best[i], took[i] = make([]int, extra+1), make([]bool, extra+1)
		for e := range best[i] {
			best[i][e] = far
		}
	}
	best[0][0] = 0
	for i := range groups {
		for e := 0; e <= extra && e <= i; e++ {
			if best[i][e] == far {
				continue
			}
			first := Slot(i*small + e)
			for more := range 2 {
				if e+more > extra {
					continue
				}
				cost := best[i][e] + len(tree.Cover(SlotRange{first, first + Slot(small+more)}))
				// At equal cost the extra slot goes to the earlier group, so a later one took none.
				if cost < best[i+1][e+more] || cost == best[i+1][e+more] && more == 0 {
					best[i+1][e+more], took[i+1][e+more] = cost, more == 1
				}
			}
		}
	}
	ranges := make([]SlotRange, groups)
	e := extra
	for i := groups; i > 0; i-- {
		size := small
		if took[i][e] {
			size, e = small+1, e-1
		}
		ranges[i-1] = SlotRange{Slot((i-1)*small + e), Slot((i-1)*small + e + size)}
	}
	return ranges, nil
}
