// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"runtime"
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
	// Tell adds one and wakes whoever waits unless that one is calm: then it sees what was told when it looks next.
	Tell()
	// SetCalm says whether Tell may leave the waiter asleep. Only the waiter calls it, between Count and Wait.
	SetCalm(calm bool)
	// Count is the number of rings so far, modulo 2^32.
	Count() uint32
	// Wait returns the count as soon as it is rung after it was seen, or after the timeout.
	Wait(seen uint32, timeout time.Duration) (count uint32)
	// Hold is Wait for a goroutine that must go on at once when it is rung: it keeps its processor of Go's scheduler, which
	// needs another one for whatever else runs.
	Hold(seen uint32, timeout time.Duration) (count uint32)
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
	return &futexBell{word: (*uint32)(at), waiters: (*uint32)(unsafe.Add(at, 4)), calm: (*uint32)(unsafe.Add(at, 8))}
}

// Unmap ends the mapping; no bell of it may be used or waited on afterwards.
func (b *Bells) Unmap() error { return b.region.Unmap() }

type futexBell struct{ word, waiters, calm *uint32 }

// The operations without FUTEX_PRIVATE_FLAG: the word is found by its page, not by the address in one process.
const (
	futexWait = 0
	futexWake = 1
)

func (b *futexBell) Ring() {
	atomic.AddUint32(b.word, 1)
	b.rouse()
}

func (b *futexBell) Tell() {
	atomic.AddUint32(b.word, 1)
	// A waiter that becomes calm too late for this look has seen the new word before it sleeps.
	if atomic.LoadUint32(b.calm) == 0 {
		b.rouse()
	}
}

// rouse wakes whoever waits.
func (b *futexBell) rouse() {
	// A waiter counts itself before it looks at the word again, so one that is not seen here sees the new word. One that
	// was killed while it waited is counted for ever: rings then cost a system call and stay right.
	if atomic.LoadUint32(b.waiters) != 0 {
		_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWake, 1<<30, 0, 0, 0) // never blocks
	}
}

func (b *futexBell) SetCalm(calm bool) {
	v := uint32(0)
	if calm {
		v = 1
	}
	if atomic.LoadUint32(b.calm) != v {
		atomic.StoreUint32(b.calm, v)
	}
}

func (b *futexBell) Count() uint32 { return atomic.LoadUint32(b.word) }

func (b *futexBell) Wait(seen uint32, timeout time.Duration) uint32 {
	return b.sleep(seen, timeout, func(left *unix.Timespec) {
		// Every result (woken, changed before, interrupted, timed out) is told apart by looking again.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(left)), 0, 0)
	})
}

// Hold does not tell the scheduler that it enters the kernel. The scheduler asks for a processor that is held for long with a
// signal, as does the collector when it stops all of them; the signal ends the wait, and the goroutine yields.
func (b *futexBell) Hold(seen uint32, timeout time.Duration) uint32 {
	return b.sleep(seen, timeout, func(left *unix.Timespec) {
		_, _, e := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(left)), 0, 0)
		if e == unix.EINTR {
			runtime.Gosched()
		}
	})
}

// sleep calls wait until the count is another one or the time is over.
func (b *futexBell) sleep(seen uint32, timeout time.Duration, wait func(left *unix.Timespec)) uint32 {
	if c := b.Count(); c != seen || timeout <= 0 {
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
		wait(&ts)
	}
}

// localBell is a bell inside one process. It uses channels and timers only, so it works in a bubble of testing/synctest.
type localBell struct {
	mu    sync.Mutex
	count uint32
	calm  bool
	woken chan struct{} // closed by the next ring; nil while nobody waits
}

// NewLocalBell returns a bell for goroutines of one process, for simulations and tests.
func NewLocalBell() Bell { return &localBell{} }

func (b *localBell) Ring() { b.add(false) }
func (b *localBell) Tell() { b.add(true) }

func (b *localBell) add(lazy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	if b.woken != nil && !(lazy && b.calm) {
		close(b.woken)
		b.woken = nil
	}
}

func (b *localBell) SetCalm(calm bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calm = calm
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

func (b *localBell) Hold(seen uint32, timeout time.Duration) uint32 { return b.Wait(seen, timeout) }
