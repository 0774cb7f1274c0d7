// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/store"
	"phalanx/elastic"
	"phalanx/membership"
)

// storePath is where a process of this host connects to the store of a generation, over the unix socket.
const storePath = "/v1/store"

// storeProtocol is what such a connection is upgraded to.
const storeProtocol = "phalanx-store/1"

// storeRetry is the pause before rank 0's daemon is tried again: it may not have read of the generation yet, or be on its way back.
const storeRetry = 30 * time.Millisecond

// Answers of rank 0's daemon to a connection that names its generation.
const (
	storeHere    = 0
	storeNotHere = 1
)

// stores serves the key-value store of the present generation (package store) to the processes of this host. Rank 0's daemon
// holds it; the others forward to that one, over the daemons' port. Everything here ends with the generation.
type stores struct {
	d *Daemon

	mu     sync.Mutex
	world  phalanx.Generation
	rank0  phalanx.MemberID
	server *store.Server // nil: rank 0 is another member
	ctx    context.Context
	end    context.CancelFunc
	port   net.Listener // for clients that know nothing but an address, nil before the first
}

func newStores(d *Daemon) *stores {
	s := &stores{d: d}
	s.ctx, s.end = context.WithCancel(d.ctx)
	return s
}

// stateChanged ends the store of an older generation and begins that of a newer one. The loop calls it.
func (s *stores) stateChanged(now *elastic.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := now.World.Generation
	if g == s.world {
		return
	}
	s.endLocked()
	s.ctx, s.end = context.WithCancel(s.d.ctx)
	s.world, s.rank0, s.server = g, "", nil
	if now.World.Size() > 0 {
		s.rank0 = now.World.Seats[0].Member
	}
	if s.rank0 == s.d.me() {
		s.server = store.NewServer()
	}
}

func (s *stores) endLocked() {
	s.end()
	if s.server != nil {
		s.server.End()
	}
	if s.port != nil {
		_ = s.port.Close()
		s.port = nil
	}
}

// revoke ends the store of a generation that is sealed: whoever waits in it waits for nothing, and cannot hear a signal.
func (s *stores) revoke(g phalanx.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !g.Less(s.world) {
		s.endLocked()
	}
}

// close ends everything.
func (s *stores) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

// of returns what serves a generation: its store if that is here, else whose daemon has it. ctx ends with the generation.
func (s *stores) of(g phalanx.Generation) (ctx context.Context, here *store.Server, rank0 phalanx.MemberID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g != s.world || s.rank0 == "" {
		return nil, nil, "", fmt.Errorf("store of generation %s: %w, this daemon has read of %s", g, phalanx.ErrStaleGeneration, s.world)
	}
	return s.ctx, s.server, s.rank0, nil
}

// over reports whether a newer generation than g was read.
func (s *stores) over(g phalanx.Generation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return g.Less(s.world)
}

// listen serves the store of the present generation on a port of the loopback interface: the given one, or a free one for 0.
// It speaks as PyTorch's TCPStore does, which cannot name a generation, so each generation has a port of its own.
func (s *stores) listen(g phalanx.Generation, port int) (int, error) {
	ctx, _, _, err := s.of(g)
	if err != nil {
		return 0, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, fmt.Errorf("listen for the store of generation %s: %w", g, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g != s.world || ctx.Err() != nil {
		_ = l.Close()
		return 0, fmt.Errorf("store of generation %s: %w", g, phalanx.ErrStaleGeneration)
	}
	if s.port != nil {
		_ = s.port.Close()
	}
	s.port = l
	s.d.ends.Go(func() {
		for {
			c, err := l.Accept()
			switch {
			case err == nil:
				s.d.ends.Go(func() { s.serve(g, c) })
			case errors.Is(err, net.ErrClosed):
				return
			default: // out of descriptors, or the like
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return
				}
			}
		}
	})
	return l.Addr().(*net.TCPAddr).Port, nil
}

// serve serves a connection of this host's until it or the generation ends.
func (s *stores) serve(g phalanx.Generation, c net.Conn) {
	defer c.Close()
	ctx, here, rank0, err := s.of(g)
	if err != nil {
		return // the generation has ended, which is what the client finds
	}
	if here != nil {
		if err := here.Serve(ctx, c); err != nil {
			s.d.log.Info("a client of the store was cut off", "generation", g.String(), "error", err)
		}
		return
	}
	far, err := s.reach(ctx, g, rank0)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close(); _ = far.Close() })
	defer stop()
	back := make(chan struct{})
	go func() { // ends when either connection does
		defer close(back)
		_, _ = io.Copy(c, far)
		_ = c.Close()
	}()
	_, _ = io.Copy(far, c)
	_ = far.Close()
	<-back
}

