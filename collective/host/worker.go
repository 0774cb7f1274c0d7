// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"phalanx"
)

// maxQueued bounds the operations of a group that wait: the trainer's ring has as many descriptors.
const maxQueued = 64

// worker runs the operations of one group in one generation, in order, one at a time: on its goroutine, or, when they are
// small, on those of the callers of Post and Wake (see inline.go). Nobody else touches segments.
type worker struct {
	f       *formation
	index   int
	id      uint64 // of a group that was made, 0 for one of the step
	ranks   uint64 // hash of its members
	lane    int    // the own one of a group that was made
	board   board
	members []member // in rank order
	me      int
	locals  []*local // other members on this host

	oneHost bool // no member is elsewhere
	covers  int  // most input buffers of a member

	tree    phalanx.SlotTree
	fold    *fold
	foldErr error // why the group cannot sum
	arith   *arithmetic
	halver  *halver // made by the first operation that needs it
	waiting atomic.Pointer[Waiting]

	// adopted is where the daemon before this one was in this generation; its first operation goes on from there.
	adopted mark

	op     *Op    // that runs, or ran last
	shape  *shape // of it, in a group that was made
	stamp  uint64
	broken error         // set once an operation failed; nothing more runs then
	wake   chan struct{} // 1: only "look again" matters
	busy   atomic.Bool   // an operation runs on the goroutine, so a ring may concern it
	inline inline
	yield  func(struct{}) bool // while a small operation runs
	remote bool                // a member is on another host

	stop    chan struct{} // closed by revoke and by abort
	stopped sync.Once
	aborted atomic.Bool   // by the trainer: the other members are told
	over    chan struct{} // closed when nothing runs any more
	dead    atomic.Bool   // an operation failed, or the group was aborted

	// mu guards what other goroutines hand in, the remotes of members included. Only the worker writes seq.
	mu    sync.Mutex
	seq   uint32 // number of the operation that runs, from 1
	tasks []task
	taken bool  // an operation runs
	ended error // set when nothing more will run
}

type task struct {
	op   Op
	done func(error)
}

func newWorker(f *formation, index, slots int, b board) *worker {
	tree := phalanx.SlotTree{Slots: slots}
	return &worker{
		f: f, index: index, board: b, wake: make(chan struct{}, 1),
		tree: tree, arith: newArithmetic(tree), stop: make(chan struct{}), over: make(chan struct{}),
	}
}

// add appends a seat. Seats come in rank order.
func (w *worker) add(s phalanx.Seat, self Self, locals []LocalPeer, remotes []RemotePeer) {
	m := member{rank: s.Rank, cover: w.tree.Cover(s.Slots)}
	if w.id != 0 {
		at := phalanx.Slot(len(w.members))
		m.cover = []phalanx.Node{{First: at, End: at + 1}}
	}
	switch {
	case s.Rank == self.Rank:
		w.me = len(w.members)
		m.self, m.local = true, &local{segment: self.Segment, board: w.board}
	default:
		for _, l := range locals {
			if l.Rank == s.Rank {
				m.local = &local{segment: l.Segment, ring: l.Ring, memory: l.Board}
				if w.id == 0 {
					m.local.board = boardOf(l.Board, w.index)
				}
				w.locals = append(w.locals, m.local)
			}
		}
		for _, r := range remotes {
			if r.Rank == s.Rank {
				m.peer, w.remote = &remote{link: r.Link}, true
			}
		}
	}
	w.members = append(w.members, m)
}

// complete compiles the fold over all members' buffers.
func (w *worker) complete() {
	var nodes []phalanx.Node
	w.oneHost = true
	for i := range w.members {
		m := &w.members[i]
		m.regs = len(nodes)
		nodes = append(nodes, m.cover...)
		w.oneHost = w.oneHost && m.local != nil
		w.covers = max(w.covers, len(m.cover))
	}
	w.fold, w.foldErr = newFold(w.tree, nodes, true)
}

