// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/membership"
	"phalanx/node"
)

// Trainers that are started ahead (--warm). A process comes up to its hello, connects to a socket of run and waits there. A
// daemon that needs a trainer asks at the same socket; run hands it the oldest that waits and starts the next one.
//
//	          connects               is taken
//	starting ─────────▶ ready ───────────────────▶ a trainer, that ends with its member
//	   │ dies             │ dies
//	   └──────────────────┴──▶ another after a pause, which doubles while none gets ready
//
// When run ends, or is killed, their connections end and with them the processes that wait.

const (
	warmTick     = time.Second
	warmPause    = time.Second // after a death; doubles
	warmMaxPause = time.Minute
	warmTalk     = 5 * time.Second // for a message on the socket
	warmHandOver = 800 * time.Millisecond
	warmNice     = 19
)

// warmProcess is one that was started ahead.
type warmProcess struct {
	pid    int
	start  uint64
	number int       // names its output before it is taken
	since  time.Time // of its state
	conn   net.Conn  // while it waits; nil: it is starting
	member phalanx.MemberID
	token  string
}

// keeper holds the processes that were started ahead. Its mutex guards what follows it; nothing waits under it.
type keeper struct {
	want    int
	host    string
	paths   node.Paths
	command []string
	env     []string
	log     *slog.Logger
	nice    bool // may be given back
	plain   bool // its daemons learn otherwise how a trainer ended
	wake    chan struct{}

	mu      sync.Mutex
	waiting []*warmProcess // starting and ready, oldest first
	taken   []*warmProcess // trainers now
	closed  bool
	number  int
	deaths  int // in a row
	next    time.Time
	why     string
}

// keepWarm keeps processes ready until ctx ends; then it ends those that wait, and returns.
func (k *keeper) run(ctx context.Context) {
	listener, err := k.listen()
	if err != nil {
		k.log.Warn("no trainer is started ahead", "error", err)
		return
	}
	var talks sync.WaitGroup
	talks.Go(func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			talks.Go(func() { k.talk(conn) })
		}
	})
	tick := time.NewTicker(warmTick)
	defer tick.Stop()
	for ctx.Err() == nil {
		k.fill(time.Now())
		k.tell()
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-k.wake:
		}
	}
	_ = listener.Close() // unlinks the socket
	k.end()
	talks.Wait()
	k.tell()
}

func (k *keeper) listen() (net.Listener, error) {
	if err := os.MkdirAll(k.paths.Warm(), 0o700); err != nil {
		return nil, err
	}
	if err := k.paths.ForgetWarm(); err != nil {
		return nil, err
	}
	_ = os.Remove(k.paths.WarmSocket()) // of a run before this one; the lock of the directory is held
	l, err := net.Listen("unix", k.paths.WarmSocket())
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(k.paths.WarmSocket(), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// fill starts what is missing, one at a time: they would only slow each other down.
func (k *keeper) fill(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	starting := slices.ContainsFunc(k.waiting, func(p *warmProcess) bool { return p.conn == nil })
	if k.closed || len(k.waiting) >= k.want || starting || now.Before(k.next) {
		return
	}
	if why := noRoom(memoryNow()); why != "" {
		k.why, k.next = why, now.Add(10*time.Second)
		return
	}
	k.number++
	p, err := k.startOne(k.number)
	if err != nil {
		k.failed(now, err.Error())
		return
	}
	if k.deaths == 0 {
		k.why = ""
	}
	k.waiting = append(k.waiting, p)
}

// failed puts the next start off.
func (k *keeper) failed(now time.Time, why string) {
	k.deaths++
	k.next = now.Add(min(warmPause<<min(k.deaths-1, 10), warmMaxPause))
	k.why = why
	if k.deaths == 3 {
		k.log.Warn("trainers that are started ahead end before they wait; they are tried again", "why", why)
	}
}

// talk answers one connection: a process that waits, or a daemon that wants one.
func (k *keeper) talk(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(warmTalk)) // a unix socket has deadlines
	m, err := wire.ReadWarm(conn)
	switch {
	case err != nil:
	case m.Op == wire.WarmReady:
		if k.ready(conn) {
			return // it stays open
		}
	case m.Op == wire.WarmTake:
		answer := wire.WarmMessage{Op: wire.WarmNone}
		if p := k.take(m, time.Now().Add(warmHandOver)); p != nil {
			answer = wire.WarmMessage{Op: wire.WarmTaken, PID: p.pid, Start: p.start}
		}
		if wire.WriteWarm(conn, answer) != nil && answer.PID > 0 {
			_ = unix.Kill(-answer.PID, unix.SIGKILL) // the daemon has gone
		}
	}
	_ = conn.Close()
}

// ready notes that a process waits. It is known by its process group: what connects may be a child of what was started.
func (k *keeper) ready(conn net.Conn) bool {
	group := groupOf(conn)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.waiting {
		if p.pid == group && p.conn == nil && !k.closed {
			_ = conn.SetDeadline(time.Time{})
			p.conn, p.since = conn, time.Now()
			k.deaths, k.why = 0, ""
			k.nudge()
			return true
		}
	}
	return false
}

// groupOf is the process group of who has connected, 0 when that is not known.
func groupOf(conn net.Conn) int {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	group := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			group, _ = unix.Getpgid(int(cred.Pid))
		}
	})
	return group
}

