// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// maxStored bounds what one generation may store. A world of thousands of ranks stores some megabytes.
	maxStored = 256 << 20
	// writeWait is how long a client may leave an answer unread that its kernel has no room for.
	writeWait = time.Minute
)

// Server serves one Machine to any number of connections, until End.
type Server struct {
	ctx context.Context
	end context.CancelFunc

	mu      sync.Mutex
	machine *Machine
	next    Client
	conns   map[Client]*client
}

// client is a connection. Its answers are put down in the order in which the machine gave them, and written by its own two
// goroutines: nobody waits for another client to read.
type client struct {
	net.Conn
	pending []byte        // under Server.mu: answers to be written
	kick    chan struct{} // 1: there are answers from other connections
	freed   chan struct{} // 1: look again whether the wait goes on
	writing sync.Mutex    // held while answers are taken and written
}

// NewServer returns a server of an empty store.
func NewServer() *Server {
	s := &Server{machine: NewMachine(maxStored), conns: map[Client]*client{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// End ends the store: all connections are closed, also those that wait, and later ones at once.
func (s *Server) End() { s.end() }

// Serve serves a connection until it, the store or ctx ends, and closes it. The error says why, nil when the client has left.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	for _, c := range []context.Context{ctx, s.ctx} {
		stop := context.AfterFunc(c, func() { _ = conn.Close() })
		defer stop()
	}
	c := &client{Conn: conn, kick: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
	s.mu.Lock()
	s.next++
	id := s.next
	s.conns[id] = c
	s.mu.Unlock()
	ended := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-c.kick:
				s.flush(c)
			case <-ended:
				return
			}
		}
	})
	err := s.serve(id, c)
	s.mu.Lock()
	s.machine.Gone(id)
	delete(s.conns, id)
	s.mu.Unlock()
	_ = conn.Close() // the writer may be in it
	close(ended)
	writer.Wait()
	return err
}

func (s *Server) serve(id Client, c *client) error {
	in := bufio.NewReaderSize(c, 16<<10)
	if b, err := in.Peek(1); err == nil && Op(b[0]) != Validate {
		return ErrProtocol
	}
	for {
		q, err := ReadRequest(in)
		switch {
		case errors.Is(err, ErrProtocol):
			return err
		case err != nil:
			return nil // it has left
		}
		if err := s.do(id, q); err != nil {
			return err
		}
		s.flush(c)
		if q.Op != Wait && q.Op != Barrier {
			continue
		}
		if b, err := in.Peek(1); err == nil && Op(b[0]) != CancelWait { // nothing else may pass a wait
			for s.waits(id) {
				select {
				case <-c.freed:
				case <-s.ctx.Done():
					return nil
				}
			}
		}
	}
}

func (s *Server) waits(id Client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Waits(id)
}

// do carries out one request and puts the answers down, also those to others.
func (s *Server) do(id Client, q Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	replies, err := s.machine.Do(id, q)
	for _, r := range replies {
		c := s.conns[r.To]
		c.pending = append(c.pending, r.Bytes...)
		if r.To != id {
			signal(c.kick)
			signal(c.freed)
		}
	}
	return err
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flush writes a client's answers. One that does not read loses its connection.
func (s *Server) flush(c *client) {
	c.writing.Lock()
	defer c.writing.Unlock()
	s.mu.Lock()
	b := c.pending
	c.pending = nil
	s.mu.Unlock()
	if len(b) == 0 {
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(writeWait))
	if _, err := c.Write(b); err != nil {
		_ = c.Close()
	}
}
