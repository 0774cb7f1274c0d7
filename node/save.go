// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// saver is this member's part in saves: it lets the trainer stage into its slabs and writes shares of the state to the store,
// its own and those that the leader gives it besides. The leader's part is in publisher.go. The loop owns it; objects are
// written beside it, one share at a time.
type saver struct {
	d        *Daemon
	pub      *publisher // while this daemon leads
	sequence uint64

	orders  []*saveOrder // by step; those that the leader has not given up or published, as far as it was heard
	staging *life        // whose trainer is asked for a state, nil when none is
	stages  *saveOrder   // for which one
	record  saveRecord   // of the job's saves, as the leader told it

	writing bool
	of      ckpt.Attempt // that is being written
	rank    phalanx.Rank // whose share that is
	label   phalanx.Label
	reads   *life // whose slab that is read from
	cancel  context.CancelFunc
	written chan struct{} // closed when the write under way ends
	read    atomic.Int64  // bytes of slabs that were read for saves
	plan    *ckpt.Plan    // of the newest write
	planned planKey

	own       [wire.MaxSlabs]*heldSlab // those of the present life, when they were last looked for
	old       []*heldSlab              // the whole slabs of the newest earlier life that has any
	sought    oldKey                   // for what they were looked for last
	copies    []*heldSlab              // kept for other hosts, oldest first
	copy      *copying                 // under way, nil when none is
	refused   phalanx.Step             // newest for which there was no room
	looked    bool                     // for copies of an earlier daemon
	mu        sync.RWMutex
	digesting sync.Mutex
}

// saveOrder is what this member was asked for of one save.
type saveOrder struct {
	attempt ckpt.Attempt
	queue   []phalanx.Rank                 // shares that are still to be written, in order
	told    map[phalanx.Rank]*ShardWritten // what was said about the others: said again when it is asked for again
	missed  bool                           // the trainer has answered, and no slab has the state
}

// planKey is what a plan depends on: it is made once in a generation.
type planKey struct {
	generation phalanx.Generation
	coordinate int
}

func newSaver(d *Daemon) *saver { return &saver{d: d, sequence: sequenceBase()} }

// asked is the leader's word that shares of a save are due from this member.
func (s *saver) asked(m *SaveAsk) {
	d := s.d
	if m.Attempt.Generation != d.state.World.Generation || d.life == nil || d.plain != nil {
		return
	}
	s.record = m.Record
	o := s.order(m)
	for _, rank := range m.Ranks {
		switch {
		case rank < 0 || int(rank) >= d.state.World.Size():
		case o.told[rank] != nil: // the leader asks again for what it has not heard of
			d.sendUp(&Message{Shard: o.told[rank]})
		case slices.Contains(o.queue, rank) || s.writing && s.of == m.Attempt && s.rank == rank:
		default:
			o.queue = append(o.queue, rank)
		}
	}
	s.next()
}

// order is the order of a save. What is neither of that one nor of those beside it nobody waits for any more.
func (s *saver) order(m *SaveAsk) *saveOrder {
	under := func(a ckpt.Attempt) bool { return a == m.Attempt || slices.Contains(m.Beside, a) }
	s.orders = slices.DeleteFunc(s.orders, func(o *saveOrder) bool { return !under(o.attempt) })
	if s.stages != nil && !under(s.stages.attempt) {
		s.staging, s.stages = nil, nil
	}
	if s.writing && !under(s.of) {
		s.cancel()
	}
	i, found := slices.BinarySearchFunc(s.orders, m.Attempt, func(o *saveOrder, a ckpt.Attempt) int {
		return cmp.Or(cmp.Compare(o.attempt.Step, a.Step), cmp.Compare(o.attempt.Counter, a.Counter))
	})
	if !found {
		s.orders = slices.Insert(s.orders, i, &saveOrder{attempt: m.Attempt, told: map[phalanx.Rank]*ShardWritten{}})
	}
	return s.orders[i]
}

// next goes on with the first share that can be gone on with, of the earliest save: it is written, waits for the trainer, or is
// answered at once.
func (s *saver) next() {
	for _, o := range s.orders {
		for len(o.queue) > 0 && !s.writing && s.begin(o, o.queue[0]) {
			o.queue = o.queue[1:]
		}
	}
}

// begin reports whether a share needs no more waiting: it is being written, or was answered.
func (s *saver) begin(o *saveOrder, rank phalanx.Rank) bool {
	l := s.d.life
	seat := s.d.state.World.Seats[rank]
	held := s.find(o.attempt.Step, seat.Coordinate)
	if seat.Member != l.who.Member && perRank(s.d.state, seat.Coordinate) {
		held = nil // it has tensors of its own
	}
	switch {
	case held != nil:
		s.write(o, rank, held)
		return true
	case seat.Incarnate != l.who || len(l.slabs) == 0 || o.missed:
		s.tell(o, &ShardWritten{Attempt: o.attempt, Rank: rank, Missed: true})
		return true
	case s.staging != l: // else scan goes on
		s.staging, s.stages = l, o
		into, n := s.room(l), len(l.slabs)
		for s.sequence++; wire.SlabOf(s.sequence, n) != into; s.sequence++ {
		}
		l.page.WriteSave(wire.Save{Step: o.attempt.Step, Sequence: s.sequence})
		failpoint.Here("save-asked")
		s.d.ringTrainer()
	}
	return false
}

