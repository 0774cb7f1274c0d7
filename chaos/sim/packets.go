// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// network is a host's network as one daemon uses it.
type network struct {
	wires *wires
	proc  *process
}

func (n network) Listen(addr string) (net.Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	if at.Port == 0 {
		at.Port = n.proc.host.nextPort()
	}
	l, err := n.wires.listen(n.proc, at.String(), at)
	if err != nil {
		return nil, err // not a nil *listener in an interface
	}
	return l, nil
}

func (n network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	to := n.proc.host.cluster.hostAt(at.IP)
	if to == nil {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.EHOSTUNREACH)
	}
	return n.wires.dial(ctx, n.proc, at.String(), to, &net.TCPAddr{IP: n.proc.host.ip, Port: n.proc.host.nextPort()})
}

func (n network) ListenPacket(addr string) (net.PacketConn, error) {
	at, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, err
	}
	w := n.wires
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.packets[at.String()] != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	p := &packets{wires: w, proc: n.proc, host: n.proc.host, addr: at, queue: make(chan packet, 256), done: make(chan struct{})}
	w.packets[at.String()] = p
	return p, nil
}

// packets is a UDP socket.
type packets struct {
	wires *wires
	proc  *process
	host  *host
	addr  *net.UDPAddr
	queue chan packet // 256: a full one drops
	done  chan struct{}
	once  sync.Once
}

type packet struct {
	data []byte
	from net.Addr
}

func (u *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case p := <-u.queue:
		u.proc.pass()
		return copy(b, p.data), p.from, nil
	case <-u.done:
	case <-u.proc.ctx.Done():
	}
	return 0, nil, net.ErrClosed
}

func (u *packets) WriteTo(b []byte, to net.Addr) (int, error) {
	if u.proc.dead() {
		return 0, net.ErrClosed
	}
	w := u.wires
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, os.ErrInvalid
	}
	target := u.host.cluster.hostAt(at.IP)
	if target == nil || !w.passes(way{u.host, target}) {
		return len(b), nil
	}
	takes, arrives := w.takes(way{u.host, target})
	if !arrives {
		return len(b), nil
	}
	if wait := time.Until(u.proc.wakes()); wait > 0 {
		takes += wait
	}
	data, name := slices.Clone(b), at.String()
	time.AfterFunc(takes, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if p := w.packets[name]; p != nil && w.passes(way{u.host, target}) {
			select {
			case p.queue <- packet{data, u.addr}:
			default:
			}
		}
	})
	return len(b), nil
}

func (u *packets) Close() error {
	u.once.Do(func() { close(u.done) })
	u.wires.mu.Lock()
	defer u.wires.mu.Unlock()
	if u.wires.packets[u.addr.String()] == u {
		delete(u.wires.packets, u.addr.String())
	}
	return nil
}

func (u *packets) LocalAddr() net.Addr              { return u.addr }
func (u *packets) SetDeadline(time.Time) error      { return nil }
func (u *packets) SetReadDeadline(time.Time) error  { return nil }
func (u *packets) SetWriteDeadline(time.Time) error { return nil }
