// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"phalanx"
)

// window is how many chunks of a stream may be on their way unacknowledged: 2 MiB of float32. It bounds what a receiver
// has to keep, since the reader of a link takes everything at once and never blocks.
const window = 16

// The streams of one operation between two members.
const (
	// streamInput carries a member's input buffers of the receiver's shard.
	streamInput = 0
	// streamPiece carries the sender's part of the result.
	streamPiece = 1
	// streamPartial carries sums of subtrees in the halving exchange, and then the results of the doubling one.
	streamPartial = 2
	streams       = 3
)

// remote is what arrived from a member on another host. It is guarded by the worker's mutex.
type remote struct {
	link   *Link
	posted [2]struct { // of the present operation and the next, by seq mod 2
		seq  uint32
		sig  uint64
		gift int64 // elements that it sends us, in an AllToAll
	}
	frames []*frame        // data of the present operation, in order
	acked  [streams]uint64 // chunks taken by the peer
	failed uint32          // the operation that the peer gave up, 0 when none
	broken error
}

// deliver takes a frame from the link of a rank. It never blocks.
func (w *worker) deliver(rank phalanx.Rank, f *frame) {
	w.mu.Lock()
	p := w.remoteOf(rank)
	if p != nil && f.typ == frameFail {
		p.failed = f.seq // also after the end here: a lane waits for it
	}
	if p == nil || w.ended != nil {
		w.mu.Unlock()
		f.free()
		return
	}
	keep := false
	switch f.typ {
	case framePost:
		at := &p.posted[f.seq%2]
		at.seq, at.sig, at.gift = f.seq, f.word, int64(f.chunk)
	case frameAck:
		if f.seq == w.seq && f.stream < streams {
			p.acked[f.stream] = max(p.acked[f.stream], f.chunk)
		}
	case frameData:
		keep = f.seq == w.seq && f.stream < streams && p.broken == nil
		if keep && len(p.frames) >= streams*window*w.tree.MaxCover() {
			keep, p.broken = false, fmt.Errorf("more than %d frames without credit: %w", len(p.frames), ErrPeer)
		}
		if keep {
			p.frames = append(p.frames, f)
		}
	default: // frameFail was noted above, and messages are the courier's
	}
	w.mu.Unlock()
	if !keep {
		f.free()
	}
	w.ping()
	if f.typ == frameFail && w.id != 0 {
		w.f.courier.ping()
	}
}

func (w *worker) linkBroken(rank phalanx.Rank, err error) {
	w.mu.Lock()
	if p := w.remoteOf(rank); p != nil && p.broken == nil {
		p.broken = fmt.Errorf("link: %v: %w", err, ErrPeer)
	}
	w.mu.Unlock()
	w.ping()
}

func (w *worker) remoteOf(rank phalanx.Rank) *remote {
	for i := range w.members {
		if w.members[i].rank == rank {
			return w.members[i].peer
		}
	}
	return nil
}

// dropFrames returns the buffers of everything that was not used.
func (w *worker) dropFrames() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.members {
		if p := w.members[i].peer; p != nil {
			dropAll(&p.frames)
		}
	}
}

// advance moves to the next operation: what arrived for an earlier one is dropped. Data of the new one cannot be here yet,
// because nobody sends any before he has our post.
func (w *worker) advance() {
	w.dropFrames()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	w.stamp = stampOf(w.f.gen, w.seq)
	for i := range w.members {
		if p := w.members[i].peer; p != nil {
			p.acked = [streams]uint64{}
		}
	}
}

// take returns what arrived from a member since the last call, and how far it acknowledged each stream.
func (w *worker) take(p *remote) ([]*frame, [streams]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	frames := p.frames
	p.frames = nil
	return frames, p.acked
}

func (w *worker) ack(p *remote, stream, chunks int) {
	h := w.head(frameAck)
	h.stream, h.chunk = uint32(stream), uint64(chunks)
	p.link.send(&frame{header: h})
}
