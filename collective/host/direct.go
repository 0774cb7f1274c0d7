// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"phalanx"
	"phalanx/kernels"
)

// ringEvery is how many reduced chunks pass before sleeping members are rung: often enough that copying overlaps with
// reducing, rarely enough that waking costs little when ranks outnumber cores.
const ringEvery = 16

// cacheBytes is what the caches of a host surely do not hold. When the results of its members are more, they are written around
// the caches: who reads them finds them in memory anyway, and the inputs and sums that are needed next stay.
const cacheBytes = 32 << 20

// direct is the all-to-all form of every kind: each member makes its piece of the result (a reduced shard, or just its
// input) and the others copy it, from the mapping or from frames. All flows of the operation advance chunk by chunk.
type direct struct {
	w     *worker
	op    *Op
	size  int64
	peers []directPeer // by member
	copy  func(dst, src []byte)

	// The own shard, when the kind sums: elements [first, end), its place in the own output, and the chunks done.
	first, end int64
	outBase    int64
	reduced    int

	in  [][]byte // by register of the fold, for the chunk that is reduced
	out [1][]byte
}

// directPeer is the state between this member and one member, itself included.
type directPeer struct {
	// Elements of its shard, which it reduces from our inputs.
	first, end int64
	// piece is what it contributes to our output, and gift what we contribute to its.
	piece, gift piece
	// Frames that have come and are not used yet.
	inputs []*frame
	pieces []*frame
	acked  [streams]uint64
	// Chunks sent to it: of our inputs for its shard, and of our piece.
	inputsSent, pieceSent int
	inputsUsed            int
}

// piece is a range of bytes at `at` in an output that comes from `from` in the segment of its maker.
type piece struct {
	at, from, bytes int64
	chunks, done    int
	summed          bool // ready as its maker's progress says, otherwise from the start
}

func chunksOf(elements int64) int { return int((elements + chunkElements - 1) / chunkElements) }

func newDirect(w *worker, op *Op, root int) *direct {
	n := len(w.members)
	d := &direct{w: w, op: op, size: op.DType.Size(), peers: make([]directPeer, n)}
	for i := range d.peers {
		p, m := &d.peers[i], &w.members[i]
		var rec record
		var theirs *shape
		if m.local != nil {
			rec, theirs = m.local.rec, m.local.shape
		}
		if m.self {
			theirs = w.shape
		}
		p.first, p.end = w.shape.reduced(op, n, i, root)
		if op.Kind == AllReduce {
			at := p.first * d.size
			p.piece = piece{at: op.OutOffset + at, from: rec.out + at, bytes: (p.end - p.first) * d.size, summed: true}
		} else {
			from, at, elements := w.shape.get(op, w.me, i, root, theirs)
			p.piece = piece{at: op.OutOffset + at*d.size, from: rec.in + from*d.size, bytes: elements * d.size}
			from, elements = w.shape.give(op, w.me, i, root)
			p.gift = piece{from: op.InOffset + from*d.size, bytes: elements * d.size, chunks: chunksOf(elements)}
		}
		p.piece.chunks = chunksOf(p.piece.bytes / d.size)
	}
	d.copy = func(dst, src []byte) { copy(dst, src) }
	if w.shape.out*d.size*int64(len(w.locals)+1) >= cacheBytes {
		d.copy = kernels.Stream
	}
	own := &d.peers[w.me]
	d.first, d.end, d.outBase = own.first, own.end, op.OutOffset
	if op.Kind == AllReduce {
		d.outBase += own.first * d.size
		own.piece.done = own.piece.chunks // reduced in place
		for i := range d.peers {
			d.peers[i].gift = own.piece
		}
	}
	if op.sums() {
		d.in = make([][]byte, w.fold.inputs)
		d.reduced = counted(w.board.load(wordReduced), w.stamp) // by an earlier daemon of this member
	}
	return d
}

// chunk returns the bytes of chunk c of a range of elements: offset from the start of the range, and length.
func (d *direct) chunk(elements int64, c int) (offset, bytes int64) {
	first := int64(c) * chunkElements
	return first * d.size, min(chunkElements, elements-first) * d.size
}

