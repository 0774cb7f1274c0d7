// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by calls on something whose Close has been called.
var ErrClosed = errors.New("closed")

// ProcExit says that a watched process has ended.
type ProcExit struct {
	Key any
	PID int
	At  time.Time // when it was seen here; a process that died before Watch was seen then
}

// ProcWatch reports the end of processes of this host as soon as the kernel knows: it polls pidfds, so that the watcher
// need not be the parent and a reused pid fools nobody.
//
// Each watch yields exactly one exit or is ended by Unwatch or Close. Exits must be drained: the watcher waits for its
// reader and loses nothing, since level-triggered descriptors keep.
type ProcWatch struct {
	log   *slog.Logger
	epoll int
	wake  int // eventfd: pending has grown, or closing
	exits chan ProcExit
	done  chan struct{} // closed by Close: lets the goroutine leave a send that nobody reads
	ended chan struct{} // closed by the goroutine when it is over

	mu      sync.Mutex
	closed  bool
	nextID  uint64
	byKey   map[any]*procEntry
	byID    map[uint64]*procEntry // what epoll returns; ids, unlike descriptors, are never reused
	pending []*procEntry          // dead at Watch; at most one per watch
}

type procEntry struct {
	id    uint64
	key   any
	pid   int
	pidfd int // -1 when it was dead at Watch
}

const wakeID = 0

// NewProcWatch starts the watcher. It holds two descriptors, one more for each watched process, and one thread.
func NewProcWatch(log *slog.Logger) (*ProcWatch, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: epoll_create: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("watch processes: eventfd: %w", err)
	}
	w := &ProcWatch{
		log:   orDiscard(log),
		epoll: epoll,
		wake:  wake,
		// A full host's processes may die at once (8 trainers, 8 daemons); beyond that the watcher waits.
		exits: make(chan ProcExit, 16),
		done:  make(chan struct{}),
		ended: make(chan struct{}),
		byKey: map[any]*procEntry{},
		byID:  map[uint64]*procEntry{},
	}
	if err := w.add(wake, wakeID); err != nil {
		unix.Close(wake)
		unix.Close(epoll)
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	go w.run()
	return w, nil
}

// Exits returns the channel of exits. It is closed by Close. An exit that was already on its way when Unwatch was called
// may still arrive.
func (w *ProcWatch) Exits() <-chan ProcExit { return w.exits }

// Watch reports the end of the process with this pid and start time (StartTime) under key, which must be comparable and
// not in use. A process that is dead already, a zombie, or whose pid has gone to another one is reported at once.
// It never waits for the reader of Exits.
func (w *ProcWatch) Watch(pid int, start uint64, key any) error {
	fd, err := openLife(pid, start)
	if err != nil && !errors.Is(err, ErrNoProcess) {
		return fmt.Errorf("watch pid %d: %w", pid, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err = w.register(&procEntry{key: key, pid: pid, pidfd: fd})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return fmt.Errorf("watch pid %d: %w", pid, err)
	}
	return nil
}

// openLife opens a pidfd for exactly this life. Order matters: with the descriptor open the pid cannot be given away
// unseen, so a start time that agrees afterwards belongs to the descriptor.
func openLife(pid int, start uint64) (int, error) {
	if pid <= 0 {
		return -1, ErrNoProcess
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrNoProcess
	}
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	got, err := StartTime(pid)
	if err == nil && got != start {
		err = ErrNoProcess
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// register enters e; the caller holds mu.
func (w *ProcWatch) register(e *procEntry) error {
	if w.closed {
		return ErrClosed
	}
	if _, taken := w.byKey[e.key]; taken {
		return fmt.Errorf("key %v is watched already: unwatch it first", e.key)
	}
	e.id = w.nextID + 1
	if e.pidfd >= 0 {
		if err := w.add(e.pidfd, e.id); err != nil {
			return err
		}
		w.byID[e.id] = e
	} else {
		w.pending = append(w.pending, e)
		w.poke()
	}
	w.nextID = e.id
	w.byKey[e.key] = e
	return nil
}

func (w *ProcWatch) add(fd int, id uint64) error {
	ev := epollEvent(id)
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// epollEvent puts an id into the 64 bits that epoll hands back, which Go's type names Fd and Pad.
func epollEvent(id uint64) unix.EpollEvent {
	return unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
}

func eventID(ev unix.EpollEvent) uint64 { return uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32 }

// poke makes the goroutine look at pending and closed. A full counter (EAGAIN) is as good as a written one.
func (w *ProcWatch) poke() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(w.wake, one[:])
}

// Unwatch ends the watch with this key. An unknown key is no error: its exit may have been reported a moment ago.
func (w *ProcWatch) Unwatch(key any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.byKey[key]; e != nil {
		w.forget(e)
	}
}

// forget drops an entry and its descriptor, which leaves the epoll set with its last close; the caller holds mu.
func (w *ProcWatch) forget(e *procEntry) {
	delete(w.byKey, e.key)
	delete(w.byID, e.id)
	w.pending = slices.DeleteFunc(w.pending, func(p *procEntry) bool { return p == e })
	if e.pidfd >= 0 {
		unix.Close(e.pidfd)
		e.pidfd = -1
	}
}

// Close ends all watches and the goroutine, and closes Exits. It may be called twice.
func (w *ProcWatch) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		<-w.ended
		return nil
	}
	w.closed = true
	close(w.done)
	w.poke()
	w.mu.Unlock()

	<-w.ended
	// The goroutine is over and closed is set, so nobody else touches the descriptors.
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.byKey {
		w.forget(e)
	}
	return errors.Join(unix.Close(w.wake), unix.Close(w.epoll))
}

// run is the only goroutine: it waits for pidfds and the eventfd, and sends. It has no timeout because Close writes the
// eventfd.
func (w *ProcWatch) run() {
	defer close(w.ended)
	defer close(w.exits)
	events := make([]unix.EpollEvent, 32)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			w.log.Error("process watch ended: deaths on this host are seen late from now on, restart the daemon", "err", err)
			return
		}
		exits, closed := w.collect(events[:n], time.Now())
		if closed {
			return
		}
		for _, exit := range exits {
			select {
			case w.exits <- exit:
			case <-w.done:
				return
			}
		}
	}
}

// collect turns events and pending entries into exits and forgets them.
func (w *ProcWatch) collect(events []unix.EpollEvent, now time.Time) (exits []ProcExit, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, true
	}
	dead := slices.Clone(w.pending)
	for _, ev := range events {
		id := eventID(ev)
		if id == wakeID {
			var count [8]byte
			_, _ = unix.Read(w.wake, count[:])
			continue
		}
		// Nil when Unwatch came between the wait and here.
		if e := w.byID[id]; e != nil {
			dead = append(dead, e)
		}
	}
	for _, e := range dead {
		exits = append(exits, ProcExit{Key: e.key, PID: e.pid, At: now})
		w.forget(e)
	}
	return exits, false
}

// orDiscard lets callers leave the logger out.
func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