// take makes the one that has waited longest a trainer. One that does not answer is killed and the next one asked.
func (k *keeper) take(m wire.WarmMessage, deadline time.Time) *warmProcess {
	for time.Now().Before(deadline) {
		p := k.claim(m)
		if p == nil {
			return nil
		}
		err := k.handOver(p, m, deadline)
		_ = p.conn.Close()
		if err == nil {
			return p
		}
		k.log.Warn("a trainer that was started ahead does not take over", "pid", p.pid, "error", err)
		_ = unix.Kill(-p.pid, unix.SIGKILL) // reaped by the loop
	}
	return nil
}

func (k *keeper) claim(m wire.WarmMessage) *warmProcess {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.waiting, func(p *warmProcess) bool { return p.conn != nil })
	if i < 0 || k.closed {
		return nil
	}
	p := k.waiting[i]
	k.waiting = slices.Delete(k.waiting, i, i+1)
	p.member, p.token, p.since = phalanx.MemberID(m.Member), m.Token, time.Now()
	k.taken = append(k.taken, p)
	k.nudge()
	return p
}

// handOver gives a process its place. What it has printed until now goes before what it will print.
func (k *keeper) handOver(p *warmProcess, m wire.WarmMessage, deadline time.Time) error {
	if !membership.Alive(p.pid, p.start) {
		return errors.New("it has ended")
	}
	name := k.paths.WarmLog(k.host, p.number)
	if err := appendFile(name, m.Log); err != nil {
		return err
	}
	k.restore(p)
	_ = p.conn.SetDeadline(deadline)
	if err := wire.WriteWarm(p.conn, wire.WarmMessage{Op: wire.WarmPlace, Env: m.Env, Log: m.Log}); err != nil {
		return err
	}
	a, err := wire.ReadWarm(p.conn)
	if err != nil {
		return err
	}
	if a.Op != wire.WarmTaken {
		return fmt.Errorf("it answers %q", a.Op)
	}
	_ = os.Remove(name) // its lines are in the life's file
	return nil
}

// reaped is told that a child of run has ended. It reports whether it was one that was started ahead.
func (k *keeper) reaped(pid int, status unix.WaitStatus) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.IndexFunc(k.taken, func(p *warmProcess) bool { return p.pid == pid }); i >= 0 {
		p := k.taken[i]
		k.taken = slices.Delete(k.taken, i, i+1)
		k.nudge()
		if k.plain {
			return true
		}
		if err := node.NoteWarmExit(k.paths, pid, p.start, exitCode(status)); err != nil {
			k.log.Warn("the daemon will not know how its trainer ended", "pid", pid, "error", err)
		}
		return true
	}
	i := slices.IndexFunc(k.waiting, func(p *warmProcess) bool { return p.pid == pid })
	if i < 0 {
		return false
	}
	p := k.waiting[i]
	k.waiting = slices.Delete(k.waiting, i, i+1)
	if p.conn != nil {
		_ = p.conn.Close()
	}
	_ = unix.Kill(-pid, unix.SIGKILL) // what it had started
	if !k.closed {
		log := k.paths.WarmLog(k.host, p.number)
		why := "one ended before it was needed: " + exitStatus(status)
		if lines := lastLines(log, 1); len(lines) > 0 && lines[0] != "" {
			why += ": " + lines[0]
		}
		k.failed(time.Now(), why)
		_ = os.Remove(log) // its last line is told
	}
	k.nudge()
	return true
}

// end kills the processes that wait; the supervisor reaps them. Those that were taken belong to their members.
func (k *keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for _, p := range k.waiting {
		_ = unix.Kill(-p.pid, unix.SIGKILL) // has ended
		if p.conn != nil {
			_ = p.conn.Close()
		}
		_ = os.Remove(k.paths.WarmLog(k.host, p.number))
	}
	k.waiting, k.why = nil, ""
	k.nudge()
}

// nudge lets run look at once.
func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default: // it will
	}
}

// tell writes down what status shows.
func (k *keeper) tell() {
	k.mu.Lock()
	s := node.WarmState{Want: k.want, Why: k.why}
	for _, p := range k.waiting {
		s.Processes = append(s.Processes, node.WarmProcess{PID: p.pid, Start: p.start, Ready: p.conn != nil, UnixNS: p.since.UnixNano()})
	}
	for _, p := range k.taken {
		s.Taken = append(s.Taken, node.WarmProcess{PID: p.pid, Start: p.start, UnixNS: p.since.UnixNano(), Member: p.member, Token: p.token})
	}
	closed := k.closed
	k.mu.Unlock()
	if closed {
		s.Want = 0
	}
	if err := node.WriteWarmState(k.paths, &s); err != nil {
		k.log.Debug("status will not show what was started ahead", "error", err)
	}
}

// exitCode is a status as a shell has it.
func exitCode(s unix.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// memoryNow is the memory of the machine, in bytes; zeros when it is not known.
func memoryNow() (available, total int64) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 {
			total = kib << 10
		}
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			available = kib << 10
		}
	}
	return available, total
}

// noRoom says why no process is started ahead: the trainers that work come first.
func noRoom(available, total int64) string {
	if total > 0 && available < total/20 {
		return fmt.Sprintf("of %d MiB of memory %d are available; it is started when a twentieth is", total>>20, available>>20)
	}
	return ""
}
