// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// saver is this member's part in saves: it lets the trainer stage into the slab and writes the member's share to the store.
// The leader's part is in publish.go. The loop owns it; files are written beside it.
type saver struct {
	d        *Daemon
	pub      *publisher // while this daemon leads
	sequence uint64
	want     *SaveAsk      // asked for and not staged yet
	current  ckpt.Attempt  // that is being written, or was last
	done     *ShardWritten // the newest share that is in the store: told again when it is asked for again
	life     *life         // whose slab is asked or written
	writing  bool
	cancel   context.CancelFunc
	written  chan struct{} // closed when the write under way ends

	old    *oldSlab // the newest whole slab of an earlier life
	sought oldKey   // for what it was looked for last
	mu     sync.Mutex
}

// oldSlab is a slab that outlived its trainer.
type oldSlab struct {
	life    phalanx.Incarnation
	label   phalanx.Label
	region  *wire.Region
	slab    *wire.Slab
	layout  []phalanx.TensorInfo
	digests []byte
}

func newSaver(d *Daemon) *saver { return &saver{d: d, sequence: sequenceBase()} }

// asked is the leader's word that a save is due.
func (s *saver) asked(m *SaveAsk) {
	d := s.d
	l := d.life
	if m.Attempt.Generation != d.state.World.Generation || l == nil || l.slabs == nil || l.machine.Seat() == nil {
		return
	}
	switch {
	case s.done != nil && s.done.Attempt == m.Attempt:
		d.sendUp(&Message{Shard: s.done})
		return
	case s.writing && s.current == m.Attempt, s.want != nil && s.want.Attempt == m.Attempt && s.life == l:
		return // the leader asks again for what it has not heard of
	}
	s.want = m
	if s.writing {
		return // begun when the write under way ends
	}
	s.begin()
}

func (s *saver) begin() {
	l, m := s.d.life, s.want
	if m == nil || l == nil || l.slabs == nil {
		return
	}
	s.life = l
	if h, n := l.slabs.ReadHeader(); n > 0 && h.State == wire.SlabStateFull && h.LabelStep == m.Attempt.Step && s.d.state.OfLineage(h.Label()) {
		s.write(m, h.Label()) // an earlier attempt staged it
		return
	}
	s.sequence++
	l.page.WriteSave(wire.Save{Step: m.Attempt.Step, Sequence: s.sequence})
	failpoint.Here("save-asked")
	s.d.ringTrainer()
}

// scan looks for the trainer's answer.
func (s *saver) scan() {
	l := s.d.life
	if s.want == nil || s.writing || s.life != l || l == nil {
		return
	}
	v, n := l.page.ReadStaged()
	if n == 0 || v.Sequence != s.sequence {
		return
	}
	m := s.want
	if !v.OK {
		s.want = nil
		s.d.sendUp(&Message{Shard: &ShardWritten{Attempt: m.Attempt, Missed: true}})
		return
	}
	s.write(m, phalanx.Label{Step: v.Step, Generation: v.Generation, Digest: v.Digest, Coordinate: v.Coordinate})
}

// write puts the member's share of a staged state into the store, in the background.
func (s *saver) write(m *SaveAsk, label phalanx.Label) {
	d, l := s.d, s.life
	s.want = nil
	seat := l.machine.Seat()
	if seat == nil || m.Attempt.Generation != d.state.World.Generation {
		return
	}
	failpoint.Here("staged")
	var ranks []phalanx.Rank
	for _, o := range d.state.World.Seats {
		if o.Coordinate == seat.Coordinate {
			ranks = append(ranks, o.Rank)
		}
	}
	ctx, cancel := context.WithCancel(d.ctx)
	s.writing, s.current, s.cancel, s.written = true, m.Attempt, cancel, make(chan struct{})
	rank, done := seat.Rank, s.written
	d.ends.Go(func() {
		defer cancel()
		out := ShardWritten{Attempt: m.Attempt, Label: label}
		plan, err := ckpt.NewPlan(label.Coordinate, l.layout, ranks, ckpt.PlanOptions{})
		if err == nil {
			failpoint.Here("shard-writing")
			out.Part, err = ckpt.WriteShard(ctx, d.store, m.Attempt, rank, plan, slabSource{l.slabs, l.layout})
		}
		if err != nil {
			out.Failed = err.Error()
		}
		ended := ctx.Err() != nil
		close(done)
		d.post(func() {
			s.writing = false
			if err != nil && !ended {
				d.log.Warn("the share of a save is not written", "step", uint64(m.Attempt.Step), "error", err)
			}
			failpoint.Here("shard-written")
			if err == nil {
				s.done = &out
			}
			d.sendUp(&Message{Shard: &out})
			d.dirty = true
			s.begin()
		})
	})
}

// release ends what reads a life's slab, so that it can be unmapped.
func (s *saver) release(l *life) {
	written := make(chan (<-chan struct{}), 1) // 1: the loop answers once
	s.d.post(func() {
		if s.life == l {
			s.want, s.life = nil, nil
			if s.writing {
				s.cancel()
			}
		}
		written <- s.written
	})
	select {
	case w := <-written:
		if w != nil {
			<-w
		}
	case <-s.d.ctx.Done():
	}
	s.mu.Lock() // whoever serves from the slab has ended, and nobody begins: the life is marked
	defer s.mu.Unlock()
}

func (s *saver) stateChanged(old, now *elastic.State) {
	if old.World.Generation != now.World.Generation && s.want != nil {
		s.want = nil
	}
	if s.pub != nil {
		s.pub.stateChanged(old, now)
	}
}

