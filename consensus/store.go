// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// LogRecord is one entry of the log as a LogStore keeps it.
type LogRecord = raft.Log

// LogStore is what raft writes to. What it has acknowledged survives a crash. A key that Get does not find is
// ErrKeyNotFound.
type LogStore interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// guard stands between raft and its store and gives every write a deadline. The first write that fails or is late poisons
// it: from then on every call fails, since nobody can tell what is on the disk.
//
// Writes run on a goroutine of the guard, so that a disk that hangs does not hold up raft's loop; that goroutine is then
// lost until the disk answers. Reads go to memory almost always (cache, page cache) and run in place.
type guard struct {
	inner    LogStore      // the cache over disk
	disk     LogStore      // closed last
	deadline time.Duration // for one write
	fail     func(error)   // called once, after opened is closed

	work   chan storeWrite // unbuffered: one write at a time, the caller waits for it
	quit   chan struct{}   // closed by close: ends the writer
	done   chan struct{}   // closed when the writer has ended
	opened chan struct{}   // closed when fail may be called

	poison    atomic.Pointer[error]
	failOnce  sync.Once
	lastWrite atomic.Int64 // UnixNano of the last write that succeeded
}

type storeWrite struct {
	f    func() error
	done chan error // 1: the writer never waits for a caller that gave up
}

// cachedStore serves recent entries from memory and everything else from disk.
type cachedStore struct {
	*raft.LogCache
	raft.StableStore
	disk LogStore
}

func (s cachedStore) Close() error { return s.disk.Close() }

func newGuard(disk LogStore, deadline time.Duration, fail func(error)) (*guard, error) {
	cache, err := raft.NewLogCache(snapshotTrailing/4, disk)
	if err != nil {
		return nil, err
	}
	g := &guard{
		inner: cachedStore{cache, disk, disk}, disk: disk, deadline: deadline, fail: fail,
		work: make(chan storeWrite), quit: make(chan struct{}), done: make(chan struct{}), opened: make(chan struct{}),
	}
	go g.writer()
	return g, nil
}

func (g *guard) writer() {
	defer close(g.done)
	for {
		select {
		case w := <-g.work:
			w.done <- callStore(w.f)
		case <-g.quit:
			return
		}
	}
}

// callStore turns a panic of the store into an error: bbolt panics on pages that it cannot make sense of.
func callStore(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store panicked: %v", p)
		}
	}()
	return f()
}

// write runs f on the writer and waits for it no longer than the deadline.
func (g *guard) write(operation string, f func() error) error {
	if err := g.poison.Load(); err != nil {
		return *err
	}
	const slices = 8
	// The wait is counted in slices so that a pause of the whole process counts as one of them, not as a slow disk.
	ticker := time.NewTicker(g.deadline / slices)
	defer ticker.Stop()
	w := storeWrite{f: f, done: make(chan error, 1)}
	work := g.work
	for waited := 0; ; {
		select {
		case work <- w:
			work = nil
		case err := <-w.done:
			if err != nil {
				return g.poisoned(fmt.Errorf("%s: %w: %w", operation, ErrStore, err))
			}
			g.lastWrite.Store(time.Now().UnixNano())
			return nil
		case <-g.quit:
			return ErrClosed
		case <-ticker.C:
			if waited++; waited > slices {
				return g.poisoned(fmt.Errorf("%s took longer than %v: %w", operation, g.deadline, ErrDiskStalled))
			}
		}
	}
}

func (g *guard) poisoned(err error) error {
	g.poison.CompareAndSwap(nil, &err) // others read it from now on, so it is not written again
	first := *g.poison.Load()
	// Only reads happen before Open is done, and they return their errors to it.
	select {
	case <-g.opened:
		g.failOnce.Do(func() { g.fail(first) })
	case <-g.quit:
	}
	return first
}

// end is for calls whose error makes raft panic and would take the trainers' daemon with it. By then fail has closed the
// connections and begun the shutdown, so nothing that raft still does can leave this process, and ending its loop here is
// what it would do itself a moment later: its deferred calls answer whoever waits.
func (g *guard) end(err error) error {
	select {
	case <-g.opened:
		runtime.Goexit()
	default:
	}
	return err
}

// canary writes when nothing else was written for the interval: a disk that hangs is found before a command needs it.
func (g *guard) canary(interval time.Duration, stop <-chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
		if g.poison.Load() != nil {
			return
		}
		if time.Since(time.Unix(0, g.lastWrite.Load())) >= interval {
			// The error is reported by write.
			_ = g.write("write canary", func() error { return g.inner.SetUint64(keyCanary, n) })
		}
	}
}

// close waits for users to end, ends the writer and closes the store. It gives up when ctx ends; the rest then follows when
// the disk answers.
func (g *guard) close(ctx context.Context, users <-chan struct{}) error {
	closed := make(chan error, 1) // 1: nobody may be waiting
	go func() {
		<-users
		close(g.quit)
		<-g.done
		closed <- g.disk.Close()
	}()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("close log store: %w", ctx.Err())
	}
}

// read runs f in place. What raft does not expect to fail ends its loop.
func (g *guard) read(operation string, f func() error) error {
	if err := g.poison.Load(); err != nil {
		return *err
	}
	err := callStore(f)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	err = fmt.Errorf("%s: %w: %w", operation, ErrStore, err)
	select {
	case <-g.opened:
		return g.poisoned(err)
	default:
		return err
	}
}

func (g *guard) FirstIndex() (index uint64, err error) {
	err = g.read("read first index", func() (err error) { index, err = g.inner.FirstIndex(); return err })
	return index, err
}

func (g *guard) LastIndex() (index uint64, err error) {
	err = g.read("read last index", func() (err error) { index, err = g.inner.LastIndex(); return err })
	return index, err
}

func (g *guard) GetLog(index uint64, log *raft.Log) error {
	err := g.read("read entry", func() error { return g.inner.GetLog(index, log) })
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		return g.end(err)
	}
	return err
}

func (g *guard) StoreLog(log *raft.Log) error { return g.StoreLogs([]*raft.Log{log}) }

func (g *guard) StoreLogs(logs []*raft.Log) error {
	return g.write("store entries", func() error { return g.inner.StoreLogs(logs) })
}

func (g *guard) DeleteRange(first, last uint64) error {
	return g.write("delete entries", func() error { return g.inner.DeleteRange(first, last) })
}

func (g *guard) Set(key, value []byte) error {
	return g.write("store vote", func() error { return g.inner.Set(key, value) })
}

func (g *guard) SetUint64(key []byte, value uint64) error {
	if g.redundant(key, value) {
		return nil
	}
	if err := g.write("store term", func() error { return g.inner.SetUint64(key, value) }); err != nil {
		return g.end(err)
	}
	return nil
}

// redundant reports whether raft, which has not opened yet, stores the term that it has just read. If that write failed, Open
// would wait for itself: failures are told once it is done.
func (g *guard) redundant(key []byte, value uint64) bool {
	select {
	case <-g.opened:
		return false
	default:
	}
	old, err := g.inner.GetUint64(key)
	return err == nil && old == value || errors.Is(err, ErrKeyNotFound) && value == 0
}

// Get and GetUint64 are called by raft while it opens; "not found" is an answer there.
func (g *guard) Get(key []byte) ([]byte, error)       { return g.inner.Get(key) }
func (g *guard) GetUint64(key []byte) (uint64, error) { return g.inner.GetUint64(key) }
