// SPDX-License-Identifier: Apache-2.0

package host

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"phalanx"
)

// inline runs small operations on the goroutines of whoever calls Post and Wake: between members of one host there is so
// little to move that each hop to the worker's goroutine costs more than the operation. It is a coroutine, so an operation
// is the same code on both sides: where the worker would sleep, it returns to its caller, and the next call goes on there.
type inline struct {
	runs  atomic.Bool // an operation is under way, so a ring may concern it
	again atomic.Bool // somebody called while another caller was at it

	// at is held by the caller that is at it; it guards what follows.
	at    sync.Mutex
	next  func() (struct{}, bool) // nil before the first operation
	ended bool
}

// small reports whether an operation runs inline.
func (w *worker) small(op *Op) bool {
	limit := w.f.e.o.Inline
	if limit <= 0 || w.remote {
		return false
	}
	if op.Counts {
		return false // how much it is stands in the segment
	}
	each := max(op.DType.Size(), 1)
	if op.parted() && (w.id != 0 || op.Kind == AllGather) {
		each *= int64(len(w.members))
	}
	return op.Count <= limit/each // whether it is valid at all is found out there
}

// goOn runs the small operations as far as they get. Whoever comes while another caller is at it leaves a word with that one,
// which looks once more; what comes even later is left to the worker's goroutine, or callers would keep each other for ever.
func (w *worker) goOn() {
	in := &w.inline
	in.again.Store(true)
	for range 2 {
		if !in.again.Load() || !in.at.TryLock() {
			return // done meanwhile, or whoever holds it looks again after letting it go
		}
		in.again.Store(false)
		if !in.ended {
			if in.next == nil {
				in.next, _ = iter.Pull(w.coroutine)
			}
			in.next()
		}
		in.at.Unlock()
	}
	if in.again.Load() {
		w.signal()
	}
}

// coroutine performs small operations, and yields while there is nothing to do.
func (w *worker) coroutine(yield func(struct{}) bool) {
	for !w.revoked() {
		t, ok := w.dequeue(true)
		if !ok {
			if !yield(struct{}{}) {
				return
			}
			continue
		}
		w.inline.runs.Store(true)
		w.perform(t, yield)
		w.inline.runs.Store(false)
		if w.largeNext() {
			w.signal()
		}
	}
}

// largeNext reports whether the next operation belongs to the worker's goroutine.
func (w *worker) largeNext() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tasks) > 0 && !w.small(&w.tasks[0].op)
}

// pause returns to the caller of the moment, and goes on with the next one. The deadline is looked at here, after a look at
// the others that found nothing: a daemon calls at every tick, and one that was stopped for long sees first what has come.
func (w *worker) pause(since time.Time) error {
	if time.Since(since) > w.patience() {
		return w.late()
	}
	if !w.yield(struct{}{}) || w.revoked() {
		return phalanx.ErrRevoked
	}
	return nil
}

// endInline lets the operation under way end; none begins afterwards. The generation is revoked.
func (w *worker) endInline() {
	in := &w.inline
	in.at.Lock()
	defer in.at.Unlock()
	in.ended = true
	for more := in.next != nil; more; {
		_, more = in.next()
	}
}
