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
		return w.sumRound(op)
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
	if op.Kind == AllReduce && len(w.members) > w.f.e.o.DirectMax {
		return w.halve(op)
	}
	d := newDirect(w, op, root)
	defer d.drop()
	return w.drive(d.step, d.missing)
}

// admit refuses what this member alone can know to be wrong.
func (w *worker) admit(op *Op, root int) error {
	own := &w.members[w.me]
	if op.Kind == Broadcast && root < 0 {
		return fmt.Errorf("broadcast: rank %d is not in the group: %w", op.Root, ErrInvalid)
	}
	if op.sums() && w.foldErr != nil {
		return fmt.Errorf("%s: %v: %w", op.Kind, w.foldErr, ErrInvalid)
	}
	return op.check(int64(len(w.f.self.Segment)), len(w.members), w.me, len(own.cover), root == w.me)
}

// enter tells everybody. The last one of a host to enter wakes those who wait; others need not ring.
func (w *worker) enter(op *Op) {
	sig := op.sig(w.f.e.o)
	own := w.members[w.me].local
	own.rec = record{sig, op.InOffset, op.InStride, op.OutOffset}
	w.board.post(w.stamp, sig, op)
	for i := range w.members {
		if p := w.members[i].peer; p != nil {
			h := w.head(framePost)
			h.word = sig
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
			theirs = w.postedBy(m.peer, sig)
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

func (w *worker) postedBy(p *remote, ahead uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := p.posted[w.seq%2]; at.seq == w.seq {
		return at.sig
	}
	return ahead
}

// peerFits checks what another process wrote on its board before it is used as an address.
func (w *worker) peerFits(op *Op, i, root int) error {
	m := &w.members[i]
	peer := *op
	peer.InOffset, peer.InStride, peer.OutOffset = m.local.rec.in, m.local.rec.stride, m.local.rec.out
	peer.InNodes = len(m.cover)
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
