// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"phalanx"
)

// The protocols on a daemon's one TCP port, selected by ALPN inside mutual TLS.
const (
	ProtoRaft   = "phalanx-raft/1"
	ProtoPeer   = "phalanx-peer/1"   // votes between hosts
	ProtoData   = "phalanx-data/1"   // collectives between hosts
	ProtoStream = "phalanx-stream/1" // a member and the leader
	ProtoAPI    = "phalanx-api/1"    // HTTP
	ProtoGossip = "phalanx-gossip/1"
	ProtoStore  = "phalanx-store/1" // the key-value store of a generation

	// What a daemon outside of the world tries the way into it with: bytes that come back, marked as votes and as collectives.
	ProtoTryPeer = "phalanx-try-peer/1"
	ProtoTryData = "phalanx-try-data/1"
)

// handshakeTimeout bounds what an unauthenticated peer can hold.
const handshakeTimeout = 5 * time.Second

// Listener is a daemon's one TCP port. Connections that hold the job key are handed to the queue of their protocol.
type Listener struct {
	network Network
	tcp     net.Listener
	id      *Identity
	log     *slog.Logger
	queues  map[string]*queue
	ends    sync.WaitGroup
	stop    chan struct{}
	once    sync.Once
}

// Listen binds the address.
func Listen(network Network, addr string, id *Identity, log *slog.Logger) (*Listener, error) {
	if network == nil {
		network = machineNetwork{}
	}
	tcp, err := network.Listen(addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &Problem{CodeFailed, fmt.Errorf("listen on %s: the port is in use", addr), "end what uses it or choose another with --bind ADDR:PORT"}
	}
	if err != nil {
		return nil, &Problem{CodeFailed, fmt.Errorf("listen on %s: %w", addr, err), "choose an address of this machine with --bind"}
	}
	l := &Listener{network: network, tcp: tcp, id: id, log: log, queues: map[string]*queue{}, stop: make(chan struct{})}
	for _, p := range id.server.NextProtos {
		l.queues[p] = &queue{conns: make(chan net.Conn, 64), stop: l.stop, closed: make(chan struct{}), addr: tcp.Addr()}
	}
	l.ends.Go(l.accept)
	return l, nil
}

// Addr is the bound address.
func (l *Listener) Addr() *net.TCPAddr { return l.tcp.Addr().(*net.TCPAddr) }

// Of returns the listener of one protocol. Its Close ends the protocol alone.
func (l *Listener) Of(protocol string) net.Listener { return l.queues[protocol] }

// Dial connects to a daemon under one protocol.
func (l *Listener) Dial(ctx context.Context, addr, protocol string) (*tls.Conn, error) {
	cfg := l.id.client.Clone()
	cfg.NextProtos = []string{protocol}
	c, err := l.network.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s for %s: %w", addr, protocol, err)
	}
	l.mark(c, protocol)
	t := tls.Client(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("dial %s for %s: %w", addr, protocol, err)
	}
	return t, nil
}

// Close ends the port and waits for handshakes under way.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.stop) })
	err := l.tcp.Close()
	l.ends.Wait()
	for _, q := range l.queues {
		q.drain()
	}
	return err
}

func (l *Listener) accept() {
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			select {
			case <-l.stop:
				return
			case <-time.After(50 * time.Millisecond): // out of descriptors, or the like
				continue
			}
		}
		l.ends.Go(func() { l.handshake(c) })
	}
}

func (l *Listener) handshake(c net.Conn) {
	t := tls.Server(c, l.id.server)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	go func() { // a stop must not wait for a silent peer
		select {
		case <-l.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := t.HandshakeContext(ctx); err != nil {
		l.log.Debug("connection refused", "peer_addr", c.RemoteAddr().String(), "error", err)
		c.Close()
		return
	}
	protocol := t.ConnectionState().NegotiatedProtocol
	q := l.queues[protocol]
	if q == nil {
		t.Close()
		return
	}
	l.mark(c, protocol)
	select {
	case q.conns <- t:
	case <-l.stop:
		t.Close()
	case <-q.closed:
		t.Close()
	case <-time.After(handshakeTimeout): // nobody takes connections of this protocol now
		t.Close()
	}
}

// queue is the listener of one protocol: 64 connections wait at most.
type queue struct {
	conns  chan net.Conn
	stop   chan struct{}
	closed chan struct{}
	once   sync.Once
	addr   net.Addr
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.stop:
		return nil, net.ErrClosed
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the protocol, not the port.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

func (q *queue) Addr() net.Addr { return q.addr }

func (q *queue) drain() {
	for {
		select {
		case c := <-q.conns:
			c.Close()
		default:
			return
		}
	}
}

// memberOf is the member at the other end of a connection that the listener accepted or dialled.
func memberOf(c net.Conn) phalanx.MemberID {
	if t, ok := c.(*tls.Conn); ok {
		return peerOf(t.ConnectionState())
	}
	return ""
}

// plainConns hides from net/http that its connections are TLS: it would end those whose ALPN protocol it does not know.
type plainConns struct{ net.Listener }

type plainConn struct{ net.Conn }

func (p plainConns) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return plainConn{c}, nil
}
