// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// simNet is a network in memory, good inside a synctest bubble: packets take a delay, queues drop when full, and sides
// can be cut from each other.
type simNet struct {
	mu    sync.Mutex
	nodes map[string]*simTransport
	cut   func(from, to string) bool
}

func newSimNet() *simNet {
	return &simNet{nodes: map[string]*simTransport{}, cut: func(string, string) bool { return false }}
}

func (n *simNet) setCut(cut func(from, to string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
}

// to returns the transport at addr, nil when it is gone or cut off.
func (n *simNet) to(from, addr string) *simTransport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut(from, addr) {
		return nil
	}
	return n.nodes[addr]
}

type simTransport struct {
	net     *simNet
	ip      net.IP
	addr    string
	packets chan *memberlist.Packet // 256: as a kernel's socket buffer, drops when full
	streams chan net.Conn           // 16: a listen queue
}

const (
	simPort  = 7000
	simDelay = 300 * time.Microsecond
)

func (n *simNet) join(host byte) *simTransport {
	ip := net.IPv4(10, 0, 0, host)
	t := &simTransport{net: n, ip: ip, addr: fmt.Sprintf("%s:%d", ip, simPort),
		packets: make(chan *memberlist.Packet, 256), streams: make(chan net.Conn, 16)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[t.addr] = t
	return t
}

func (t *simTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.ip, simPort, nil
}

func (t *simTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: &net.UDPAddr{IP: t.ip, Port: simPort}}
	time.AfterFunc(simDelay, func() {
		to := t.net.to(t.addr, addr)
		if to == nil {
			return
		}
		p.Timestamp = time.Now()
		select {
		case to.packets <- p:
		default:
		}
	})
	return time.Now(), nil
}

func (t *simTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to := t.net.to(t.addr, addr)
	if to == nil {
		time.Sleep(timeout)
		return nil, fmt.Errorf("dial %s: %w", addr, os.ErrDeadlineExceeded)
	}
	mine, theirs := net.Pipe()
	select {
	case to.streams <- theirs:
		return mine, nil
	default:
		return nil, fmt.Errorf("dial %s: queue full", addr)
	}
}

func (t *simTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *simTransport) StreamCh() <-chan net.Conn           { return t.streams }

func (t *simTransport) Shutdown() error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	delete(t.net.nodes, t.addr)
	return nil
}

// plainDialer dials TCP without TLS.
var plainDialer = StreamDialerFunc(func(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
})