// room is the slab of a life that the next state is staged into: one with a state that no save under way needs, of those the one
// with the oldest.
func (s *saver) room(l *life) int {
	best, least := 0, phalanx.Step(0)
	for i, x := range l.slabs {
		rank := phalanx.Step(0) // holds nothing
		if label, whole := wholeLabel(x.Slab); whole {
			rank = 1 + label.Step
			if s.needed(label) {
				rank += 1 << 62
			}
		}
		if i == 0 || rank < least {
			best, least = i, rank
		}
	}
	return best
}

// needed reports whether a save under way is of the state.
func (s *saver) needed(l phalanx.Label) bool {
	if s.writing && s.label == l {
		return true
	}
	return s.d.state.OfLineage(l) && slices.ContainsFunc(s.orders, func(o *saveOrder) bool { return o.attempt.Step == l.Step })
}

func (s *saver) tell(o *saveOrder, m *ShardWritten) {
	o.told[m.Rank] = m
	s.d.sendUp(&Message{Shard: m})
}

// scan looks for the trainer's answer.
func (s *saver) scan() {
	l := s.d.life
	if s.staging == nil || s.staging != l {
		return
	}
	v, n := l.page.ReadStaged()
	if n == 0 || v.Sequence != s.sequence {
		return
	}
	s.stages.missed = true // if a slab has it now, it is written
	s.staging, s.stages = nil, nil
	s.d.dirty = true
	s.next()
}

// write puts a share of a staged state into the store, in the background.
func (s *saver) write(o *saveOrder, rank phalanx.Rank, held *heldSlab) {
	d := s.d
	failpoint.Here("staged")
	var ranks []phalanx.Rank
	for _, o := range d.state.World.Seats {
		if o.Coordinate == held.label.Coordinate {
			ranks = append(ranks, o.Rank)
		}
	}
	var state int64
	for _, t := range held.layout {
		state += t.Bytes()
	}
	puts := d.memory.puts(state)
	d.memory.set(partBuffers, bufferBytes(puts, state))
	ctx, cancel := context.WithCancel(d.ctx)
	s.writing, s.of, s.rank, s.label, s.reads, s.cancel, s.written = true, o.attempt, rank, held.label, held.owner, cancel, make(chan struct{})
	attempt, done := o.attempt, s.written
	key := planKey{d.state.World.Generation, held.label.Coordinate}
	plan := s.plan
	if s.planned != key {
		plan = nil
	}
	d.ends.Go(func() {
		defer cancel()
		out := ShardWritten{Attempt: attempt, Rank: rank, Label: held.label}
		var err error
		if plan == nil {
			plan, err = ckpt.NewPlan(held.label.Coordinate, held.layout, ranks, ckpt.PlanOptions{Puts: putsMost})
		}
		if err == nil {
			with := *plan // its deal is that of the generation; how many objects are written at once is this member's own
			with.Puts = puts
			failpoint.Here("shard-writing")
			out.Part, err = ckpt.WriteShard(ctx, d.store, attempt, rank, &with, slabSource{s, held, &s.read})
		}
		if err != nil {
			out.Failed = err.Error()
		}
		given := ctx.Err() != nil
		close(done)
		d.post(func() {
			s.writing, s.reads = false, nil
			d.memory.set(partBuffers, bufferBytes(1, state))
			if plan != nil {
				s.plan, s.planned = plan, key
			}
			if err != nil && !given {
				d.log.Warn("a share of a save is not written", "step", uint64(attempt.Step), "rank", int(rank), "error", err)
			}
			failpoint.Here("shard-written")
			if slices.Contains(s.orders, o) && !given {
				s.tell(o, &out)
			}
			d.dirty = true
			s.next()
		})
	})
}

// perRank reports whether ranks with a coordinate have tensors of their own.
func perRank(s *elastic.State, coordinate int) bool {
	layout, _ := s.LayoutOf(coordinate)
	return slices.ContainsFunc(layout, func(t phalanx.TensorInfo) bool { return t.PerRank })
}

// idle reports whether no share is waited for.
func (s *saver) idle() bool {
	return !slices.ContainsFunc(s.orders, func(o *saveOrder) bool { return len(o.queue) > 0 })
}

// release ends what reads a life's slab, so that it can be unmapped.
func (s *saver) release(l *life) {
	written := make(chan (<-chan struct{}), 1) // 1: the loop answers once
	s.d.post(func() {
		var w <-chan struct{}
		if s.staging == l {
			s.staging, s.stages = nil, nil
		}
		if s.writing && s.reads == l {
			s.cancel()
			w = s.written
		}
		written <- w
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

// stateChanged ends what belongs to an older generation: a save ends with the one that it was begun in. What was staged stays
// in its slab, and is written by an attempt of the next generation.
func (s *saver) stateChanged(old, now *elastic.State) {
	if old.World.Generation != now.World.Generation {
		s.orders, s.staging, s.stages = nil, nil, nil
		if s.writing {
			s.cancel()
		}
		if s.copy != nil {
			s.copy.cancel() // asked for again, if the next world wants it
		}
	}
	if len(now.Published) > 0 && (len(old.Published) == 0 || old.Published[len(old.Published)-1].Commit != now.Published[len(now.Published)-1].Commit) {
		s.record = saveRecord{Skipped: s.record.Skipped}
	}
	if s.pub != nil {
		s.pub.stateChanged(old, now)
	}
}

func (s *saver) tick(now time.Time) {
	s.findOld()
	s.findCopies()
	s.freeCopies()
	if s.pub != nil {
		s.pub.tick(now)
	}
}
