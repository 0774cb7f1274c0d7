// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"phalanx/client/wire"
	"phalanx/membership"
	"phalanx/node"
)

// host is a machine: its memory and processes last until it loses power, its disk stays.
type host struct {
	cluster *cluster
	name    string
	ip      net.IP
	dir     string // real files: what the daemons keep beside the log
	disk    *disk
	up      bool // has power; guarded by the wires' lock
	lost    bool // never comes back; the schedule's own

	mu     sync.Mutex
	boot   int
	booted time.Time
	heap   *wire.HeapMemory
	procs  map[int]*process
	watch  map[*procWatch]struct{}
	pids   int
	ports  int
}

func (h *host) bootID() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%02x%02x0000-0000-4000-8000-%012x", h.ip[3], h.boot&0xff, h.boot)
}

// nextPort is a port that no socket of the host has had.
func (h *host) nextPort() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports++
	return 20000 + h.ports
}

// fork makes a process.
func (h *host) fork(name string) *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pids++
	ctx, end := context.WithCancel(context.Background())
	p := &process{host: h, name: name, pid: 100 + h.pids, start: uint64(time.Since(h.booted)/(10*time.Millisecond)) + 1, ctx: ctx, end: end, gone: make(chan struct{})}
	h.procs[p.pid] = p
	return p
}

// reap reports the end of a process to those who watch it.
func (h *host) reap(p *process) {
	p.end()
	h.cluster.wires.bury(p)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.procs, p.pid)
	for w := range h.watch {
		w.ended(p)
	}
	close(p.gone)
}

func (h *host) process(pid int) *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.procs[pid]
}

// running lists the host's processes.
func (h *host) running() []*process {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*process
	for _, p := range h.procs {
		out = append(out, p)
	}
	return out
}

func (h *host) memory() *wire.HeapMemory {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heap
}

// restart is a new boot: nothing is in memory.
func (h *host) restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.boot++
	h.booted = time.Now()
	h.heap = wire.NewHeapMemory()
	h.pids = h.boot * 1000
}

// system is the operating system of a host as one daemon sees it.
type system struct {
	host *host
	proc *process
}

func (s system) BootID() string       { return s.host.bootID() }
func (s system) Self() (int, uint64)  { return s.proc.pid, s.proc.start }
func (s system) Prefer() bool         { return true }
func (s system) PeerUID(net.Conn) int { return os.Getuid() }

// BoottimeNS is asked by the loop all the time, so that is where a stopped daemon stops.
func (s system) BoottimeNS() int64 {
	s.proc.pass()
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	return int64(time.Since(s.host.booted)) + int64(time.Second)
}

func (s system) Stat(pid int) (membership.ProcStat, error) {
	p := s.host.process(pid)
	if p == nil {
		return membership.ProcStat{}, fmt.Errorf("read stat of pid %d: %w", pid, membership.ErrNoProcess)
	}
	st := membership.ProcStat{State: 'S', Threads: 1, Start: p.start}
	if p.isStopped() {
		st.State = 'T'
	}
	return st, nil
}

func (s system) Alive(pid int, start uint64) bool {
	p := s.host.process(pid)
	return p != nil && p.start == start
}

func (s system) Start(c node.Command, exited func(how string, code int)) (int, uint64, error) {
	if s.proc.dead() {
		return 0, 0, errors.New("simulated host: the process is dead")
	}
	p := s.host.cluster.startTrainer(s.host, c, exited)
	return p.pid, p.start, nil
}

func (s system) Kill(pid int, start uint64) {
	if p := s.host.process(pid); p != nil && p.start == start && !s.proc.dead() {
		p.kill()
	}
}

func (s system) ListenLocal(path string) (net.Listener, error) {
	l, err := s.host.cluster.wires.listen(s.proc, path, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err // not a nil *listener in an interface
	}
	return l, nil
}

func (s system) Watch(*slog.Logger) (node.ProcWatcher, error) {
	w := &procWatch{host: s.host, keys: map[any]*process{}, exits: make(chan membership.ProcExit, 1024)}
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	s.host.watch[w] = struct{}{}
	return w, nil
}

// procWatch reports ends of processes. The host's lock guards it.
type procWatch struct {
	host   *host
	keys   map[any]*process
	exits  chan membership.ProcExit // 1024: more than die in a simulation
	closed bool
}

func (w *procWatch) Watch(pid int, start uint64, key any) error {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	if w.closed {
		return membership.ErrClosed
	}
	if _, taken := w.keys[key]; taken {
		return fmt.Errorf("key %v is watched already: unwatch it first", key)
	}
	p := w.host.procs[pid]
	if p == nil || p.start != start {
		w.exits <- membership.ProcExit{Key: key, PID: pid, At: time.Now()}
		return nil
	}
	w.keys[key] = p
	return nil
}

func (w *procWatch) Unwatch(key any) {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	delete(w.keys, key)
}

func (w *procWatch) Exits() <-chan membership.ProcExit { return w.exits }

func (w *procWatch) Close() error {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	if !w.closed {
		w.closed = true
		delete(w.host.watch, w)
		close(w.exits)
	}
	return nil
}

func (w *procWatch) ended(p *process) {
	for key, watched := range w.keys {
		if watched == p {
			delete(w.keys, key)
			w.exits <- membership.ProcExit{Key: key, PID: p.pid, At: time.Now()}
		}
	}
}
