// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process that is killed is reported to its parent after its memory has been unmapped, which takes 10 ms for a small one and
// seconds for hundreds of gigabytes. A robust futex is marked before that, by each thread that ends.
//
// The pulse says that a thread has ended. Only the kernel's word about the process is proof of its end.

// Bits of a robust futex beside the owner's thread id.
const (
	futexWaiters   = 1 << 31
	futexOwnerDied = 1 << 30
)

// robustList is the kernel's struct robust_list_head with its only entry.
type robustList struct {
	next    uintptr // address of entry
	offset  int     // from an entry to its futex
	pending uintptr
	entry   uintptr // address of next: the end of the list
}

const robustHeadBytes = 3 * 8

func (p *Page) pulseWord() *uint32 { return (*uint32)(unsafe.Pointer(&p.words[offsetPulse/8])) }

// StartPulse gives the calling process's page a pulse until end is called, which must be before the page is unmapped. It takes
// one thread, which sleeps.
func StartPulse(p *Page) (end func() error, err error) {
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("start pulse: %w", err)
	}
	list := (*robustList)(unsafe.Pointer(&memory[0]))
	over := (*uint32)(unsafe.Pointer(&memory[unsafe.Sizeof(*list)])) // the thread sleeps on it
	began, ended := make(chan error, 1), make(chan struct{})         // 1: it is said once
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with its list
		thread := unix.Gettid()
		// It must run soon after a kill, among threads that compute. It may be refused, and then it runs in its turn.
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, -5)
		word := p.pulseWord()
		list.next, list.entry = uintptr(unsafe.Pointer(&list.entry)), uintptr(unsafe.Pointer(&list.next))
		list.offset = int(uintptr(unsafe.Pointer(word)) - uintptr(unsafe.Pointer(&list.entry)))
		if _, _, errno := unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, uintptr(unsafe.Pointer(list)), robustHeadBytes, 0); errno != 0 {
			began <- fmt.Errorf("set_robust_list: %w", errno)
			return
		}
		atomic.StoreUint32(word, uint32(thread)|futexWaiters) // as if one waited: the kernel wakes at the end
		began <- nil
		for atomic.LoadUint32(over) == 0 {
			_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(over)), futexWait, 0, 0, 0, 0)
		}
		atomic.StoreUint32(word, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, 0, robustHeadBytes, 0)
	}()
	stop := func() error {
		atomic.StoreUint32(over, 1)
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(over)), futexWake, 1, 0, 0, 0)
		<-ended
		return unix.Munmap(memory)
	}
	if err := <-began; err != nil {
		_ = stop()
		return nil, fmt.Errorf("start pulse: %w", err)
	}
	return stop, nil
}

// HasPulse reports whether the trainer keeps a pulse.
func (p *Page) HasPulse() bool { return p.region != nil && atomic.LoadUint32(p.pulseWord()) != 0 }

// PulseEnded reports whether the thread that kept the pulse has ended without a word.
func (p *Page) PulseEnded() bool { return atomic.LoadUint32(p.pulseWord())&futexOwnerDied != 0 }

// WaitPulse sleeps until the pulse ends or is taken back, or the timeout.
func (p *Page) WaitPulse(timeout time.Duration) {
	word := p.pulseWord()
	seen := atomic.LoadUint32(word)
	if seen == 0 || seen&futexOwnerDied != 0 {
		return
	}
	ts := unix.NsecToTimespec(timeout.Nanoseconds())
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
}
