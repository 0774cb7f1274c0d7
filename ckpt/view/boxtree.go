// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
)

// boxTree finds which of many boxes of one tensor another box meets. Its nodes halve the boxes along the dimension in which their
// middles lie furthest apart; each knows the box around all of its own. With boxes that lie apart, as those of shards do, a
// search looks at few more than it finds, whichever dimensions the tensor is cut in. Boxes of a scalar are one leaf.
type boxTree struct {
	order []int // places of boxes with elements; a node is a range of it
	nodes []boxNode
	boxes func(place int) *Box
}

// boxNode is a node: its children are left and left+1, or it is a leaf (left 0).
type boxNode struct {
	Box
	first, end int // in order
	left       int
}

// leafBoxes is how many boxes are compared one by one.
const leafBoxes = 8

func newBoxTree(n int, boxes func(place int) *Box) *boxTree {
	t := &boxTree{boxes: boxes}
	for i := range n {
		if boxes(i).Elements() > 0 {
			t.order = append(t.order, i)
		}
	}
	if len(t.order) > 0 {
		t.nodes = append(t.nodes, boxNode{})
		t.build(0, 0, len(t.order))
	}
	return t
}

// build fills a node. Its depth is the logarithm of the boxes, since both halves have as many.
func (t *boxTree) build(at, first, end int) {
	node := boxNode{Box: t.around(first, end), first: first, end: end}
	if end-first > leafBoxes && len(node.Offset) > 0 {
		axis := t.widest(first, end)
		slices.SortFunc(t.order[first:end], func(a, b int) int {
			x, y := t.boxes(a), t.boxes(b)
			return cmp.Or(cmp.Compare(2*x.Offset[axis]+x.Shape[axis], 2*y.Offset[axis]+y.Shape[axis]), cmp.Compare(a, b))
		})
		middle := (first + end) / 2
		node.left = len(t.nodes)
		t.nodes = append(t.nodes, boxNode{}, boxNode{})
		t.build(node.left, first, middle)
		t.build(node.left+1, middle, end)
	}
	t.nodes[at] = node
}

// around is the least box that has all of a range in it.
func (t *boxTree) around(first, end int) Box {
	b := t.boxes(t.order[first])
	out := Box{Offset: slices.Clone(b.Offset), Shape: slices.Clone(b.Shape)}
	for _, i := range t.order[first+1 : end] {
		b := t.boxes(i)
		for d := range b.Offset {
			from := min(out.Offset[d], b.Offset[d])
			out.Shape[d] = max(out.Offset[d]+out.Shape[d], b.Offset[d]+b.Shape[d]) - from
			out.Offset[d] = from
		}
	}
	return out
}

// widest is the dimension in which the middles of a range lie furthest apart.
func (t *boxTree) widest(first, end int) int {
	axis, most := 0, -1
	for d := range t.boxes(t.order[first]).Offset {
		least, last := 0, 0
		for k, i := range t.order[first:end] {
			b := t.boxes(i)
			middle := 2*b.Offset[d] + b.Shape[d]
			if k == 0 {
				least, last = middle, middle
			}
			least, last = min(least, middle), max(last, middle)
		}
		if last-least > most {
			axis, most = d, last-least
		}
	}
	return axis
}

// each calls f with the places of boxes that share elements with one that has any, in no order, until f returns false.
func (t *boxTree) each(box *Box, f func(place int) bool) {
	if len(t.nodes) == 0 {
		return
	}
	stack := []int{0}
	for len(stack) > 0 {
		node := &t.nodes[stack[len(stack)-1]]
		stack = stack[:len(stack)-1]
		if !overlaps(&node.Box, box) {
			continue
		}
		if node.left > 0 {
			stack = append(stack, node.left+1, node.left)
			continue
		}
		for _, i := range t.order[node.first:node.end] {
			if overlaps(t.boxes(i), box) && !f(i) {
				return
			}
		}
	}
}

// overlaps reports whether two boxes with elements share any.
func overlaps(a, b *Box) bool {
	for d := range a.Offset {
		if a.Offset[d] >= b.Offset[d]+b.Shape[d] || b.Offset[d] >= a.Offset[d]+a.Shape[d] {
			return false
		}
	}
	return true
}

// treeOf is the tree of a tensor's shards, made at the first call.
func (v *View) treeOf(tensor int) *boxTree {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t := v.trees[tensor]; t != nil {
		return t
	}
	shards := v.Tensors[tensor].Shards
	t := newBoxTree(len(shards), func(i int) *Box { return &shards[i].Box })
	if v.trees == nil {
		v.trees = map[int]*boxTree{}
	}
	v.trees[tensor] = t
	return t
}

// touching returns the places of a tensor's shards that a box meets, in ascending order.
func (v *View) touching(tensor int, box Box) []int {
	if box.Elements() == 0 {
		return nil
	}
	var met []int
	v.treeOf(tensor).each(&box, func(i int) bool {
		met = append(met, i)
		return true
	})
	slices.Sort(met)
	return met
}
