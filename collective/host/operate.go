// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"phalanx"
)

// operate runs one operation between all members of the group: enter, agree, move the data, leave. A small sum inside of one
// host takes one round.
func (w *worker) operate(op *Op) error {
	root := -1
	for i := range w.members {
		if w.members[i].rank == op.Root {
			root = i
		}
	}
	if err := w.admit(op, root); err != nil {
		return err
	}
	round := w.oneRound(op)
	if reached(w.board.load(wordLeft), w.stamp) {
		if round {
			return nil
		}
		return w.leave() // an earlier daemon of this member had moved everything; only the others are waited for
	}
	if round {
		w.offer(op)
	}
	w.enter(op)
	if err := w.drive(w.entered, w.notEntered); err != nil {
		return err
	}
	if round {
		return w.takeRound(op, root)
	}
	if err := w.agree(op, root); err != nil {
		return err
	}
	if op.Kind == Barrier {
		return nil
	}
	if err := w.move(op, root); err != nil {
		return err
	}
	return w.leave()
}

// move takes the data where it belongs.
func (w *worker) move(op *Op, root int) error {
	if op.Kind == AllReduce && w.id == 0 && len(w.members) > w.f.e.o.DirectMax {
		return w.halve(op)
	}
	d := newDirect(w, op, root)
	defer d.drop()
	return w.drive(d.step, d.missing)
}

// admit refuses what this member alone can know to be wrong.
func (w *worker) admit(op *Op, root int) error {
	if w.id != 0 {
		shape, err := op.shapeOf(w.f.self.Segment, len(w.members), w.me, root)
		if err != nil {
			return err
		}
		w.shape = shape
		if shape.in == 0 { // what is not there lies nowhere
			op.InOffset = 0
		}
		if shape.out == 0 {
			op.OutOffset = 0
		}
		if op.InStride = 0; op.Counts {
			op.InStride = op.CountsOffset // where the others look for the numbers
		}
		return nil
	}
	own := &w.members[w.me]
	if op.Kind == Broadcast && root < 0 {
		return fmt.Errorf("broadcast: rank %d is not in the group: %w", op.Root, ErrInvalid)
	}
	if op.sums() && w.foldErr != nil {
		return fmt.Errorf("%s: %v: %w", op.Kind, w.foldErr, ErrInvalid)
	}
	if err := op.check(int64(len(w.f.self.Segment)), len(w.members), w.me, len(own.cover), root == w.me); err != nil {
		return err
	}
	w.shape = op.stepShape(len(w.members), w.me, root)
	return nil
}

// sig is that of the operation in this group.
func (w *worker) sig(op *Op) uint64 {
	if w.id != 0 {
		return op.groupSig(w.f.e.o, w.ranks, w.shape)
	}
	return op.sig(w.f.e.o)
}

// enter tells everybody. The last one of a host to enter wakes those who wait; others need not ring.
func (w *worker) enter(op *Op) {
	sig := w.sig(op)
	own := w.members[w.me].local
	own.rec = record{sig, op.InOffset, op.InStride, op.OutOffset}
	w.board.post(w.stamp, sig, op)
	for i := range w.members {
		if p := w.members[i].peer; p != nil {
			h := w.head(framePost)
			h.word = sig
			if op.Kind == AllToAll {
				_, elements := w.shape.give(op, w.me, i, 0)
				h.chunk = uint64(elements)
			}
			p.link.send(&frame{header: h})
		}
	}
	if !w.someoneFollows() {
		w.ringLocals()
	}
}

// someoneFollows reports whether a member of this host has not entered the operation yet: it will look after us, and ring.
func (w *worker) someoneFollows() bool {
	for _, l := range w.locals {
		l.find(w.f.gen, w.id)
		if !l.board.hasEntered(w.stamp) {
			return true
		}
	}
	return false
}

func (w *worker) entered() (state, error) {
	if len(w.notEntered()) > 0 {
		return stuck, nil
	}
	return finished, nil
}

func (w *worker) notEntered() (ranks []phalanx.Rank) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.members {
		m := &w.members[i]
		in := false
		switch {
		case m.self:
			in = true
		case m.local != nil:
			m.local.find(w.f.gen, w.id)
			in = m.local.board.hasEntered(w.stamp)
		default:
			// A peer can be one operation ahead, where its own check has found our signature to be equal.
			in = m.peer.posted[w.seq%2].seq == w.seq || m.peer.posted[(w.seq+1)%2].seq == w.seq+1
		}
		if !in {
			ranks = append(ranks, m.rank)
		}
	}
	return ranks
}