// step makes at most one chunk of progress in every flow.
func (d *direct) step() (state, error) {
	d.receive()
	s, open := stuck, false
	advance := func(did, done bool, err error) error {
		if did {
			s = moved
		}
		open = open || !done
		return err
	}
	if err := advance(d.reduce()); err != nil {
		return stuck, err
	}
	n := len(d.peers)
	for k := range n {
		// Each member starts at its right neighbour, so that not all copy from the same one.
		i := (d.w.me + 1 + k) % n
		if err := advance(d.copyPiece(i)); err != nil {
			return stuck, err
		}
		if d.w.members[i].peer != nil {
			if err := advance(d.sendInputs(i)); err != nil {
				return stuck, err
			}
			if err := advance(d.sendPiece(i)); err != nil {
				return stuck, err
			}
		}
	}
	if !open {
		return finished, nil
	}
	return s, nil
}

// receive sorts what came from other hosts.
func (d *direct) receive() {
	for i := range d.peers {
		m := &d.w.members[i]
		if m.peer == nil {
			continue
		}
		p := &d.peers[i]
		frames, acked := d.w.take(m.peer)
		p.acked = acked
		for _, f := range frames {
			switch f.stream {
			case streamInput:
				p.inputs = append(p.inputs, f)
			case streamPiece:
				p.pieces = append(p.pieces, f)
			default:
				f.free()
			}
		}
	}
}

// drop frees what was received and not used, when the operation ends early.
func (d *direct) drop() {
	for i := range d.peers {
		dropAll(&d.peers[i].inputs)
		dropAll(&d.peers[i].pieces)
	}
}

// reduce sums one chunk of the own shard, when all inputs for it are here.
func (d *direct) reduce() (did, done bool, err error) {
	elements := d.end - d.first
	chunks := chunksOf(elements)
	if !d.op.sums() || d.reduced == chunks {
		return false, true, nil
	}
	w := d.w
	for i := range d.peers {
		if w.members[i].peer != nil && len(d.peers[i].inputs) < len(w.members[i].cover) {
			return false, false, nil
		}
	}
	offset, bytes := d.chunk(elements, d.reduced)
	for i := range d.peers {
		if err := d.gather(i, offset, bytes); err != nil {
			return false, false, err
		}
	}
	d.out[0] = w.f.self.Segment[d.outBase+offset:][:bytes]
	w.arith.run(w.fold, d.op.DType, d.in, d.out[:], foldMode{final: true, scale: d.op.Scale, reduction: d.op.Reduction})
	for i := range d.peers {
		m := &w.members[i]
		if err := w.still(m); err != nil {
			return false, false, err
		}
		if m.peer != nil {
			d.used(i)
		}
	}
	d.reduced++
	w.board.store(wordReduced, progress(w.stamp, d.reduced))
	if d.reduced == chunks || d.reduced%ringEvery == 0 {
		w.ringLocals()
	}
	return true, d.reduced == chunks, nil
}

// gather sets the fold's registers to the inputs of member i for the present chunk.
func (d *direct) gather(i int, offset, bytes int64) error {
	m, p := &d.w.members[i], &d.peers[i]
	for k := range m.cover {
		if m.peer == nil {
			at := m.local.rec.in + int64(k)*m.local.rec.stride + d.first*d.size + offset
			d.in[m.regs+k] = m.local.segment[at:][:bytes]
			continue
		}
		f := p.inputs[k]
		if f.chunk != uint64(d.reduced) || int(f.node) != k || int64(f.payload) != bytes {
			return fmt.Errorf("rank %d sent %d bytes of chunk %d of buffer %d, want %d bytes of chunk %d of buffer %d: %w",
				m.rank, f.payload, f.chunk, f.node, bytes, d.reduced, k, ErrPeer)
		}
		d.in[m.regs+k] = f.data()
	}
	return nil
}

// used frees the frames of the present chunk and gives credit for more.
func (d *direct) used(i int) {
	m, p := &d.w.members[i], &d.peers[i]
	for k := range m.cover {
		p.inputs[k].free()
		p.inputs[k] = nil
	}
	p.inputs = p.inputs[len(m.cover):]
	p.inputsUsed++
	d.w.ack(m.peer, streamInput, p.inputsUsed)
}

