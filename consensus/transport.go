// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// unknownAddress marks a server without a present address. raft would fall back to the address in the configuration if
// its provider returned an error, and another daemon may have that port by now.
const unknownAddress = "unknown:"

// stream is the caller's StreamLayer with every connection remembered, so that all of them can be closed at once: raft's
// own transport leaves inbound ones to their peers.
type stream struct {
	inner StreamLayer
	local string

	mu     sync.Mutex
	conns  map[*streamConn]struct{} // nil once closed
	closed bool
}

type streamConn struct {
	net.Conn
	owner *stream
}

type localAddr string

func (a localAddr) Network() string { return "tcp" }
func (a localAddr) String() string  { return string(a) }

func newStream(inner StreamLayer, local string) *stream {
	return &stream{inner: inner, local: local, conns: map[*streamConn]struct{}{}}
}

func (s *stream) Accept() (net.Conn, error) {
	conn, err := s.inner.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if id, unknown := strings.CutPrefix(string(address), unknownAddress); unknown {
		return nil, fmt.Errorf("dial server %s: its address is not known", id)
	}
	conn, err := s.inner.Dial(string(address), timeout)
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

func (s *stream) Addr() net.Addr { return localAddr(s.local) }

func (s *stream) track(conn net.Conn) (net.Conn, error) {
	c := &streamConn{conn, s}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

func (c *streamConn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.conns, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// Close closes the listener and every connection. It does not wait: the close of a TLS connection to a peer that hangs
// takes seconds, and each ends by itself.
func (s *stream) Close() error {
	s.mu.Lock()
	conns := s.conns
	s.conns, s.closed = nil, true
	s.mu.Unlock()
	for c := range conns {
		go c.Conn.Close()
	}
	return s.inner.Close()
}

// Progress is what the leader has seen of another server in its own term.
type Progress struct {
	Contact time.Time // when the last answer came; zero when none did
	Round   time.Time // when the request was sent that was answered last
	Match   uint64    // index up to which its log is known to equal the leader's; 0 when unknown
}

type progress struct {
	Progress
	term uint64
}

// transport is raft's transport, watched: raft does not tell how far its followers are.
type transport struct {
	*raft.NetworkTransport
	requests chan raft.RPC // what raft reads: requests of others, and those of this server to itself
	stands   chan stand
	closed   chan struct{}
	once     sync.Once

	mu       sync.Mutex
	progress map[raft.ServerID]progress
	answered chan struct{} // closed and replaced at each answer
}

func newTransport(config *raft.NetworkTransportConfig) *transport {
	t := &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(config),
		requests:         make(chan raft.RPC),
		stands:           make(chan stand),
		closed:           make(chan struct{}),
		progress:         map[raft.ServerID]progress{},
		answered:         make(chan struct{}),
	}
	go t.relay()
	return t
}

// relay passes requests on until Close. Heartbeats do not come this way: raft handles them where they are read.
func (t *transport) relay() {
	for {
		select {
		case request := <-t.NetworkTransport.Consumer():
			if !t.pass(request) {
				return
			}
		case s := <-t.stands:
			s.stood <- t.standIf(s.still)
		case <-t.closed:
			return
		}
	}
}

func (t *transport) pass(request raft.RPC) bool {
	select {
	case t.requests <- request:
		return true
	case <-t.closed:
		return false
	}
}

// stand asks the relay to make this server a candidate.
type stand struct {
	still func() bool // looked at when nothing that was asked before is left to do
	stood chan bool   // 1: the relay never waits
}

// standIf gives raft the request by which a leader that hands over makes a follower a candidate at once: no other call of the
// library does. A vote that raft is just giving to another candidate, which takes as long as its disk, must not be followed by
// a candidature against it. So raft is asked for something that it refuses, and what it did before shows in its answer.
func (t *transport) standIf(still func() bool) bool {
	_ = t.ask(raft.ProtocolVersionMax + 1) // refused
	return still() && t.ask(raft.ProtocolVersionMax) == nil
}

func (t *transport) ask(version raft.ProtocolVersion) error {
	answer := make(chan raft.RPCResponse, 1) // 1: raft never waits
	if !t.pass(raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: version}}, RespChan: answer}) {
		return ErrClosed
	}
	select {
	case r := <-answer:
		return r.Error
	case <-t.closed:
		return ErrClosed
	}
}

// Consumer returns the requests that raft is to answer.
func (t *transport) Consumer() <-chan raft.RPC { return t.requests }

// Close ends the relay with the connections.
func (t *transport) Close() error {
	t.once.Do(func() { close(t.closed) })
	return t.NetworkTransport.Close()
}

// standNow makes this server a candidate if still says so. It reports whether raft took it.
func (t *transport) standNow(still func() bool, stop <-chan struct{}) bool {
	s := stand{still, make(chan bool, 1)}
	select {
	case t.stands <- s:
	case <-t.closed:
		return false
	case <-stop:
		return false
	}
	select {
	case stood := <-s.stood:
		return stood
	case <-t.closed:
		return false
	case <-stop:
		return false
	}
}

func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse) error {
	sent := time.Now()
	if err := t.NetworkTransport.AppendEntries(id, target, request, response); err != nil {
		return err
	}
	if response.Term <= request.Term {
		var match uint64
		if response.Success {
			match = request.PrevLogEntry
			if n := len(request.Entries); n > 0 {
				match = request.Entries[n-1].Index
			}
		}
		t.observe(id, request.Term, match, sent)
	}
	return nil
}

func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, request *raft.InstallSnapshotRequest, response *raft.InstallSnapshotResponse, state io.Reader) error {
	sent := time.Now()
	if err := t.NetworkTransport.InstallSnapshot(id, target, request, response, state); err != nil {
		return err
	}
	if response.Term <= request.Term && response.Success {
		t.observe(id, request.Term, request.LastLogIndex, sent)
	}
	return nil
}

func (t *transport) observe(id raft.ServerID, term, match uint64, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.progress[id]
	if p.term > term {
		return // an answer to an earlier leadership of ours
	}
	if p.term < term {
		p = progress{term: term}
	}
	p.Contact = time.Now()
	if sent.After(p.Round) {
		p.Round = sent
	}
	p.Match = max(p.Match, match)
	t.progress[id] = p
	close(t.answered)
	t.answered = make(chan struct{})
}

// of returns what was seen of a server in a term.
func (t *transport) of(id raft.ServerID, term uint64) (Progress, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.progress[id]
	if !ok || p.term != term {
		return Progress{}, false
	}
	return p.Progress, true
}

// next returns a channel that is closed at the next answer of any server.
func (t *transport) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answered
}

// forget drops what is known of a server that left: its id never returns.
func (t *transport) forget(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.progress, id)
}

// addressProvider is Config.Addresses for raft.
type addressProvider struct {
	self, local string
	lookup      func(string) (string, bool)
}

func (p addressProvider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if string(id) == p.self {
		return raft.ServerAddress(p.local), nil
	}
	if addr, ok := p.lookup(string(id)); ok && addr != "" {
		return raft.ServerAddress(addr), nil
	}
	return raft.ServerAddress(unknownAddress + string(id)), nil
}
