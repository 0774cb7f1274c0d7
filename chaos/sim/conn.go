// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

var (
	errTimedOut  = fmt.Errorf("simulated connection: %w", syscall.ETIMEDOUT)
	errReset     = fmt.Errorf("simulated connection: %w", syscall.ECONNRESET)
	errPowerless = fmt.Errorf("simulated connection: %w", syscall.ENETDOWN)
)

// conn is one end of a stream. Writes never block: kernels buffer more than a toy job sends.
type conn struct {
	wires         *wires
	proc          *process
	host          *host
	peer          *conn
	local, remote net.Addr

	segments []segment // on the way to this end
	last     time.Time // when the newest of them arrives
	err      error     // why the connection is over
	orphan   bool      // the other end knows nothing of it: a write is answered by a reset
	closed   bool
	readBy   time.Time
	writeBy  time.Time
	wake     chan struct{} // 1: the reader looks again
	done     chan struct{} // closed by Close
}

type segment struct {
	at   time.Time
	data []byte
	fin  bool
}

func (w *wires) pair(from, to *process, local, remote net.Addr) (*conn, *conn) {
	a := &conn{wires: w, proc: from, host: from.host, local: local, remote: remote, wake: make(chan struct{}, 1), done: make(chan struct{})}
	b := &conn{wires: w, proc: to, host: to.host, local: remote, remote: local, wake: make(chan struct{}, 1), done: make(chan struct{})}
	a.peer, b.peer = b, a
	w.conns[a], w.conns[b] = struct{}{}, struct{}{}
	return a, b
}

func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// hold delays what has not arrived yet.
func (c *conn) hold(until time.Time) {
	now := time.Now()
	for i := range c.segments {
		if s := &c.segments[i]; s.at.Before(until) && (s.at.After(now) || i == 0) {
			s.at = until
		}
	}
	if c.last.Before(until) && len(c.segments) > 0 {
		c.last = until
	}
}

func (c *conn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.poke()
}

// send puts a segment on the way to the other end.
func (c *conn) send(s segment) {
	at := time.Now()
	if w := c.proc.wakes(); w.After(at) {
		at = w
	}
	s.at = at.Add(c.wires.streamTakes(way{c.host, c.peer.host}))
	if s.at.Before(c.peer.last) {
		s.at = c.peer.last
	}
	c.peer.last = s.at
	c.peer.segments = append(c.peer.segments, s)
	c.peer.poke()
}

