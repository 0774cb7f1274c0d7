// SPDX-License-Identifier: Apache-2.0

package storewrap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"phalanx/ckpt"
)

// Throttled is implemented by errors of a store that asks for fewer requests.
type Throttled interface {
	error
	Throttled() bool
}

func throttled(err error) bool {
	var t Throttled
	return errors.As(err, &t) && t.Throttled()
}

// window is how many operations may run at a time: half after the store asked to slow down, at most once within a pause;
// one more after as many successes as it is wide.
type window struct {
	size, most float64
	shrunk     time.Time
}

const shrinkPause = time.Second

func (w *window) success() { w.size = min(w.most, w.size+1/w.size) }

func (w *window) slowDown(now time.Time) {
	if now.Sub(w.shrunk) >= shrinkPause {
		w.size, w.shrunk = max(1, w.size/2), now
	}
}

// Limits bounds what one process asks of a store; 0 is no bound.
type Limits struct {
	// Concurrency is the most operations at a time. Fewer run while the store asks to slow down.
	Concurrency int
	// BytesPerSecond is the mean rate of bodies that are written and ranges that are read, together.
	BytesPerSecond int64
}

// Limit bounds operations on another store.
type Limit struct {
	inner  ckpt.Store
	limits Limits

	mu      sync.Mutex // guards the fields below
	window  window
	running int
	waiting []chan struct{} // oldest first; one is closed when its operation may begin
	free    time.Time       // when the bytes that were granted will have flowed
}

var (
	_ ckpt.Store      = (*Limit)(nil)
	_ ckpt.IntoGetter = (*Limit)(nil)
)

// NewLimit wraps a store.
func NewLimit(inner ckpt.Store, limits Limits) *Limit {
	most := float64(limits.Concurrency)
	return &Limit{inner: inner, limits: limits, window: window{size: most, most: most}}
}

// Capabilities implements ckpt.Store.
func (l *Limit) Capabilities() ckpt.Capabilities { return l.inner.Capabilities() }

// Unwrap returns the store that is wrapped.
func (l *Limit) Unwrap() ckpt.Store { return l.inner }

// Width is how many operations may run at a time now.
func (l *Limit) Width() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.window.size)
}

// run waits for a slot and for bytes, and learns from how the operation ends.
func (l *Limit) run(ctx context.Context, verb Verb, key string, bytes int64, op func() error) error {
	if err := l.enter(ctx); err != nil {
		return fmt.Errorf("%s %s: wait for a slot of %d: %w", verb, key, l.limits.Concurrency, err)
	}
	defer l.leave()
	if err := l.wait(ctx, bytes); err != nil {
		return fmt.Errorf("%s %s: wait for bytes at %d a second: %w", verb, key, l.limits.BytesPerSecond, err)
	}
	err := op()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.limits.Concurrency == 0:
	case throttled(err):
		l.window.slowDown(time.Now())
	case !Heals(err):
		l.window.success()
	}
	return err
}

func (l *Limit) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil || l.limits.Concurrency == 0 {
		return err
	}
	l.mu.Lock()
	if len(l.waiting) == 0 && l.running < int(l.window.size) {
		l.running++
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return ctx.Err()
		}
	}
	l.running-- // its turn came at the same moment: pass it on
	l.admit()
	return ctx.Err()
}

func (l *Limit) leave() {
	if l.limits.Concurrency == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.admit()
}

// admit lets those begin for whom there is room; the caller holds mu.
func (l *Limit) admit() {
	for len(l.waiting) > 0 && l.running < int(l.window.size) {
		l.running++
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
	}
}

// wait lets bytes pass at the rate; a large body waits before it begins for those that were granted earlier.
func (l *Limit) wait(ctx context.Context, bytes int64) error {
	if l.limits.BytesPerSecond == 0 || bytes <= 0 {
		return nil
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	pause := l.free.Sub(now)
	l.free = l.free.Add(time.Duration(float64(bytes) / float64(l.limits.BytesPerSecond) * float64(time.Second)))
	l.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// PutIfAbsent implements ckpt.Store.
func (l *Limit) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	return l.run(ctx, PutIfAbsent, key, body.Size, func() error { return l.inner.PutIfAbsent(ctx, key, body) })
}

// Put implements ckpt.Store.
func (l *Limit) Put(ctx context.Context, key string, body ckpt.Body) error {
	return l.run(ctx, Put, key, body.Size, func() error { return l.inner.Put(ctx, key, body) })
}

// PutIfMatch implements ckpt.Store.
func (l *Limit) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	return l.run(ctx, PutIfMatch, key, body.Size, func() error { return l.inner.PutIfMatch(ctx, key, etag, body) })
}

// Get implements ckpt.Store. A read to the end of an object is counted when its size is known, which is after it.
func (l *Limit) Get(ctx context.Context, key string, off, n int64) (p []byte, err error) {
	err = l.run(ctx, Get, key, n, func() error {
		p, err = l.inner.Get(ctx, key, off, n)
		return err
	})
	if n < 0 && err == nil {
		err = l.wait(ctx, int64(len(p)))
	}
	return p, err
}

// GetInto implements ckpt.IntoGetter.
func (l *Limit) GetInto(ctx context.Context, key string, off int64, p []byte) (n int, sum ckpt.CRC, err error) {
	err = l.run(ctx, Get, key, int64(len(p)), func() error {
		n, sum, err = ckpt.GetInto(ctx, l.inner, key, off, p)
		return err
	})
	return n, sum, err
}

// Stat implements ckpt.Store.
func (l *Limit) Stat(ctx context.Context, key string) (info ckpt.Info, err error) {
	err = l.run(ctx, Stat, key, 0, func() error {
		info, err = l.inner.Stat(ctx, key)
		return err
	})
	return info, err
}

// List implements ckpt.Store.
func (l *Limit) List(ctx context.Context, prefix, after string, limit int) (page []ckpt.Info, err error) {
	err = l.run(ctx, List, prefix, 0, func() error {
		page, err = l.inner.List(ctx, prefix, after, limit)
		return err
	})
	return page, err
}

// Delete implements ckpt.Store.
func (l *Limit) Delete(ctx context.Context, key string) error {
	return l.run(ctx, Delete, key, 0, func() error { return l.inner.Delete(ctx, key) })
}
