// SPDX-License-Identifier: Apache-2.0

package node

import (
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

// saver is this member's part in saves: it lets the trainer stage into the slab and writes shares of the state to the store,
// its own and those that the leader gives it besides. The leader's part is in publisher.go. The loop owns it; objects are
// written beside it, one share at a time.
type saver struct {
	d        *Daemon
	pub      *publisher // while this daemon leads
	sequence uint64

	attempt ckpt.Attempt                   // asked for last
	queue   []phalanx.Rank                 // shares of it that are still to be written, in order
	told    map[phalanx.Rank]*ShardWritten // what was said about the others: said again when it is asked for again
	staging *life                          // whose trainer is asked for the state, nil when none is
	missed  bool                           // it has answered, and the slab has not the state
	record  saveRecord                     // of the job's saves, as the leader told it

	writing bool
	of      ckpt.Attempt // that is being written
	rank    phalanx.Rank // whose share that is
	reads   *life        // whose slab that is read from
	cancel  context.CancelFunc
	written chan struct{} // closed when the write under way ends
	read    atomic.Int64  // bytes of slabs that were read for saves
	plan    *ckpt.Plan    // of the newest write
	planned planKey

	own       *heldSlab    // that of the present life, when it was last looked for
	old       *heldSlab    // the newest whole slab of an earlier life
	sought    oldKey       // for what it was looked for last
	copies    []*heldSlab  // kept for other hosts, oldest first
	copy      *copying     // under way, nil when none is
	refused   phalanx.Step // newest for which there was no room
	looked    bool         // for copies of an earlier daemon
	mu        sync.RWMutex
	digesting sync.Mutex
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
	if m.Attempt != s.attempt {
		s.attempt, s.queue, s.told, s.staging, s.missed = m.Attempt, nil, map[phalanx.Rank]*ShardWritten{}, nil, false
		if s.writing {
			s.cancel() // nobody waits for that attempt any more
		}
	}
	for _, rank := range m.Ranks {
		switch {
		case rank < 0 || int(rank) >= d.state.World.Size():
		case s.told[rank] != nil: // the leader asks again for what it has not heard of
			d.sendUp(&Message{Shard: s.told[rank]})
		case slices.Contains(s.queue, rank) || s.writing && s.of == m.Attempt && s.rank == rank:
		default:
			s.queue = append(s.queue, rank)
		}
	}
	s.next()
}

// next goes on with the first share of the queue: it is written, waits for the trainer, or is answered at once.
func (s *saver) next() {
	l := s.d.life
	for len(s.queue) > 0 && !s.writing {
		rank := s.queue[0]
		seat := s.d.state.World.Seats[rank]
		held := s.find(s.attempt.Step, seat.Coordinate)
		if seat.Member != l.who.Member && perRank(s.d.state.State) {
			held = nil // it has tensors of its own
		}
		switch {
		case held != nil:
			s.queue = s.queue[1:]
			s.write(rank, held)
		case seat.Incarnate != l.who || l.slabs == nil || s.missed:
			s.queue = s.queue[1:]
			s.tell(&ShardWritten{Attempt: s.attempt, Rank: rank, Missed: true})
		case s.staging == l:
			return // scan goes on
		default:
			s.staging = l
			s.sequence++
			l.page.WriteSave(wire.Save{Step: s.attempt.Step, Sequence: s.sequence})
			failpoint.Here("save-asked")
			s.d.ringTrainer()
			return
		}
	}
}

func (s *saver) tell(m *ShardWritten) {
	s.told[m.Rank] = m
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
	s.staging, s.missed = nil, true // if the slab has it now, it is written
	s.d.dirty = true
	s.next()
}

// write puts a share of a staged state into the store, in the background.
func (s *saver) write(rank phalanx.Rank, held *heldSlab) {
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
	s.writing, s.of, s.rank, s.reads, s.cancel, s.written = true, s.attempt, rank, held.owner, cancel, make(chan struct{})
	attempt, done := s.attempt, s.written
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
			if attempt == s.attempt && !given {
				s.tell(&out)
			}
			d.dirty = true
			s.next()
		})
	})
}

// perRank reports whether ranks have tensors of their own.
func perRank(layout []phalanx.TensorInfo) bool {
	return slices.ContainsFunc(layout, func(t phalanx.TensorInfo) bool { return t.PerRank })
}

// idle reports whether no share is waited for.
func (s *saver) idle() bool { return len(s.queue) == 0 }

// release ends what reads a life's slab, so that it can be unmapped.
func (s *saver) release(l *life) {
	written := make(chan (<-chan struct{}), 1) // 1: the loop answers once
	s.d.post(func() {
		var w <-chan struct{}
		if s.staging == l {
			s.staging = nil
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
// in the slab, and is written by an attempt of the next generation.
func (s *saver) stateChanged(old, now *elastic.State) {
	if old.World.Generation != now.World.Generation {
		s.attempt, s.queue, s.told, s.staging = ckpt.Attempt{}, nil, nil, nil
		if s.writing {
			s.cancel()
		}
		if s.copy != nil {
			s.copy.cancel() // asked for again, if the next world wants it
		}
	}
	if len(now.Published) > 0 && (len(old.Published) == 0 || old.Published[len(old.Published)-1].Commit != now.Published[len(now.Published)-1].Commit) {
		s.record = saveRecord{}
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