func (w *worker) post(op Op, done func(error)) {
	w.mu.Lock()
	err := w.ended
	if err == nil && len(w.tasks) >= maxQueued {
		err = fmt.Errorf("%d operations wait already: %w", maxQueued, ErrInvalid)
	}
	if err == nil {
		w.tasks = append(w.tasks, task{op, done})
	}
	w.mu.Unlock()
	if err != nil {
		done(fmt.Errorf("%s %d: %w", op.Kind, op.Seq, err))
		return
	}
	w.rouse()
}

// rouse lets the next operation begin where it belongs.
func (w *worker) rouse() {
	w.mu.Lock()
	small := len(w.tasks) > 0 && w.small(&w.tasks[0].op)
	w.mu.Unlock()
	if small {
		w.goOn()
	} else {
		w.signal()
	}
}

// ping lets the operation that runs look again.
func (w *worker) ping() {
	if w.inline.runs.Load() {
		w.goOn()
	}
	if w.busy.Load() {
		w.signal()
	}
}

// dequeue returns the next operation if none runs and it is, or is not, a small one.
func (w *worker) dequeue(small bool) (t task, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken || w.ended != nil || len(w.tasks) == 0 || w.small(&w.tasks[0].op) != small {
		return task{}, false
	}
	t, w.tasks, w.taken = w.tasks[0], w.tasks[1:], true
	return t, true
}

// perform runs an operation that was dequeued, with the coroutine's yield if it is a small one.
func (w *worker) perform(t task, yield func(struct{}) bool) {
	w.yield = yield
	err := w.execute(&t.op)
	w.yield = nil
	w.waiting.Store(nil)
	w.mu.Lock()
	w.taken = false
	w.mu.Unlock()
	t.done(err)
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) run() {
	defer w.end()
	for {
		t, ok := w.dequeue(false)
		if !ok {
			select {
			case <-w.wake:
				if w.inline.again.Load() {
					w.goOn()
				}
				continue
			case <-w.stop:
				return
			}
		}
		w.busy.Store(true)
		w.perform(t, nil)
		w.busy.Store(false)
		w.rouse() // the next one may be small
	}
}

// end answers what is still queued.
func (w *worker) end() {
	defer close(w.over)
	w.endInline()
	if w.aborted.Load() {
		w.tellAbort()
	}
	w.board.clear()
	w.mu.Lock()
	w.ended = fmt.Errorf("generation %s: %w", w.f.gen, phalanx.ErrRevoked)
	if w.aborted.Load() {
		w.ended = fmt.Errorf("group %#x was aborted: %w", w.id, phalanx.ErrRevoked)
	}
	tasks := w.tasks
	w.tasks = nil
	w.mu.Unlock()
	for _, t := range tasks {
		t.done(fmt.Errorf("%s %d: %w", t.op.Kind, t.op.Seq, w.ended))
	}
}

// execute runs one operation. On an error the board is cleared before the trainer hears of it, so that whoever still reads
// the inputs will notice.
func (w *worker) execute(op *Op) error {
	w.op = op
	err := w.broken // what is behind the operation that failed never has a number
	if err == nil {
		w.resume(op)
		w.advance()
		err = w.operate(op)
	}
	if err == nil {
		return nil
	}
	if w.broken == nil {
		w.broken = err
		w.dead.Store(true)
		// A revoke, here or of a member, is about to reach everybody; it is not told as a failure.
		if !errors.Is(err, phalanx.ErrRevoked) {
			w.giveUp()
		}
	}
	w.board.clear()
	return fmt.Errorf("%s %d (%d in generation %s): %w", op.Kind, op.Seq, w.seq, w.f.gen, err)
}

// resume finds the place of the first operation after a daemon was replaced: the one that its predecessor was in, or the next.
func (w *worker) resume(op *Op) {
	if w.adopted.seq == 0 {
		return
	}
	w.mu.Lock()
	w.seq = w.adopted.seq
	if op.Seq <= w.adopted.op {
		w.seq--
	}
	w.mu.Unlock()
	w.adopted = mark{}
}

// giveUp tells the others, so that they need not wait for a deadline.
func (w *worker) giveUp() {
	w.board.store(wordFailed, w.stamp)
	w.board.clear()
	w.ringLocals()
	for i := range w.members {
		if p := w.members[i].peer; p != nil {
			p.link.send(&frame{header: w.head(frameFail)})
		}
	}
	if w.id != 0 { // messages in the group end too
		w.f.courier.ringAll()
		w.f.courier.signal()
	}
}