func (s *saver) tick(now time.Time) {
	s.findOld()
	if s.pub != nil {
		s.pub.tick(now)
	}
}

// slabs are the labels of the whole states in this host's memory that outlive the trainer.
func (s *saver) slabs() []phalanx.Label {
	var out []phalanx.Label
	if s.d.life != nil {
		out = s.d.life.slabLabels()
	}
	if s.old != nil {
		out = append(out, s.old.label)
	}
	return out
}

// oldKey is what the search for an old slab depends on besides the files.
type oldKey struct {
	life    phalanx.Incarnation
	tensors int
}

// findOld maps the newest whole slab of an earlier life, until the present life has one of its own.
func (s *saver) findOld() {
	d := s.d
	if d.life == nil || len(d.state.State) == 0 {
		return
	}
	if labels := d.life.slabLabels(); len(labels) > 0 && s.old != nil && labels[0].Step >= s.old.label.Step {
		s.drop()
		return
	}
	if key := (oldKey{d.life.who.Incarnation, len(d.state.State)}); d.renamed || key != s.sought {
		s.sought = key
	} else {
		return // nothing has come since the last look
	}
	lives := d.paths.Lives(d.cfg.Index)
	for i := len(lives) - 1; i >= 0; i-- {
		n := lives[i]
		if n >= d.life.who.Incarnation {
			continue
		}
		if s.old != nil && s.old.life >= n {
			return
		}
		o, err := openOldSlab(d.paths, d.cfg.Index, n, d.state.State)
		if err != nil {
			continue // none, or torn by its trainer's death
		}
		if s.old != nil && s.old.label.Step >= o.label.Step {
			_ = o.region.Unmap()
			return
		}
		s.drop()
		s.mu.Lock()
		s.old = o
		s.mu.Unlock()
		d.dirty = true
		return
	}
}

func (s *saver) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.old != nil {
		_ = s.old.region.Unmap()
		s.old = nil
	}
}

func openOldSlab(paths Paths, index int, n phalanx.Incarnation, layout []phalanx.TensorInfo) (*oldSlab, error) {
	place, err := wire.LayoutSlab(layout)
	if err != nil {
		return nil, err
	}
	r, err := paths.memory.OpenRegion(paths.Shared(index, n, "slab"), false)
	if err != nil {
		return nil, err
	}
	slab, err := wire.NewSlab(r.Bytes(), place)
	if err == nil {
		h, seq := slab.ReadHeader()
		if seq > 0 && h.State == wire.SlabStateFull && h.LayoutHash == place.Hash {
			return &oldSlab{life: n, label: h.Label(), region: r, slab: slab, layout: layout}, nil
		}
		err = errors.New("the slab is not whole")
	}
	return nil, errors.Join(err, r.Unmap())
}

// needs reports whether the files of an earlier life hold a slab that is still the only copy.
func (s *saver) needs(n phalanx.Incarnation) bool {
	return s.old != nil && s.old.life == n
}

// serveSlab reads from the slab with the wanted label: the present life's or an earlier one's.
func (s *saver) serveSlab(ctx context.Context, q stateQuery, use func([]byte) error) error {
	answer := make(chan ownSlab, 1) // 1: the loop answers once
	s.d.post(func() {
		l := s.d.life
		answer <- ownSlab{l, l.slabs, l.layout}
	})
	var own ownSlab
	select {
	case own = <-answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	b, err := s.readSlab(own, q)
	if err != nil {
		return err
	}
	return use(b)
}

// ownSlab is the slab of the present life as the loop has it.
type ownSlab struct {
	life   *life
	slab   *wire.Slab
	layout []phalanx.TensorInfo
}

// readSlab copies the wanted bytes under the lock that keeps slabs mapped. The loop takes it too, so that it is not held while
// somebody far away receives.
func (s *saver) readSlab(own ownSlab, q stateQuery) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.old
	if o == nil || o.label != q.label {
		if own.slab == nil || own.life.retired.Load() {
			return nil, fmt.Errorf("no slab of %s here: %w", q.label, errNotYet)
		}
		if labels := wholeLabels(own.slab); len(labels) == 0 || labels[0] != q.label {
			return nil, fmt.Errorf("no slab of %s here: %w", q.label, errNotYet)
		}
		o = &oldSlab{slab: own.slab, layout: own.layout}
	}
	if q.tensor < 0 {
		if o.digests == nil {
			o.digests = slabDigests(o.slab, o.layout)
		}
		return o.digests, nil
	}
	if q.tensor >= len(o.layout) || q.off > int64(len(o.slab.Tensor(q.tensor)))-q.length {
		return nil, fmt.Errorf("tensor %d from %d is not in the slab", q.tensor, q.off)
	}
	b := slices.Clone(o.slab.Tensor(q.tensor)[q.off : q.off+q.length])
	if labels := wholeLabels(o.slab); len(labels) == 0 || labels[0] != q.label {
		return nil, fmt.Errorf("the slab was filled anew: %w", errNotYet)
	}
	return b, nil
}

// slabSource reads a slab for the store.
type slabSource struct {
	slab   *wire.Slab
	layout []phalanx.TensorInfo
}

// Layout lists the tensors.
func (s slabSource) Layout() []phalanx.TensorInfo { return s.layout }

// ReadAt copies bytes of a tensor.
func (s slabSource) ReadAt(tensor int, off int64, p []byte) error {
	b := s.slab.Tensor(tensor)
	if off < 0 || off+int64(len(p)) > int64(len(b)) {
		return fmt.Errorf("tensor %d has %d bytes, not %d from %d", tensor, len(b), len(p), off)
	}
	copy(p, b[off:])
	return nil
}
