// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"slices"

	"phalanx"
	"phalanx/kernels"
)

// Fold sums the gradients of this rank's slots in the shape of the slot tree, so that the bits do not depend on the world.
// Slots are folded in ascending order; a finished pair of siblings is merged at once. What is left at the end are the sums
// of the cover of the rank's range, in slot order, at the start of the segment.
type Fold struct {
	c     *Client
	begun Begin // the step it belongs to
	tree  phalanx.SlotTree
	slots phalanx.SlotRange
	next  phalanx.Slot
	stack []phalanx.Node // stack[i] is summed in buffer i
	leaf  bool           // the buffer after the stack is handed out
}

// Fold starts the fold of the begun step. There is one at a time.
func (c *Client) Fold() *Fold {
	f := &c.fold
	f.begun = c.begun
	f.tree, f.slots, f.next, f.stack, f.leaf = phalanx.SlotTree{Slots: c.begun.SlotCount}, c.begun.Slots, c.begun.Slots.First, f.stack[:0], false
	return f
}

// Slot returns zeroed memory of GradientElements for the gradient of a slot: the sum over its samples is added into it. It
// panics unless the slot is the next one of the begun range, which is a mistake of the caller.
func (f *Fold) Slot(slot phalanx.Slot) []float32 {
	if f.leaf || slot != f.next || slot >= f.slots.End {
		panic(fmt.Sprintf("client: fold of slot %d, the next one is %d of %v", slot, f.next, f.slots))
	}
	f.leaf = true
	b := f.c.buffer(len(f.stack))
	clear(b)
	return b
}

// Done says that the gradient of the slot is complete. The memory that Slot returned must not be used afterwards.
func (f *Fold) Done(slot phalanx.Slot) {
	if !f.leaf || slot != f.next {
		panic(fmt.Sprintf("client: slot %d done, the one in work is %d", slot, f.next))
	}
	f.leaf = false
	f.next++
	f.stack = append(f.stack, phalanx.Node{First: slot, End: slot + 1})
	for top := len(f.stack) - 1; top > 0; top-- {
		sum, ok := f.tree.Merge(f.stack[top-1], f.stack[top])
		if !ok {
			return
		}
		left := f.c.buffer(top - 1)
		kernels.AddF32(left, left, f.c.buffer(top))
		f.stack[top-1] = sum
		f.stack = f.stack[:top]
	}
}

// complete reports whether all slots of the begun range are folded, in the step that is begun now.
func (f *Fold) complete() bool {
	return f.begun == f.c.begun && !f.leaf && f.next == f.slots.End && slices.Equal(f.stack, f.tree.Cover(f.slots))
}

// buffer is a gradient buffer of the segment.
func (c *Client) buffer(i int) []float32 {
	return kernels.F32s(c.memory(int64(i)*c.plan.stride, 4*int64(c.cfg.GradientElements)))
}

// memory is a range of the trainer's own part of the segment.
func (c *Client) memory(offset, length int64) []byte {
	return c.m.Segment[offset : offset+length : offset+length]
}