// agree compares what everybody posted, and checks that peers' buffers lie in their segments.
func (w *worker) agree(op *Op, root int) error {
	sig := w.members[w.me].local.rec.sig
	for i := range w.members {
		m := &w.members[i]
		theirs := sig
		switch {
		case m.self:
		case m.local != nil:
			rec, ok := m.local.board.read(w.stamp)
			if !ok {
				// Only a barrier lets a member go ahead before we have left, and only after it found our signature equal.
				if op.Kind == Barrier && m.local.board.hasEntered(w.stamp) {
					continue
				}
				return w.gone(m)
			}
			m.local.rec, theirs = rec, rec.sig
		default:
			var gift int64
			theirs, gift = w.postedBy(m.peer, sig)
			if theirs == sig && op.Kind == AllToAll {
				if _, _, elements := w.shape.get(op, w.me, i, root, nil); gift != elements {
					return w.uneven(m, gift, elements)
				}
			}
		}
		if theirs != sig {
			return w.mismatch(op, m)
		}
		if m.local != nil && !m.self {
			if err := w.peerFits(op, i, root); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) mismatch(op *Op, m *member) error {
	return fmt.Errorf("rank %d and rank %d: %w (here %s of %d elements, type %d, root %d, scaled %t)",
		w.members[w.me].rank, m.rank, ErrMismatch, op.Kind, op.Count, op.DType, op.Root, op.Scale)
}

// uneven is the error for a member that sends another number of elements than this one wants.
func (w *worker) uneven(m *member, gift, want int64) error {
	return fmt.Errorf("rank %d and rank %d: %w (all_to_all: %d elements are sent, %d wanted)", w.members[w.me].rank, m.rank, ErrMismatch, gift, want)
}

// postedBy returns the signature that a member of another host has posted, and how many elements it sends us in an AllToAll.
func (w *worker) postedBy(p *remote, ahead uint64) (sig uint64, gift int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := p.posted[w.seq%2]; at.seq == w.seq {
		return at.sig, at.gift
	}
	return ahead, 0
}

// peerFits checks what another process wrote on its board before it is used as an address.
func (w *worker) peerFits(op *Op, i, root int) error {
	m := &w.members[i]
	peer := *op
	peer.InOffset, peer.InStride, peer.OutOffset = m.local.rec.in, m.local.rec.stride, m.local.rec.out
	peer.InNodes = len(m.cover)
	if w.id != 0 {
		peer.CountsOffset = m.local.rec.stride
		theirs, err := peer.shapeOf(m.local.segment, len(w.members), i, root)
		if err != nil {
			return fmt.Errorf("rank %d: %w", m.rank, err)
		}
		m.local.shape = theirs
		if op.Kind == AllToAll {
			_, _, want := w.shape.get(op, w.me, i, root, theirs)
			if _, gift := theirs.give(op, i, w.me, root); gift != want {
				if err := w.still(m); err != nil {
					return err
				}
				return w.uneven(m, gift, want)
			}
		}
		return nil
	}
	if err := peer.check(int64(len(m.local.segment)), len(w.members), i, len(m.cover), i == root); err != nil {
		return fmt.Errorf("rank %d: %w", m.rank, err)
	}
	return nil
}

// gone is the error for a member whose board moved on: its daemon revoked, or gave the operation up.
func (w *worker) gone(m *member) error {
	if err := w.peersFailed(); err != nil {
		return err
	}
	return fmt.Errorf("rank %d took its memory back: %w", m.rank, phalanx.ErrRevoked)
}

// still checks, after something was read from a member's memory, that it was still offered.
func (w *worker) still(m *member) error {
	if m.self || m.local == nil || m.local.board.load(wordPosted) == w.stamp {
		return nil
	}
	return w.gone(m)
}

// leave waits until no member of this host reads this member's memory; members of other hosts got copies. The last one to
// leave wakes the others.
func (w *worker) leave() error {
	w.board.store(wordLeft, w.stamp)
	if len(w.notLeft()) == 0 {
		w.ringLocals()
		return nil
	}
	return w.drive(func() (state, error) {
		if len(w.notLeft()) > 0 {
			return stuck, nil
		}
		return finished, nil
	}, w.notLeft)
}

func (w *worker) notLeft() (ranks []phalanx.Rank) {
	for i := range w.members {
		m := &w.members[i]
		if m.local != nil && !m.self && !reached(m.local.board.load(wordLeft), w.stamp) {
			ranks = append(ranks, m.rank)
		}
	}
	return ranks
}
