// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// StreamListener yields the gossip streams that others open to this daemon. A net.Listener is one. Accept returns an
// error for good after Close.
type StreamListener interface {
	Accept() (net.Conn, error)
	Close() error
}

// StreamDialer opens a gossip stream to the daemon at HOST:PORT, authenticated and ready to write, before ctx ends.
type StreamDialer interface {
	DialStream(ctx context.Context, addr string) (net.Conn, error)
}

// StreamDialerFunc makes a function a StreamDialer.
type StreamDialerFunc func(ctx context.Context, addr string) (net.Conn, error)

// DialStream calls f.
func (f StreamDialerFunc) DialStream(ctx context.Context, addr string) (net.Conn, error) {
	return f(ctx, addr)
}

// Transport carries gossip over a UDP socket and streams that the daemon owns: a daemon has one TCP port, on which ALPN
// tells gossip from the rest, and the UDP port of the same number.
type Transport struct {
	udp     net.PacketConn
	streams StreamListener
	dialer  StreamDialer
	log     *slog.Logger

	// Both unbuffered: memberlist's readers hand off at once, and the kernel's queues are the bound.
	packets chan *memberlist.Packet
	conns   chan net.Conn

	done chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

// udpBufferBytes is asked of the kernel for received packets, so that a burst is not lost while the daemon is off the CPU.
// The kernel gives less where net.core.rmem_max is lower.
const udpBufferBytes = 2 << 20

// NewTransport starts to read packets and accept streams. It owns udp and streams from now on and closes them in
// Shutdown.
func NewTransport(udp net.PacketConn, streams StreamListener, dialer StreamDialer, log *slog.Logger) *Transport {
	t := &Transport{
		udp:     udp,
		streams: streams,
		dialer:  dialer,
		log:     orDiscard(log),
		packets: make(chan *memberlist.Packet),
		conns:   make(chan net.Conn),
		done:    make(chan struct{}),
	}
	if b, ok := udp.(interface{ SetReadBuffer(bytes int) error }); ok {
		if err := b.SetReadBuffer(udpBufferBytes); err != nil {
			t.log.Debug("gossip receive buffer stays as it is", "err", err)
		}
	}
	t.wg.Go(t.readPackets)
	t.wg.Go(t.acceptStreams)
	return t
}

func (t *Transport) readPackets() {
	const maxPacketBytes = 64 << 10
	buf := make([]byte, maxPacketBytes)
	for pause := (backoff{}); ; {
		n, from, err := t.udp.ReadFrom(buf)
		now := time.Now()
		if err != nil {
			if !t.again(&pause, "read gossip packet", err) {
				return
			}
			continue
		}
		pause = backoff{}
		if n == 0 {
			continue
		}
		packet := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: now}
		select {
		case t.packets <- packet:
		case <-t.done:
			return
		}
	}
}

func (t *Transport) acceptStreams() {
	for pause := (backoff{}); ; {
		conn, err := t.streams.Accept()
		if err != nil {
			if !t.again(&pause, "accept gossip stream", err) {
				return
			}
			continue
		}
		pause = backoff{}
		select {
		case t.conns <- conn:
		case <-t.done:
			conn.Close()
			return
		}
	}
}

// backoff grows from 5 ms to 1 s while a socket keeps failing.
type backoff struct{ next time.Duration }

// again reports whether to go on after an error, and waits first so that a lasting one (no descriptors left) does not
// spin. Only the first of a row is logged.
func (t *Transport) again(pause *backoff, what string, err error) bool {
	if errors.Is(err, net.ErrClosed) {
		select {
		case <-t.done:
		default:
			t.log.Error("gossip socket was closed by somebody else", "op", what, "err", err)
		}
		return false
	}
	if pause.next == 0 {
		pause.next = 5 * time.Millisecond
		t.log.Warn("gossip socket fails", "op", what, "err", err)
	}
	timer := time.NewTimer(pause.next)
	defer timer.Stop()
	pause.next = min(2*pause.next, time.Second)
	select {
	case <-timer.C:
		return true
	case <-t.done:
		return false
	}
}

// FinalAdvertiseAddr implements memberlist.Transport: what is not configured is taken from the UDP socket.
func (t *Transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	local, _ := t.udp.LocalAddr().(*net.UDPAddr)
	if port == 0 && local != nil {
		port = local.Port
	}
	var addr net.IP
	switch {
	case ip != "":
		addr = net.ParseIP(ip)
	case local != nil && !local.IP.IsUnspecified():
		addr = local.IP
	}
	if addr == nil || addr.IsUnspecified() || port <= 0 {
		return nil, 0, fmt.Errorf("gossip address %q port %d, bound to %v: not an address that others can reach: set --advertise",
			ip, port, t.udp.LocalAddr())
	}
	return addr, port, nil
}

// WriteTo implements memberlist.Transport. addr is IP:PORT; names are not resolved here, since this runs on probe paths.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("write gossip packet to %q: %w", addr, err)
	}
	_, err = t.udp.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// DialTimeout implements memberlist.Transport.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// A dial must not outlive Shutdown.
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-t.done:
			cancel()
		case <-stop:
		}
	}()
	conn, err := t.dialer.DialStream(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("dial gossip stream to %s: %w", addr, err)
	}
	return conn, nil
}

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.conns }

// Shutdown implements memberlist.Transport: it closes the socket and the listener and waits for both goroutines. Streams
// that memberlist has taken end by their own deadlines.
func (t *Transport) Shutdown() error {
	var err error
	t.once.Do(func() {
		close(t.done)
		err = errors.Join(t.udp.Close(), t.streams.Close())
	})
	t.wg.Wait()
	return err
}