// halt stops the worker; closing over says when it has.
func (w *worker) halt() { w.stopped.Do(func() { close(w.stop) }) }

// tellAbort gives up the operation that was interrupted, or else the next one: members that are in an older one need nothing of us
// any more and finish it.
func (w *worker) tellAbort() {
	if w.broken == nil {
		w.advance()
	}
	w.giveUp()
}

func (w *worker) head(typ frameType) header {
	return header{typ: typ, group: uint8(w.index), id: w.id, gen: w.f.gen, source: uint32(w.f.self.Rank), seq: w.seq}
}

func (w *worker) revoked() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// ringLocals wakes the members of this host whose workers sleep. The caller has stored what they wait for, and they set
// the word before they look for the last time: in the one order of atomics, one of the two sees the other.
func (w *worker) ringLocals() {
	for _, l := range w.locals {
		l.find(w.f.gen, w.id)
		if l.board.load(wordSleeping) != 0 {
			l.ring()
		}
	}
}

// state is what one look at an operation found.
type state int

const (
	stuck    state = iota // nothing to do until somebody else moves
	moved                 // did something, look again
	finished              // nothing left to do
)

// drive calls step until it is finished, and sleeps while it is stuck. step does at most one chunk of work per member, so
// that a revoke is obeyed within a chunk. missing names the ranks that the operation waits for.
func (w *worker) drive(step func() (state, error), missing func() []phalanx.Rank) error {
	var timer *time.Timer
	var since time.Time // of what keeps the operation stuck
	for {
		if w.revoked() {
			return phalanx.ErrRevoked
		}
		s, err := step()
		if s == stuck && err == nil {
			if len(w.locals) > 0 {
				w.board.store(wordSleeping, 1)
				s, err = step()
			}
			if s == stuck && err == nil {
				err = w.peersFailed()
			}
		}
		if s == stuck && err == nil {
			if since.IsZero() || w.yield == nil {
				since = time.Now()
				w.waiting.Store(&Waiting{Group: w.index, ID: w.id, Kind: w.op.Kind, Seq: w.op.Seq, Since: since, Ranks: missing()})
			}
			if w.yield != nil {
				err = w.pause(since)
			} else {
				if timer == nil {
					timer = time.NewTimer(w.patience())
					defer timer.Stop()
				} else {
					timer.Reset(w.patience())
				}
				err = w.sleep(timer)
			}
		} else {
			since = time.Time{}
		}
		if len(w.locals) > 0 {
			w.board.store(wordSleeping, 0)
		}
		if err != nil || s == finished {
			return err
		}
	}
}

func (w *worker) sleep(timer *time.Timer) error {
	select {
	case <-w.wake:
		return nil
	case <-w.stop:
		return phalanx.ErrRevoked
	case <-timer.C:
		return w.late()
	}
}

// patience is how long an operation may make no progress.
func (w *worker) patience() time.Duration {
	if w.id != 0 {
		return w.f.e.o.GroupTimeout
	}
	return w.f.e.o.Timeout
}

func (w *worker) late() error {
	return fmt.Errorf("waited %s for ranks %v: %w", w.patience(), w.waiting.Load().Ranks, ErrDeadline)
}

// peersFailed returns an error when a member gave up in this generation or its link broke.
func (w *worker) peersFailed() error {
	for i := range w.members {
		m := &w.members[i]
		if m.local == nil || m.self {
			continue
		}
		m.local.find(w.f.gen, w.id)
		// Only a member that has everything from us can be ahead, and what it does there is not about this operation.
		if failed := m.local.board.load(wordFailed); failed != 0 && reached(w.stamp, failed) {
			return fmt.Errorf("rank %d: %w", m.rank, ErrPeer)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.members {
		m := &w.members[i]
		switch {
		case m.peer == nil:
		case m.peer.broken != nil:
			return fmt.Errorf("rank %d: %w", m.rank, m.peer.broken)
		case m.peer.failed != 0 && m.peer.failed <= w.seq:
			return fmt.Errorf("rank %d: %w", m.rank, ErrPeer)
		}
	}
	return nil
}
