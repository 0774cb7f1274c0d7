// SPDX-License-Identifier: Apache-2.0

package storewrap

import (
	"context"
	"sync"
	"time"

	"phalanx/ckpt"
)

// Sample is one operation that has ended.
type Sample struct {
	Verb  Verb
	Took  time.Duration
	Bytes int64 // of the body or the range, when it succeeded
	Err   error
}

// Observer is told of every operation, from many goroutines at a time.
type Observer interface{ Observe(Sample) }

// Meter tells an observer of every operation on another store.
type Meter struct {
	inner    ckpt.Store
	observer Observer
}

var (
	_ ckpt.Store      = (*Meter)(nil)
	_ ckpt.IntoGetter = (*Meter)(nil)
)

// NewMeter wraps a store.
func NewMeter(inner ckpt.Store, observer Observer) *Meter { return &Meter{inner, observer} }

// Capabilities implements ckpt.Store.
func (m *Meter) Capabilities() ckpt.Capabilities { return m.inner.Capabilities() }

// Unwrap returns the store that is wrapped.
func (m *Meter) Unwrap() ckpt.Store { return m.inner }

func (m *Meter) tell(verb Verb, begun time.Time, bytes int64, err error) error {
	if err != nil {
		bytes = 0
	}
	m.observer.Observe(Sample{verb, time.Since(begun), bytes, err})
	return err
}

// PutIfAbsent implements ckpt.Store.
func (m *Meter) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	begun := time.Now()
	return m.tell(PutIfAbsent, begun, body.Size, m.inner.PutIfAbsent(ctx, key, body))
}

// Put implements ckpt.Store.
func (m *Meter) Put(ctx context.Context, key string, body ckpt.Body) error {
	begun := time.Now()
	return m.tell(Put, begun, body.Size, m.inner.Put(ctx, key, body))
}

// PutIfMatch implements ckpt.Store.
func (m *Meter) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	begun := time.Now()
	return m.tell(PutIfMatch, begun, body.Size, m.inner.PutIfMatch(ctx, key, etag, body))
}

// Get implements ckpt.Store.
func (m *Meter) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	begun := time.Now()
	p, err := m.inner.Get(ctx, key, off, n)
	return p, m.tell(Get, begun, int64(len(p)), err)
}

// GetInto implements ckpt.IntoGetter.
func (m *Meter) GetInto(ctx context.Context, key string, off int64, p []byte) (int, ckpt.CRC, error) {
	begun := time.Now()
	n, sum, err := ckpt.GetInto(ctx, m.inner, key, off, p)
	return n, sum, m.tell(Get, begun, int64(n), err)
}

// Stat implements ckpt.Store.
func (m *Meter) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	begun := time.Now()
	info, err := m.inner.Stat(ctx, key)
	return info, m.tell(Stat, begun, 0, err)
}

// List implements ckpt.Store.
func (m *Meter) List(ctx context.Context, prefix, after string, limit int) ([]ckpt.Info, error) {
	begun := time.Now()
	page, err := m.inner.List(ctx, prefix, after, limit)
	return page, m.tell(List, begun, 0, err)
}

// Delete implements ckpt.Store.
func (m *Meter) Delete(ctx context.Context, key string) error {
	begun := time.Now()
	return m.tell(Delete, begun, 0, m.inner.Delete(ctx, key))
}

// Count is what Counters knows of one kind of operation.
type Count struct {
	Operations, Failures, Bytes int64
	Took                        time.Duration // of all together
}

// Counters is an Observer that counts. Its zero value is ready.
type Counters struct {
	mu    sync.Mutex
	verbs map[Verb]Count
}

// Observe implements Observer.
func (c *Counters) Observe(s Sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.verbs == nil {
		c.verbs = map[Verb]Count{}
	}
	n := c.verbs[s.Verb]
	n.Operations++
	if s.Err != nil {
		n.Failures++
	}
	n.Bytes += s.Bytes
	n.Took += s.Took
	c.verbs[s.Verb] = n
}

// Of returns what was counted of one kind of operation.
func (c *Counters) Of(v Verb) Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.verbs[v]
}
