// SPDX-License-Identifier: Apache-2.0

package storewrap

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"phalanx/ckpt"
)

// ErrKilled is what every operation returns after a fault with Kill: the process that used the store is dead to it.
var ErrKilled = errors.New("killed")

// Verb names an operation of a store.
type Verb string

// The operations.
const (
	PutIfAbsent Verb = "put-if-absent"
	Put         Verb = "put"
	PutIfMatch  Verb = "put-if-match"
	Get         Verb = "get"
	Stat        Verb = "stat"
	List        Verb = "list"
	Delete      Verb = "delete"
)

// Writes reports whether the operation may change the store.
func (v Verb) Writes() bool { return v != Get && v != Stat && v != List }

// Op is one operation that is about to run. Seq counts all operations of one Faulty from 0.
type Op struct {
	Seq  int
	Verb Verb
	Key  string
}

// Fault says what goes wrong with an operation; the zero value is nothing.
type Fault struct {
	// Err is returned instead of the operation's own result.
	Err error
	// After: the operation takes effect before Err is returned, as when an answer is lost.
	After bool
	// Kill: no later operation has any effect; they return ErrKilled.
	Kill bool
	// Flip changes the lowest bit of the byte at this offset of what Get returns, if FlipRead.
	FlipRead bool
	Flip     int
}

// Faulty passes operations to another store and asks a hook about each before it runs.
type Faulty struct {
	inner ckpt.Store
	hook  func(Op) Fault

	mu     sync.Mutex // guards the fields below; the hook runs under it, so hooks need no locks of their own
	seq    int
	killed bool
}

var _ ckpt.Store = (*Faulty)(nil)

// NewFaulty wraps a store. The hook is called for one operation at a time and must not use the Faulty.
func NewFaulty(inner ckpt.Store, hook func(Op) Fault) *Faulty {
	return &Faulty{inner: inner, hook: hook}
}

// Count is the number of operations so far.
func (f *Faulty) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq
}

// run asks the hook and carries out the operation around its fault.
func (f *Faulty) run(verb Verb, key string, op func() error) (Fault, error) {
	fault, err := f.ask(verb, key)
	if err != nil {
		return fault, err
	}
	if fault.Err != nil && !fault.After {
		return fault, fmt.Errorf("%s %s: %w", verb, key, fault.Err)
	}
	err = op()
	if fault.Err != nil {
		return fault, fmt.Errorf("%s %s: %w", verb, key, fault.Err)
	}
	return fault, err
}

func (f *Faulty) ask(verb Verb, key string) (Fault, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.killed {
		return Fault{}, fmt.Errorf("%s %s: %w", verb, key, ErrKilled)
	}
	fault := f.hook(Op{Seq: f.seq, Verb: verb, Key: key})
	f.seq++
	if fault.Kill {
		f.killed = true
		if fault.Err == nil {
			fault.Err = ErrKilled
		}
	}
	return fault, nil
}

// PutIfAbsent implements ckpt.Store.
func (f *Faulty) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	_, err := f.run(PutIfAbsent, key, func() error { return f.inner.PutIfAbsent(ctx, key, body) })
	return err
}

// Put implements ckpt.Store.
func (f *Faulty) Put(ctx context.Context, key string, body ckpt.Body) error {
	_, err := f.run(Put, key, func() error { return f.inner.Put(ctx, key, body) })
	return err
}

// PutIfMatch implements ckpt.Store.
func (f *Faulty) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	_, err := f.run(PutIfMatch, key, func() error { return f.inner.PutIfMatch(ctx, key, etag, body) })
	return err
}

// Get implements ckpt.Store.
func (f *Faulty) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	var p []byte
	fault, err := f.run(Get, key, func() (err error) {
		p, err = f.inner.Get(ctx, key, off, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	if fault.FlipRead && fault.Flip >= 0 && fault.Flip < len(p) {
		p[fault.Flip] ^= 1
	}
	return p, nil
}

// Stat implements ckpt.Store.
func (f *Faulty) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	var info ckpt.Info
	_, err := f.run(Stat, key, func() (err error) {
		info, err = f.inner.Stat(ctx, key)
		return err
	})
	if err != nil {
		return ckpt.Info{}, err
	}
	return info, nil
}

// List implements ckpt.Store.
func (f *Faulty) List(ctx context.Context, prefix, after string, limit int) ([]ckpt.Info, error) {
	var page []ckpt.Info
	_, err := f.run(List, prefix, func() (err error) {
		page, err = f.inner.List(ctx, prefix, after, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// Delete implements ckpt.Store.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	_, err := f.run(Delete, key, func() error { return f.inner.Delete(ctx, key) })
	return err
}

// Capabilities implements ckpt.Store.
func (f *Faulty) Capabilities() ckpt.Capabilities { return f.inner.Capabilities() }
