// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"slices"
	"sync"

	"phalanx"
)

// formation is one generation of an engine.
type formation struct {
	e       *Engine
	gen     phalanx.Generation
	self    Self
	world   phalanx.World
	workers [groups]*worker
	made    made
	courier *courier
	adopted bool // the daemon before this one was in the generation, with groups
	locals  []LocalPeer
	remotes []RemotePeer

	stop    chan struct{} // closed by revoke
	stopped chan struct{} // closed when the workers have ended
	once    sync.Once
	running sync.WaitGroup
}

// member is one seat of a group.
type member struct {
	rank  phalanx.Rank
	cover []phalanx.Node
	regs  int // first register of its input buffers in the group's fold
	self  bool
	local *local  // nil when remote; the own one included
	peer  *remote // nil when local
}

// local is a member whose memory is mapped.
type local struct {
	segment []byte
	memory  []byte // the whole board
	board   board
	ring    func()
	rec     record // what it posted, valid while an operation runs
	shape   *shape // and for AllToAll what that means there
}

func newFormation(e *Engine, world phalanx.World, self Self, locals []LocalPeer, remotes []RemotePeer) (*formation, error) {
	f := &formation{
		e: e, gen: world.Generation, self: self, world: world, locals: locals, remotes: remotes,
		made: made{byID: map[uint64]*worker{}, early: map[uint64][]earlyFrame{}},
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := checkMemory(self.Rank, self.Segment, self.Board); err != nil {
		return nil, err
	}
	places := map[phalanx.Rank]string{self.Rank: "self"}
	place := func(r phalanx.Rank, what string) error {
		if was, twice := places[r]; twice {
			return fmt.Errorf("rank %d is given as %s and as %s", r, was, what)
		}
		places[r] = what
		return nil
	}
	for _, l := range locals {
		if err := place(l.Rank, "local"); err != nil {
			return nil, err
		}
		if err := checkMemory(l.Rank, l.Segment, l.Board); err != nil {
			return nil, err
		}
	}
	for _, r := range remotes {
		if err := place(r.Rank, "remote"); err != nil {
			return nil, err
		}
		if r.Link == nil {
			return nil, fmt.Errorf("rank %d has no link", r.Rank)
		}
	}
	var own *phalanx.Seat
	for i := range world.Seats {
		s := &world.Seats[i]
		if places[s.Rank] == "" {
			return nil, fmt.Errorf("rank %d (%s) is neither local nor remote", s.Rank, s.Member)
		}
		if s.Rank == self.Rank {
			own = s
		}
	}
	if own == nil || len(places) != len(world.Seats) {
		return nil, fmt.Errorf("%d ranks are given for a world of %d seats, own rank %d", len(places), len(world.Seats), self.Rank)
	}
	for group := range f.workers {
		w := newWorker(f, group, world.SlotCount, boardOf(self.Board, group))
		for _, s := range world.Seats {
			if group == GroupReplicas && s.Coordinate != own.Coordinate {
				continue
			}
			w.add(s, self, locals, remotes)
		}
		w.complete()
		f.workers[group] = w
	}
	f.courier = newCourier(f)
	return f, nil
}

func checkMemory(r phalanx.Rank, segment, b []byte) error {
	if len(b) < BoardBytes {
		return fmt.Errorf("rank %d: board of %d bytes, want %d at least", r, len(b), BoardBytes)
	}
	if !aligned8(b) || len(segment) > 0 && !aligned8(segment) {
		return fmt.Errorf("rank %d: segment and board must start at a multiple of 8 bytes", r)
	}
	return nil
}

func (f *formation) start() {
	for _, w := range f.workers {
		if w.adopted = w.board.adopted(f.gen); w.adopted.seq == 0 {
			w.board.reset()
		}
	}
	for i := range lanes(f.self.Board) {
		f.adoptLane(i)
	}
	f.courier.reset()
	for _, w := range f.workers {
		f.running.Go(w.run)
	}
	f.running.Go(f.courier.run)
	for _, r := range f.remotes {
		r.Link.attach(f.gen, route{f, r.Rank})
	}
}

// revoke stops the workers and returns the channel that is closed when they have ended.
func (f *formation) revoke() <-chan struct{} {
	f.once.Do(func() {
		close(f.stop)
		f.made.mu.Lock()
		f.made.over = true
		workers := slices.Concat(f.made.all(), f.workers[:])
		f.made.mu.Unlock()
		for _, w := range workers {
			w.halt()
		}
		go func() {
			f.running.Wait()
			for _, r := range f.remotes {
				r.Link.detach(f.gen)
			}
			for _, w := range workers {
				w.dropFrames()
			}
			close(f.stopped)
		}()
	})
	return f.stopped
}

// route is the sink of one link: frames of its rank go to the worker of their group.
type route struct {
	f    *formation
	rank phalanx.Rank
}

func (r route) deliver(f *frame) {
	if phalanx.Rank(f.source) != r.rank {
		f.free()
		r.broken(fmt.Errorf("a frame says rank %d on the link of rank %d", f.source, r.rank))
		return
	}
	switch {
	case f.group < groups:
		r.f.workers[f.group].deliver(r.rank, f)
	case f.typ >= frameOffer:
		r.f.courier.deliver(r.rank, f)
	default:
		if err := r.f.made.deliver(r.rank, f); err != nil {
			f.free()
			r.broken(err)
		}
	}
}

func (r route) broken(err error) {
	for _, w := range r.f.workers {
		w.linkBroken(r.rank, err)
	}
	for _, w := range r.f.made.all() {
		w.linkBroken(r.rank, err)
	}
	r.f.courier.linkBroken(r.rank, err)
}