// copyPiece copies one chunk of member i's piece into the own output.
func (d *direct) copyPiece(i int) (did, done bool, err error) {
	m, p := &d.w.members[i], &d.peers[i].piece
	if p.done == p.chunks {
		return false, true, nil
	}
	offset, bytes := d.chunk(p.bytes/d.size, p.done)
	dst := d.w.f.self.Segment[p.at+offset:][:bytes]
	if m.peer != nil {
		frames := &d.peers[i].pieces
		if len(*frames) == 0 {
			return false, false, nil
		}
		f := (*frames)[0]
		if f.chunk != uint64(p.done) || int64(f.payload) != bytes {
			return false, false, fmt.Errorf("rank %d sent %d bytes of chunk %d, want %d bytes of chunk %d: %w",
				m.rank, f.payload, f.chunk, bytes, p.done, ErrPeer)
		}
		copy(dst, f.data())
		f.free()
		(*frames)[0] = nil
		*frames = (*frames)[1:]
		p.done++
		d.w.ack(m.peer, streamPiece, p.done)
		return true, p.done == p.chunks, nil
	}
	if p.summed && counted(m.local.board.load(wordReduced), d.w.stamp) <= p.done {
		// While it reduces it has not left; a board that moved will never say more.
		return false, false, d.w.still(m)
	}
	if !m.self || p.at != p.from {
		d.copy(dst, m.local.segment[p.from+offset:][:bytes])
	}
	if err := d.w.still(m); err != nil {
		return false, false, err
	}
	p.done++
	return true, p.done == p.chunks, nil
}

// sendInputs sends one chunk of the own buffers to member i of another host, for its shard.
func (d *direct) sendInputs(i int) (did, done bool, err error) {
	w, p := d.w, &d.peers[i]
	total := chunksOf(p.end - p.first)
	if !d.op.sums() || p.inputsSent == total {
		return false, true, nil
	}
	if uint64(p.inputsSent) >= p.acked[streamInput]+window {
		return false, false, nil
	}
	offset, bytes := d.chunk(p.end-p.first, p.inputsSent)
	for k := range w.members[w.me].cover {
		at := d.op.InOffset + int64(k)*d.op.InStride + p.first*d.size + offset
		d.send(i, streamInput, k, p.inputsSent, w.f.self.Segment[at:][:bytes])
	}
	p.inputsSent++
	return true, p.inputsSent == total, nil
}

// sendPiece sends one chunk of the own piece to member i of another host.
func (d *direct) sendPiece(i int) (did, done bool, err error) {
	w, p := d.w, &d.peers[i]
	own := &p.gift
	if p.pieceSent == own.chunks {
		return false, true, nil
	}
	ready := own.chunks
	if own.summed {
		ready = d.reduced
	}
	if p.pieceSent >= ready || uint64(p.pieceSent) >= p.acked[streamPiece]+window {
		return false, false, nil
	}
	offset, bytes := d.chunk(own.bytes/d.size, p.pieceSent)
	d.send(i, streamPiece, 0, p.pieceSent, w.f.self.Segment[own.from+offset:][:bytes])
	p.pieceSent++
	return true, p.pieceSent == own.chunks, nil
}

// send copies bytes into a frame for member i: from here on the segment is not needed for it.
func (d *direct) send(i, stream, node, chunk int, b []byte) {
	h := d.w.head(frameData)
	h.stream, h.node, h.chunk = uint32(stream), uint16(node), uint64(chunk)
	f := newData(h, len(b))
	copy(f.data(), b)
	d.w.members[i].peer.link.send(f)
}

// missing names the members that the operation waits for.
func (d *direct) missing() (ranks []phalanx.Rank) {
	for i := range d.peers {
		p, m := &d.peers[i], &d.w.members[i]
		reducing := d.op.sums() && d.reduced < chunksOf(d.end-d.first)
		late := p.piece.done < p.piece.chunks || m.peer != nil && reducing && len(p.inputs) < len(m.cover)
		if m.peer != nil {
			late = late || d.op.sums() && p.inputsSent < chunksOf(p.end-p.first) || p.pieceSent < p.gift.chunks
		}
		if late && !m.self {
			ranks = append(ranks, m.rank)
		}
	}
	return ranks
}