// reach connects to the store on rank 0's daemon. It tries until the generation ends.
func (s *stores) reach(ctx context.Context, g phalanx.Generation, rank0 phalanx.MemberID) (net.Conn, error) {
	for told := false; ; {
		c, err := s.dial(ctx, g, rank0)
		if err == nil {
			return c, nil
		}
		if !told && ctx.Err() == nil {
			told = true
			s.d.log.Info("waits for the store", "generation", g.String(), "of", string(rank0), "error", err)
		}
		select {
		case <-time.After(storeRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *stores) dial(ctx context.Context, g phalanx.Generation, rank0 phalanx.MemberID) (net.Conn, error) {
	peer, ok := s.d.roster.peer(rank0)
	if !ok {
		return nil, fmt.Errorf("no address of %s is known", rank0)
	}
	within, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := s.d.listener.Dial(within, peer.Addr, ProtoStore)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(within, func() { _ = c.Close() })
	var answer [1]byte
	if _, err = io.WriteString(c, g.String()+"\n"); err == nil {
		_, err = io.ReadFull(c, answer[:])
	}
	if !stop() && err == nil {
		err = within.Err()
	}
	if err == nil && answer[0] != storeHere {
		err = fmt.Errorf("%s does not have the store of generation %s yet, or not any more", rank0, g)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = membership.SetUserTimeout(c, 5*time.Second)
	return c, nil
}

// accept serves the daemons that forward to this one.
func (s *stores) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.d.ends.Go(func() { s.serveDaemon(c) })
	}
}

func (s *stores) serveDaemon(c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(s.d.ctx, func() { _ = c.Close() })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout))
	in := bufio.NewReader(c)
	g, err := readStoreGeneration(in)
	if err != nil {
		return
	}
	ctx, here, _, err := s.of(g)
	if err != nil || here == nil {
		_, _ = c.Write([]byte{storeNotHere}) // it asks again
		return
	}
	if _, err := c.Write([]byte{storeHere}); err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	_ = membership.SetUserTimeout(c, 5*time.Second)
	if err := here.Serve(ctx, bufferedConn{c, in}); err != nil {
		s.d.log.Info("a client of the store was cut off", "generation", g.String(), "through", string(memberOf(c)), "error", err)
	}
}

// readStoreGeneration reads the line with which a daemon that forwards begins.
func readStoreGeneration(in *bufio.Reader) (phalanx.Generation, error) {
	var line []byte
	for len(line) < 64 {
		b, err := in.ReadByte()
		if err != nil {
			return phalanx.Generation{}, fmt.Errorf("read the generation of a store: %w", err)
		}
		if b == '\n' {
			return phalanx.ParseGeneration(string(line))
		}
		line = append(line, b)
	}
	return phalanx.Generation{}, errors.New("read the generation of a store: no line")
}

// bufferedConn is a connection of which something was read ahead.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (b bufferedConn) Read(p []byte) (int, error) { return b.in.Read(p) }

// handle turns a connection of the unix socket into one to the store of the generation that the request names.
func (s *stores) handle(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code string, err error) {
		respond(w, status, wire.Error{Message: err.Error(), Code: code})
	}
	g, err := phalanx.ParseGeneration(r.URL.Query().Get("generation"))
	switch {
	case !allowed(r):
		refuse(http.StatusForbidden, wire.CodeBadRequest, errors.New("this socket belongs to another user"))
		return
	case err != nil:
		refuse(http.StatusBadRequest, wire.CodeBadRequest, err)
		return
	case r.Header.Get("Upgrade") != storeProtocol:
		w.Header().Set("Upgrade", storeProtocol)
		refuse(http.StatusUpgradeRequired, wire.CodeBadRequest, fmt.Errorf("ask with the header Upgrade: %s", storeProtocol))
		return
	}
	if _, _, _, err := s.of(g); err != nil {
		if s.over(g) {
			refuse(http.StatusGone, wire.CodeFenced, err)
			return
		}
		refuse(http.StatusConflict, wire.CodeBusy, err)
		return
	}
	c, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(http.StatusInternalServerError, wire.CodeBadRequest, err)
		return
	}
	_ = c.SetDeadline(time.Time{})
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+storeProtocol+"\r\n\r\n"); err != nil {
		_ = c.Close()
		return
	}
	s.serve(g, bufferedConn{c, in.Reader})
}
