// SPDX-License-Identifier: Apache-2.0

package host

// A small sum inside of one host takes one round. Each member copies its inputs to a slot of its board before it enters, and
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
	return wordRound + s*roundWords, b.round[s*roundBytes:][:roundBytes]
}

// roundStride is the distance between the buffers in a slot.
func (op *Op) roundStride() int64 {
	const line = 64
	return (op.Count*op.DType.Size() + line - 1) / line * line
}

// oneRound reports whether the operation takes one round. All members come to the same answer.
func (w *worker) oneRound(op *Op) bool {
	return op.sums() && w.oneHost && len(w.members) <= w.f.e.o.DirectMax &&
		op.Count*op.DType.Size() <= int64(w.f.e.o.OneRoundMax) && int64(w.covers)*op.roundStride() <= roundBytes
}

// offer copies the inputs to the board. A slot that an earlier daemon of this member had filled stays: others may be reading.
func (w *worker) offer(op *Op) {
	words, payload := w.board.roundSlot(w.seq)
	if w.board.load(words+roundStamp) == w.stamp {
		return
	}
	w.board.store(words+roundStamp, 0)
	bytes, stride := op.Count*op.DType.Size(), op.roundStride()
	for k := range w.members[w.me].cover {
		copy(payload[int64(k)*stride:][:bytes], w.f.self.Segment[op.InOffset+int64(k)*op.InStride:][:bytes])
	}
	w.board.store(words+roundSig, op.sig(w.f.e.o))
	w.board.store(words+roundStamp, w.stamp)
}

// sumRound sums what all members have offered into the own result.
func (w *worker) sumRound(op *Op) error {
	first, end := int64(0), op.Count
	if op.Kind == ReduceScatter {
		first, end = Shard(op.Count, len(w.members), w.me)
	}
	size, stride := op.DType.Size(), op.roundStride()
	in := make([][]byte, w.fold.inputs)
	for i := range w.members {
		m := &w.members[i]
		words, payload := m.local.board.roundSlot(w.seq)
		switch {
		case m.local.board.load(words+roundStamp) != w.stamp:
			return w.notOffered(op, m)
		case m.local.board.load(words+roundSig) != w.members[w.me].local.rec.sig:
			return w.mismatch(op, m)
		}
		for k := range m.cover {
			in[m.regs+k] = payload[int64(k)*stride:][first*size : end*size]
		}
	}
	out := w.f.self.Segment[op.OutOffset:][:(end-first)*size]
	w.arith.run(w.fold, op.DType, in, [][]byte{out}, foldMode{final: true, scale: op.Scale})
	for i := range w.members {
		m := &w.members[i]
		if words, _ := m.local.board.roundSlot(w.seq); m.local.board.load(words+roundStamp) != w.stamp {
			return w.gone(m)
		}
	}
	w.board.store(wordLeft, w.stamp)
	return nil
}

// notOffered is the error for a member that has entered without inputs in its slot: it asked for something else.
func (w *worker) notOffered(op *Op, m *member) error {
	if rec, ok := m.local.board.read(w.stamp); ok && rec.sig != w.members[w.me].local.rec.sig {
		return w.mismatch(op, m)
	}
	return w.gone(m)
}
