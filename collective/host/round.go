// SPDX-License-Identifier: Apache-2.0

package host

// A small operation inside of one host takes one round: a sum of the step, and most of what groups of ranks do. Each member copies its inputs to a slot of its board before it enters, and
// once all have entered each sums everything from there. To move is cheap then and to wake is not: with the direct form a
// member waits three times for others, here once. Nobody waits for the others to leave, since the trainer's memory is not
// read: the slot is used again two operations later, which nobody enters before all have left this one.
//
// The words of a slot: the stamp of the operation whose inputs it holds, and the signature. The first is 0 while the slot
// changes. A reader looks at it again after it has read.
const (
	roundSlots = 2
	// roundBytes is the size of a slot: the input buffers of one member.
	roundBytes = 256 << 10

	roundStamp = 0
	roundSig   = 1
)

// roundSlot is the slot of an operation, by its number.
func (b board) roundSlot(number uint32) (words int, payload []byte) {
	s := int(number % roundSlots)
	return wordRound + s*roundWords, b.round[s*b.room:][:b.room]
}

// roundStride is the distance between the buffers in a slot.
func (op *Op) roundStride() int64 {
	const line = 64
	return (op.Count*op.DType.Size() + line - 1) / line * line
}

// oneRound reports whether the operation takes one round. All members come to the same answer. In a group that was made every kind
// that has an input may.
func (w *worker) oneRound(op *Op) bool {
	if !w.oneHost || len(w.members) > w.f.e.o.DirectMax {
		return false
	}
	if w.id != 0 {
		return op.Kind != Barrier && w.shape.largest <= min(int64(w.f.e.o.OneRoundMax), laneRound)/op.DType.Size()
	}
	return op.sums() && op.Count*op.DType.Size() <= int64(w.f.e.o.OneRoundMax) && int64(w.covers)*op.roundStride() <= roundBytes
}

// offer copies the inputs to the board. A slot that an earlier daemon of this member had filled stays: others may be reading.
func (w *worker) offer(op *Op) {
	words, payload := w.board.roundSlot(w.seq)
	if w.board.load(words+roundStamp) == w.stamp {
		return
	}
	w.board.store(words+roundStamp, 0)
	bytes, stride := w.shape.in*op.DType.Size(), op.roundStride()
	for k := range w.members[w.me].cover {
		copy(payload[int64(k)*stride:][:bytes], w.f.self.Segment[op.InOffset+int64(k)*op.InStride:][:bytes])
	}
	w.board.store(words+roundSig, w.sig(op))
	w.board.store(words+roundStamp, w.stamp)
}

// takeRound makes the own result of what all members have offered.
func (w *worker) takeRound(op *Op, root int) error {
	offers := make([][]byte, len(w.members))
	for i := range w.members {
		m := &w.members[i]
		words, payload := m.local.board.roundSlot(w.seq)
		switch {
		case m.local.board.load(words+roundStamp) != w.stamp:
			return w.notOffered(op, m)
		case m.local.board.load(words+roundSig) != w.members[w.me].local.rec.sig:
			return w.mismatch(op, m)
		}
		offers[i] = payload
	}
	if op.sums() {
		w.sumRound(op, root, offers)
	} else {
		w.moveRound(op, root, offers)
	}
	for i := range w.members {
		m := &w.members[i]
		if words, _ := m.local.board.roundSlot(w.seq); m.local.board.load(words+roundStamp) != w.stamp {
			return w.gone(m)
		}
	}
	w.board.store(wordLeft, w.stamp)
	return nil
}

func (w *worker) sumRound(op *Op, root int, offers [][]byte) {
	first, end := int64(0), op.Count
	if op.Kind != AllReduce {
		first, end = w.shape.reduced(op, len(w.members), w.me, root)
	}
	size, stride := op.DType.Size(), op.roundStride()
	in := make([][]byte, w.fold.inputs)
	for i := range w.members {
		m := &w.members[i]
		for k := range m.cover {
			in[m.regs+k] = offers[i][int64(k)*stride:][first*size : end*size]
		}
	}
	out := w.f.self.Segment[op.OutOffset:][:(end-first)*size]
	w.arith.run(w.fold, op.DType, in, [][]byte{out}, foldMode{final: true, scale: op.Scale, reduction: op.Reduction})
}

func (w *worker) moveRound(op *Op, root int, offers [][]byte) {
	size := op.DType.Size()
	for i := range offers {
		// With equal parts all members have the same shape, so the own one says where a part begins in theirs.
		from, at, elements := w.shape.get(op, w.me, i, root, w.shape)
		if elements > 0 {
			copy(w.f.self.Segment[op.OutOffset+at*size:][:elements*size], offers[i][from*size:])
		}
	}
}

// notOffered is the error for a member that has entered without inputs in its slot: it asked for something else.
func (w *worker) notOffered(op *Op, m *member) error {
	if rec, ok := m.local.board.read(w.stamp); ok && rec.sig != w.members[w.me].local.rec.sig {
		return w.mismatch(op, m)
	}
	return w.gone(m)
}
