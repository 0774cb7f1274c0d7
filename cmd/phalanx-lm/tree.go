// SPDX-License-Identifier: Apache-2.0

package main

import (
	"phalanx"
	"phalanx/kernels"
)

// part is the sum of the gradients below a node of the slot tree.
type part struct {
	node phalanx.Node
	sum  []float32
}

// treeFold sums gradients in the shape of the slot tree, depth first: two sums are added as soon as they are the children of
// one node, the left one first. What is left over are the sums of the cover of the slots that were given, in slot order.
// A sum without a sibling is passed on as it is, never added to 0, which would change -0.
type treeFold struct {
	tree     phalanx.SlotTree
	elements int
	parts    []part
	free     [][]float32
	open     []float32 // the block between Slot and Done
}

func (f *treeFold) Slot(phalanx.Slot) []float32 {
	if n := len(f.free); n > 0 {
		f.open, f.free = f.free[n-1], f.free[:n-1]
		clear(f.open)
	} else {
		f.open = make([]float32, f.elements)
	}
	return f.open
}

func (f *treeFold) Done(slot phalanx.Slot) {
	f.add(part{phalanx.Node{First: slot, End: slot + 1}, f.open})
	f.open = nil
}

// add takes over the part and its memory.
func (f *treeFold) add(p part) {
	for len(f.parts) > 0 {
		left := f.parts[len(f.parts)-1]
		node, ok := f.tree.Merge(left.node, p.node)
		if !ok {
			break
		}
		kernels.AddF32(left.sum, left.sum, p.sum)
		f.free = append(f.free, p.sum)
		f.parts = f.parts[:len(f.parts)-1]
		p = part{node, left.sum}
	}
	f.parts = append(f.parts, p)
}

// reset starts a new step with the memory of the last.
func (f *treeFold) reset() {
	for _, p := range f.parts {
		f.free = append(f.free, p.sum)
	}
	f.parts = f.parts[:0]
}

// whole returns the sum over all slots, nil when slots are missing.
func (f *treeFold) whole() []float32 {
	if len(f.parts) != 1 || f.parts[0].node != f.tree.Root() {
		return nil
	}
	return f.parts[0].sum
}
