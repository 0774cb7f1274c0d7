// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bell is the one word on which a process waits. Read Count, look at the fields, then Wait with the count that was read: a
// ring in between is not lost.
type Bell interface {
	// Ring adds one and wakes whoever waits.
	Ring()
	// Count is the number of rings so far, modulo 2^32.
	Count() uint32
	// Wait returns the count as soon as it is not seen, or after the timeout.
	Wait(seen uint32, timeout time.Duration) (count uint32)
}

// Bells is the bells file of a host: one 64-byte line for every bell.
type Bells struct{ region *Region }

// CreateBells makes the bells file with all bells silent, or maps the one that is there: every daemon of the host may call
// it, in any order.
func CreateBells(path string) (*Bells, error) {
	b, err := OpenBells(path)
	if !errors.Is(err, unix.ENOENT) {
		return b, err
	}
	r, err := createRegion(fmt.Sprintf("%s.%d.new", path, unix.Getpid()), BellLines*BellBytes)
	if err != nil {
		return nil, fmt.Errorf("create bells: %w", err)
	}
	// A link keeps what another daemon made in the meantime, a rename would replace it under its users.
	err = unix.Link(r.Path(), path)
	if err := errors.Join(r.Remove(), r.Unmap()); err != nil {
		return nil, fmt.Errorf("create bells: %w", err)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("create bells: link %s: %w", path, err)
	}
	return OpenBells(path)
}

// OpenBells maps an existing bells file.
func OpenBells(path string) (*Bells, error) {
	r, err := OpenRegion(path, true)
	if err != nil {
		return nil, fmt.Errorf("open bells: %w", err)
	}
	if len(r.Bytes()) < BellLines*BellBytes {
		return nil, fmt.Errorf("open bells %s: %d bytes, want %d; remove the file of another release: %w",
			path, len(r.Bytes()), BellLines*BellBytes, errors.Join(ErrFormat, r.Unmap()))
	}
	return &Bells{r}, nil
}

// Bell returns the bell of a line, which must be in 0 ≤ line < BellLines.
func (b *Bells) Bell(line int) Bell {
	at := unsafe.Pointer(&b.region.Bytes()[index(line, BellLines)*BellBytes])
	return &futexBell{word: (*uint32)(at), waiters: (*uint32)(unsafe.Add(at, 4))}
}

// Unmap ends the mapping; no bell of it may be used or waited on afterwards.
func (b *Bells) Unmap() error { return b.region.Unmap() }

type futexBell struct{ word, waiters *uint32 }

// The operations without FUTEX_PRIVATE_FLAG: the word is found by its page, not by the address in one process.
const (
	futexWait = 0
	futexWake = 1
)

func (b *futexBell) Ring() {
	atomic.AddUint32(b.word, 1)
	// A waiter counts itself before it looks at the word again, so one that is not seen here sees the new word. One that
	// was killed while it waited is counted for ever: rings then cost a system call and stay right.
	if atomic.LoadUint32(b.waiters) != 0 {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWake, 1<<30, 0, 0, 0)
	}
}

func (b *futexBell) Count() uint32 { return atomic.LoadUint32(b.word) }

func (b *futexBell) Wait(seen uint32, timeout time.Duration) uint32 {
	if c := b.Count(); c != seen {
		return c
	}
	deadline := time.Now().Add(timeout)
	atomic.AddUint32(b.waiters, 1)
	defer atomic.AddUint32(b.waiters, ^uint32(0))
	for {
		c := b.Count()
		left := time.Until(deadline)
		if c != seen || left <= 0 {
			return c
		}
		ts := unix.NsecToTimespec(left.Nanoseconds())
		// Every result (woken, changed before, interrupted, timed out) is told apart by looking again.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
}

// localBell is a bell inside one process. It uses channels and timers only, so it works in a bubble of testing/synctest.
type localBell struct {
	mu    sync.Mutex
	count uint32
	woken chan struct{} // closed by the next ring; nil while nobody waits
}

// NewLocalBell returns a bell for goroutines of one process, for simulations and tests.
func NewLocalBell() Bell { return &localBell{} }

func (b *localBell) Ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	if b.woken != nil {
		close(b.woken)
		b.woken = nil
	}
}

func (b *localBell) Count() uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

func (b *localBell) Wait(seen uint32, timeout time.Duration) uint32 {
	b.mu.Lock()
	if b.count != seen || timeout <= 0 {
		defer b.mu.Unlock()
		return b.count
	}
	if b.woken == nil {
		b.woken = make(chan struct{})
	}
	woken := b.woken
	b.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	}
	return b.Count()
}
