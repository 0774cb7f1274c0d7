// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"phalanx/membership"
)

// watchers wakes the streams that push committed entries. It is shared: Raft's goroutine notifies.
type watchers struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every notify
	streams map[*downstream]bool
}

func newWatchers() *watchers {
	return &watchers{changed: make(chan struct{}), streams: map[*downstream]bool{}}
}

func (w *watchers) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watchers) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// drain waits until the newest entry has been written to every stream.
func (w *watchers) drain(ctx context.Context) {
	for {
		w.mu.Lock()
		behind := 0
		for s := range w.streams {
			if !s.upToDate() {
				behind++
			}
		}
		w.mu.Unlock()
		if behind == 0 || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond): // the streams write; nothing signals the last of them
		}
	}
	select { // what was written must leave the socket before it is closed
	case <-ctx.Done():
	case <-time.After(150 * time.Millisecond):
	}
}

// downstream is one member's stream at the leader. Its writer pushes entries as they are committed.
type downstream struct {
	d     *Daemon
	conn  *tls.Conn
	peer  Peer
	queue chan *Message // 256: a member that does not read is cut off
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	sent uint64 // newest entry written
}

func (s *downstream) upToDate() bool {
	select {
	case <-s.done:
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent >= s.d.replica.state.Load().Seq
}

// send queues a message; a full queue breaks the stream.
func (s *downstream) send(m *Message) {
	select {
	case s.queue <- m:
	case <-s.done:
	default:
		s.close()
	}
}

func (s *downstream) close() {
	s.once.Do(func() { close(s.done); s.conn.Close() })
}

// acceptStreams serves members' streams: whoever does not lead says who does.
func (d *Daemon) acceptStreams(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conn, ok := c.(*tls.Conn)
		if !ok {
			c.Close()
			continue
		}
		d.ends.Go(func() { d.serveStream(conn) })
	}
}

func (d *Daemon) serveStream(conn *tls.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(d.ctx, func() { conn.Close() })
	defer stop()
	_ = membership.SetUserTimeout(conn, 2*time.Second)
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	m, err := readMessage(conn)
	if err != nil || m.Hello == nil {
		return
	}
	h := m.Hello
	welcome := StreamWelcome{Leading: d.raft.IsLeader(), Term: d.raft.Term(), Roster: d.roster.all()}
	switch {
	case h.Job != d.tag:
		welcome.Refused = "this daemon belongs to another job; use the --job and the key of the one to join"
	case memberOf(conn) != h.Peer.Member:
		welcome.Refused = "the certificate names another member"
	case h.Peer.Member.Index() < 0 || h.Peer.Member.Index() >= MaxLocal:
		welcome.Refused = fmt.Sprintf("%s is no member: a host has at most %d; start it with a smaller --nproc", h.Peer.Member, MaxLocal)
	case h.ProtocolMin > ProtocolVersion || h.ProtocolMax < ProtocolVersion:
		welcome.Refused = "no common protocol version; upgrade the older daemon"
	case d.named.Load() && h.Peer.otherHost(d.self()):
		welcome.Refused = livesElsewhere(d.me())
	case !welcome.Leading && d.roster.rival(h.Peer):
		// The leader says whether the other one lives. Until then this one is told nothing that it could take for its own.
		if _, addr, ok := d.raft.Leader(); ok {
			welcome.Leader = addr
		}
	case !welcome.Leading:
		if st := d.replica.state.Load(); st.Seq > h.From {
			welcome.State = st
		}
		if _, addr, ok := d.raft.Leader(); ok {
			welcome.Leader = addr
		}
		if d.roster.learn([]Peer{h.Peer}) {
			d.log.Debug("heard of a daemon", "about", string(h.Peer.Member))
		}
	}
	s := &downstream{d: d, conn: conn, peer: h.Peer, queue: make(chan *Message, 256), done: make(chan struct{}), sent: h.From}
	if welcome.Leading && welcome.Refused == "" {
		taken := make(chan string, 1) // 1: the loop answers once
		d.post(func() {
			if d.lead == nil {
				taken <- leadsNoMore
				return
			}
			taken <- d.lead.connect(s)
		})
		select {
		case welcome.Refused = <-taken:
		case <-d.ctx.Done():
			return
		}
		switch welcome.Refused {
		case leadsNoMore, askAgain:
			welcome.Leading, welcome.Refused = false, ""
		case "": // connected: however this stream ends, the arbiter must hear of it
			defer func() {
				s.close()
				at := time.Now()
				d.post(func() {
					if d.lead != nil {
						d.lead.disconnect(s, at)
					}
				})
			}()
		}
	}
	if writeMessage(conn, &Message{Welcome: &welcome}) != nil || !welcome.Leading || welcome.Refused != "" {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	d.watchers.mu.Lock()
	d.watchers.streams[s] = true
	d.watchers.mu.Unlock()
	d.ends.Go(s.write)
	s.read()
	s.close()
	d.watchers.mu.Lock()
	delete(d.watchers.streams, s)
	d.watchers.mu.Unlock()
}

func (s *downstream) read() {
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(30 * time.Second)) // silence is judged by the arbiter, long before
		m, err := readMessage(s.conn)
		if err != nil {
			return
		}
		s.d.post(func() {
			if s.d.lead != nil {
				s.d.lead.fromStream(s, m)
			}
		})
	}
}

// write pushes entries at once, and messages in their order among themselves.
func (s *downstream) write() {
	defer s.close()
	alive := time.NewTicker(time.Second)
	defer alive.Stop()
	for {
		changed := s.d.watchers.next()
		if err := s.push(); err != nil {
			return
		}
		select {
		case m := <-s.queue:
			// Entries first: what the leader asks for may be about the newest generation.
			if s.push() != nil || s.put(m) != nil {
				return
			}
		case <-changed:
		case <-alive.C:
			if s.put(&Message{}) != nil {
				return
			}
		case <-s.done:
			return
		}
	}
}

func (s *downstream) put(m *Message) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	return writeMessage(s.conn, m)
}

func (s *downstream) push() error {
	s.mu.Lock()
	from := s.sent
	s.mu.Unlock()
	if s.d.replica.state.Load().Seq <= from {
		return nil
	}
	snapshot, entries, err := s.d.raft.Tail(from)
	if err != nil {
		return err
	}
	m := &Message{}
	if snapshot != nil {
		st, err := decodeState(snapshot.Machine)
		if err != nil {
			return err
		}
		m.Snapshot, from = &Snapshot{snapshot.Seq, st}, snapshot.Seq
	}
	for _, e := range entries {
		m.Entries = append(m.Entries, Entry{e.Seq, json.RawMessage(e.Command)})
		from = e.Seq
	}
	if m.Snapshot == nil && len(m.Entries) == 0 {
		return nil
	}
	if err := s.put(m); err != nil {
		return err
	}
	s.mu.Lock()
	s.sent = from
	s.mu.Unlock()
	return nil
}
