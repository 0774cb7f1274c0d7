// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"phalanx"
)

// Self is the member that the engine works for. Segment and Board are mapped read-write.
type Self struct {
	Rank phalanx.Rank
	// Segment is what the trainer's offsets refer to. It must start at a multiple of 8 bytes.
	Segment []byte
	// Board is BoardBytes of shared memory that only this engine writes, and GroupBytes more if the trainer makes groups.
	Board []byte
}

// LocalPeer is another member on the same host. Segment and Board are mappings of that member's, read-only.
type LocalPeer struct {
	Rank    phalanx.Rank
	Segment []byte
	Board   []byte
	// Ring wakes the peer's daemon, which calls Engine.Wake. It must not block.
	Ring func()
}

// RemotePeer is another member on another host.
type RemotePeer struct {
	Rank phalanx.Rank
	// Link leads to the peer's engine. It stays the caller's: the engine attaches and detaches, never closes it.
	Link *Link
}

// Options are the engine's settings. The zero value means the defaults.
type Options struct {
	// Timeout ends an operation without any progress, with ErrDeadline. It is the last resort below the deadlines of the
	// step, which are measured and end an operation by Revoke. Default 10 minutes.
	Timeout time.Duration
	// GroupTimeout is the same for groups that trainers make: those have a clock of their own, which may be longer, and abort. Default
	// Timeout.
	GroupTimeout time.Duration
	// DirectMax is the largest group that reduces all-to-all; larger ones use halving and doubling. It must be equal on
	// all members (it is part of the signature). Default 16.
	DirectMax int
	// OneRoundMax is the largest sum, in bytes, that members of one host take in one round: each sums everything itself. It
	// must be equal on all members, as DirectMax. Default 64 KiB; below 0 there is none.
	OneRoundMax int
	// Inline is the size in bytes, of the result or the input of one rank whichever is larger, up to which operations between
	// members of one host run on the goroutines that call Post and Wake, as far as they get, instead of on one of the engine's.
	// Somebody must then call Wake again and again while an operation waits, since its deadline is looked at there. Default
	// 0: none. It need not be equal on all members.
	Inline int64
}

// Engine runs the operations of one member. Its methods may be called from any goroutine.
type Engine struct {
	log *slog.Logger
	o   Options

	forming sync.Mutex // one Form at a time
	current atomic.Pointer[formation]

	mu     sync.Mutex
	fence  phalanx.Generation // newest generation that was formed or revoked
	closed bool
}

// New returns an engine without a generation.
func New(log *slog.Logger, o Options) *Engine {
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.GroupTimeout <= 0 {
		o.GroupTimeout = o.Timeout
	}
	if o.DirectMax <= 0 {
		o.DirectMax = 16
	}
	if o.OneRoundMax == 0 {
		o.OneRoundMax = 64 << 10
	}
	return &Engine{log: log, o: o}
}

// Form starts a generation: every seat of the world other than the own one must be given once, as local or as remote. The
// generation before is revoked first, and Form waits until its workers have left the segments. A generation that was
// revoked or formed before is refused with ErrStaleGeneration.
func (e *Engine) Form(world phalanx.World, self Self, locals []LocalPeer, remotes []RemotePeer) error {
	e.forming.Lock()
	defer e.forming.Unlock()
	gen := world.Generation
	f, err := newFormation(e, world, self, locals, remotes)
	if err != nil {
		return fmt.Errorf("form generation %s: %w", gen, err)
	}
	e.mu.Lock()
	stale := e.closed || !e.fence.Less(gen)
	e.mu.Unlock()
	if stale {
		return fmt.Errorf("form generation %s: %w", gen, phalanx.ErrStaleGeneration)
	}
	if old := e.current.Load(); old != nil {
		<-old.revoke()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// A Revoke or Close may have come while the old generation ended.
	if e.closed || !e.fence.Less(gen) {
		return fmt.Errorf("form generation %s: %w", gen, phalanx.ErrStaleGeneration)
	}
	e.fence = gen
	f.start()
	e.current.Store(f)
	e.log.Info("collectives formed", "generation", gen.String(), "rank", int(self.Rank), "world", world.Size(),
		"local", len(locals), "remote", len(remotes))
	return nil
}

// Post queues an operation behind the earlier ones of its group. done is called exactly once, from another goroutine or
// before Post returns; it must not block, nor wait for a Revoke. Its error is nil, or wraps ErrRevoked, ErrStaleGeneration,
// ErrMismatch, ErrInvalid, ErrPeer or ErrDeadline. When it is nil, no member reads this member's memory any more.
// After an error every later operation of the group fails in this generation.
func (e *Engine) Post(gen phalanx.Generation, op Op, done func(error)) {
	f := e.current.Load()
	if f == nil || f.gen != gen {
		done(fmt.Errorf("%s %d in generation %s: %w", op.Kind, op.Seq, gen, phalanx.ErrStaleGeneration))
		return
	}
	if op.ID != 0 {
		f.postMade(op, done)
		return
	}
	if op.Group < 0 || op.Group >= groups {
		done(fmt.Errorf("%s %d: group %d, want 0 or 1: %w", op.Kind, op.Seq, op.Group, ErrInvalid))
		return
	}
	f.workers[op.Group].post(op, done)
}

// Settled reports whether the generation was formed or revoked here, or is older than one that was: Post has a final answer
// for it. What is asked in another one waits until it is, because a stale answer ends it in a generation that may live.
func (e *Engine) Settled(gen phalanx.Generation) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed || !e.fence.Less(gen)
}

// Wake tells the engine that the daemon's bell rang. It never blocks, and runs what is inline as far as it gets.
func (e *Engine) Wake() {
	if f := e.current.Load(); f != nil {
		for _, w := range f.workers {
			w.ping()
		}
		for _, w := range f.made.all() {
			w.ping()
		}
		f.courier.ping()
	}
}

// Revoke ends everything of the generation and of older ones; none of them can be formed afterwards. The channel is closed
// when every worker has left the segments, every operation is done (with ErrRevoked) and the board says so: seals are
// answered after that.
func (e *Engine) Revoke(gen phalanx.Generation) <-chan struct{} {
	e.mu.Lock()
	if e.fence.Less(gen) {
		e.fence = gen
	}
	f := e.current.Load()
	e.mu.Unlock()
	if f != nil && !gen.Less(f.gen) {
		return f.revoke()
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Waiting says what an operation waits for: for status, and as evidence of who never entered.
type Waiting struct {
	Group int
	ID    uint64 // of a group that was made
	Kind  Kind
	Seq   uint64 // of the descriptor
	Since time.Time
	Ranks []phalanx.Rank
}

// Waiting returns the operations that wait for other ranks, at most one for each group, without messages. An operation that got on since
// may still be listed until it waits again or ends.
func (e *Engine) Waiting() (all []Waiting) {
	f := e.current.Load()
	if f == nil {
		return nil
	}
	for _, w := range slices.Concat(f.workers[:], f.made.all()) {
		if on := w.waiting.Load(); on != nil {
			all = append(all, *on)
		}
	}
	return all
}

// Close revokes whatever runs, waits for it and refuses everything later. Links stay open.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	f := e.current.Load()
	e.mu.Unlock()
	if f != nil {
		<-f.revoke()
	}
}