// shut is the end of this side: the other one reads what was sent, then the end.
func (c *conn) shut() {
	if c.closed {
		return
	}
	c.closed = true
	close(c.done)
	delete(c.wires.conns, c)
	switch {
	case c.err != nil || c.orphan:
		c.peer.orphan = true
	default:
		c.send(segment{fin: true})
	}
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		if !c.proc.pass() {
			return 0, net.ErrClosed
		}
		n, wait, err := c.take(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		var timer *time.Timer
		var out <-chan time.Time
		if wait >= 0 {
			timer = time.NewTimer(wait)
			out = timer.C
		}
		select {
		case <-c.wake:
		case <-out:
		case <-c.done:
		case <-c.proc.ctx.Done():
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// take reads what has arrived, or says how long to wait for it: a negative time is for ever.
func (c *conn) take(b []byte) (n int, wait time.Duration, err error) {
	c.wires.mu.Lock()
	defer c.wires.mu.Unlock()
	now := time.Now()
	wait = -1
	switch {
	case c.closed:
		return 0, 0, net.ErrClosed
	case c.err != nil:
		return 0, 0, c.err
	case !c.readBy.IsZero() && !now.Before(c.readBy):
		return 0, 0, os.ErrDeadlineExceeded
	}
	if !c.readBy.IsZero() {
		wait = c.readBy.Sub(now)
	}
	if len(c.segments) == 0 {
		return 0, wait, nil
	}
	if left := c.segments[0].at.Sub(now); left > 0 {
		if wait < 0 || left < wait {
			wait = left
		}
		return 0, wait, nil
	}
	if !c.wires.passes(way{c.peer.host, c.host}) {
		return 0, wait, nil
	}
	for n < len(b) && len(c.segments) > 0 && !c.segments[0].at.After(now) {
		s := &c.segments[0]
		if s.fin {
			if n > 0 {
				return n, 0, nil
			}
			return 0, 0, io.EOF
		}
		k := copy(b[n:], s.data)
		n += k
		if s.data = s.data[k:]; len(s.data) == 0 {
			c.segments = c.segments[1:]
		}
	}
	return n, 0, nil
}

func (c *conn) Write(b []byte) (int, error) {
	c.wires.mu.Lock()
	defer c.wires.mu.Unlock()
	switch {
	case c.closed || c.proc.dead():
		return 0, net.ErrClosed
	case c.err != nil:
		return 0, c.err
	case !c.writeBy.IsZero() && !time.Now().Before(c.writeBy):
		return 0, os.ErrDeadlineExceeded
	case c.peer.closed || c.orphan:
		if c.wires.passes(way{c.host, c.peer.host}) && c.wires.passes(way{c.peer.host, c.host}) {
			c.fail(errReset)
		}
		return len(b), nil
	}
	c.send(segment{data: slices.Clone(b)})
	return len(b), nil
}

// Close ends this side.
func (c *conn) Close() error {
	c.wires.mu.Lock()
	defer c.wires.mu.Unlock()
	c.shut()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	return c.deadlines(func() { c.readBy, c.writeBy = t, t })
}
func (c *conn) SetReadDeadline(t time.Time) error  { return c.deadlines(func() { c.readBy = t }) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.deadlines(func() { c.writeBy = t }) }

func (c *conn) deadlines(set func()) error {
	c.wires.mu.Lock()
	defer c.wires.mu.Unlock()
	set()
	c.poke()
	return nil
}

// listener is a port, or a socket of the host's file system.
type listener struct {
	wires *wires
	proc  *process
	host  *host
	name  string
	addr  net.Addr
	queue chan net.Conn // 128, the backlog
	done  chan struct{}
	once  sync.Once
}

func (w *wires) listen(p *process, name string, addr net.Addr) (*listener, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners[name] != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, syscall.EADDRINUSE)
	}
	l := &listener{wires: w, proc: p, host: p.host, name: name, addr: addr, queue: make(chan net.Conn, 128), done: make(chan struct{})}
	w.listeners[name] = l
	w.notify()
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		l.proc.pass()
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-l.proc.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	l.wires.mu.Lock()
	defer l.wires.mu.Unlock()
	if l.wires.listeners[l.name] == l {
		delete(l.wires.listeners, l.name)
	}
	for {
		select {
		case c := <-l.queue:
			c.(*conn).shut()
			continue
		default:
		}
		return nil
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

// dial connects to a listener by name on the host at the other end.
func (w *wires) dial(ctx context.Context, p *process, name string, to *host, local net.Addr) (net.Conn, error) {
	there, back := way{p.host, to}, way{to, p.host}
	for first := true; ; first = false {
		if !p.pass() {
			return nil, net.ErrClosed
		}
		w.mu.Lock()
		through := w.passes(there) && w.passes(back)
		takes := w.streamTakes(there) + w.streamTakes(back)
		changed := w.changed
		w.mu.Unlock()
		if !through { // sent again until somebody answers
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
			case <-p.ctx.Done():
				return nil, net.ErrClosed
			}
			continue
		}
		if !first {
			takes += resendMin
		}
		timer := time.NewTimer(takes)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
		case <-p.ctx.Done():
			timer.Stop()
			return nil, net.ErrClosed
		}
		w.mu.Lock()
		if !w.passes(there) || !w.passes(back) || p.dead() {
			w.mu.Unlock()
			continue
		}
		l := w.listeners[name]
		if l == nil || l.proc.dead() {
			w.mu.Unlock()
			return nil, fmt.Errorf("dial %s: %w", name, syscall.ECONNREFUSED)
		}
		mine, theirs := w.pair(p, l.proc, local, l.addr)
		select {
		case l.queue <- theirs:
			w.mu.Unlock()
			return mine, nil
		default: // the backlog is full
			theirs.shut()
			mine.shut()
			w.mu.Unlock()
			return nil, fmt.Errorf("dial %s: %w", name, syscall.ECONNREFUSED)
		}
	}
}
