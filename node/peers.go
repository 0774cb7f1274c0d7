// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"phalanx"
	"phalanx/collective/host"
	"phalanx/elastic"
	"phalanx/membership"
)

// peerLinks are the connections to daemons on other hosts: votes on one, collectives on another, so that bulk bytes never
// delay a vote. They outlive generations: survivors form with the connections that they have.
type peerLinks struct {
	d       *Daemon
	serving *serving
	reach   *reach
	http    *http.Client

	mu     sync.Mutex
	votes  map[phalanx.MemberID]*voteLink
	data   map[phalanx.MemberID]*dataLink
	fresh  chan struct{} // closed and replaced when a data link was accepted
	closed bool

	// The loop's own: the newest vote heard from each member, to be counted again in a generation that is read later.
	heard map[phalanx.MemberID]peerVote
}

type peerVote struct {
	Who  phalanx.Incarnate `json:"who"`
	Vote elastic.Vote      `json:"vote"`
}

// voteLink sends votes to one daemon while its member is in the world. The newest vote is sent again on a new connection:
// sending is idempotent.
type voteLink struct {
	ctx  context.Context // ended by drop
	drop context.CancelFunc
	wake chan struct{} // 1: only "there is a newer vote" matters
	mu   sync.Mutex
	last *peerVote
}

type dataLink struct {
	link *host.Link
}

func newPeerLinks(d *Daemon) *peerLinks {
	return &peerLinks{d: d, serving: newServing(d), reach: newReach(), http: d.apiClient(), votes: map[phalanx.MemberID]*voteLink{}, data: map[phalanx.MemberID]*dataLink{},
		fresh: make(chan struct{}), heard: map[phalanx.MemberID]peerVote{}}
}

func (p *peerLinks) close() {
	p.mu.Lock()
	p.closed = true
	links := p.data
	p.data = map[phalanx.MemberID]*dataLink{}
	p.mu.Unlock()
	for _, l := range links {
		_ = l.link.Close()
	}
	p.http.CloseIdleConnections()
}

// sendVote publishes a vote to the world's members on other hosts.
func (p *peerLinks) sendVote(who phalanx.Incarnate, v elastic.Vote) {
	for _, seat := range p.d.state.World.Seats {
		if seat.Member.Host() != p.d.cfg.Host {
			p.voteLink(seat.Member).send(peerVote{who, v})
		}
	}
}

// repeatVote sends the vote on the page again to the other hosts: the daemon that wrote it may have died before it was out, and
// nobody there would ever learn of a step that this host has applied.
func (d *Daemon) repeatVote() {
	if v := d.life.machine.NewestVote(); v.Step > 0 && v.Generation == d.state.World.Generation {
		d.peers.sendVote(d.life.who, v)
	}
}

func (l *voteLink) send(v peerVote) {
	l.mu.Lock()
	l.last = &v
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (p *peerLinks) voteLink(id phalanx.MemberID) *voteLink {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.votes[id]
	if l == nil {
		ctx, drop := context.WithCancel(p.d.ctx)
		l = &voteLink{ctx: ctx, drop: drop, wake: make(chan struct{}, 1)}
		p.votes[id] = l
		p.d.ends.Go(func() { p.sendVotes(id, l) })
	}
	return l
}

// sendVotes keeps a connection to one daemon and writes the newest vote to it, until the link is dropped.
func (p *peerLinks) sendVotes(id phalanx.MemberID, l *voteLink) {
	defer l.drop()
	d := p.d
	for l.ctx.Err() == nil {
		peer, ok := d.roster.peer(id)
		began := time.Now()
		var conn *tls.Conn
		err := errors.New("no address")
		if ok {
			ctx, cancel := context.WithTimeout(l.ctx, time.Second)
			conn, err = d.listener.Dial(ctx, peer.Addr, ProtoPeer)
			cancel()
		}
		p.dialled(id, l, began, err)
		if err == nil {
			p.pumpVotes(conn, l)
			conn.Close()
		}
		if err == nil && time.Since(began) > time.Second {
			continue // it worked
		}
		select { // also after one that the other end closed at once: handshakes cost both of them more than votes
		case <-time.After(50 * time.Millisecond):
		case <-l.ctx.Done():
		}
	}
}

// dialled notes how an attempt to connect for votes has ended, while the link is wanted.
func (p *peerLinks) dialled(id phalanx.MemberID, l *voteLink, began time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.votes[id] != l || l.ctx.Err() != nil:
	case err == nil:
		p.reach.reached(id, ProtoPeer)
	default:
		p.reach.failed(id, ProtoPeer, began)
	}
}

func (p *peerLinks) pumpVotes(conn *tls.Conn, l *voteLink) {
	_ = membership.SetUserTimeout(conn, 2*time.Second)
	broken := make(chan struct{})
	go func() { // ends with the connection: the other end sends nothing
		defer close(broken)
		_, _ = conn.Read(make([]byte, 1))
	}()
	defer func() { conn.Close(); <-broken }()
	enc := json.NewEncoder(conn)
	for {
		l.mu.Lock()
		v := l.last
		l.mu.Unlock()
		if v != nil {
			_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
			if enc.Encode(v) != nil {
				return
			}
		}
		select {
		case <-l.wake:
		case <-broken:
			return
		case <-l.ctx.Done():
			return
		}
	}
}

// accept takes connections of other daemons.
func (p *peerLinks) accept(l net.Listener, protocol string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		id := memberOf(c)
		if protocol == ProtoData {
			p.takeData(id, c)
			continue
		}
		p.d.ends.Go(func() { p.readVotes(id, c) })
	}
}

// maxVote bounds one vote of a stream, some 250 bytes.
const maxVote = 4 << 10

// voteReader reads the votes of a connection. What is no vote costs bounded memory.
type voteReader struct {
	from io.LimitedReader
	dec  *json.Decoder
}

func newVoteReader(r io.Reader) *voteReader {
	v := &voteReader{from: io.LimitedReader{R: r}}
	v.dec = json.NewDecoder(&v.from)
	return v
}

// next waits for the next vote. The decoder holds what it read ahead, so twice the bound at most.
func (r *voteReader) next() (v peerVote, err error) {
	r.from.N = maxVote
	if err := r.dec.Decode(&v); err != nil {
		return peerVote{}, fmt.Errorf("receive vote: %w", err)
	}
	return v, nil
}

func (p *peerLinks) readVotes(id phalanx.MemberID, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(p.d.ctx, func() { c.Close() })
	defer stop()
	votes := newVoteReader(c)
	for {
		v, err := votes.next()
		if err != nil || v.Who.Member != id { // nobody speaks for another
			return
		}
		p.d.post(func() {
			p.heard[id] = v
			if p.d.life != nil && p.d.life.machine != nil {
				p.d.peerVoted(v.Who, v.Vote)
			}
		})
	}
}

// replayVotes counts the newest votes heard in a generation that was read after they came.
func (p *peerLinks) replayVotes() {
	for _, v := range p.heard {
		p.d.peerVoted(v.Who, v.Vote)
	}
}

func (p *peerLinks) takeData(id phalanx.MemberID, c net.Conn) {
	_ = membership.SetUserTimeout(c, 5*time.Second)
	link := host.NewLink(c, p.d.log)
	p.mu.Lock()
	old := p.data[id]
	closed := p.closed
	if !closed {
		p.data[id] = &dataLink{link: link}
		close(p.fresh)
		p.fresh = make(chan struct{})
		p.reach.reached(id, ProtoData)
	}
	p.mu.Unlock()
	if closed {
		_ = link.Close()
	}
	if old != nil {
		p.d.ends.Go(func() { _ = old.link.Close() })
	}
}

// dataLinks are the connections for collectives with all members of a world on other hosts. They are made at the same time: the
// leader has to hear of all that are not reached, or it takes the wrong host out.
func (p *peerLinks) dataLinks(ctx context.Context, w *phalanx.World, own phalanx.Rank) ([]host.RemotePeer, error) {
	var out []host.RemotePeer
	var errs []error
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, o := range w.Seats {
		if o.Member.Host() == p.d.cfg.Host {
			continue
		}
		all.Go(func() {
			link, err := p.dataLink(ctx, o.Incarnate, own < o.Rank)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", o.Incarnate, err))
				return
			}
			out = append(out, host.RemotePeer{Rank: o.Rank, Link: link})
		})
	}
	all.Wait()
	slices.SortFunc(out, func(a, b host.RemotePeer) int { return int(a.Rank) - int(b.Rank) })
	return out, errors.Join(errs...)
}

// dataLink returns the connection for collectives with a member. One side dials, so that both use the same one.
func (p *peerLinks) dataLink(ctx context.Context, who phalanx.Incarnate, dial bool) (*host.Link, error) {
	deadline := time.NewTimer(3 * time.Second)
	defer deadline.Stop()
	for {
		p.mu.Lock()
		have, fresh := p.data[who.Member], p.fresh
		p.mu.Unlock()
		if have != nil && have.link.Err() == nil {
			return have.link, nil
		}
		if dial {
			return p.dialData(ctx, who)
		}
		select {
		case <-fresh:
		case <-deadline.C:
			return nil, fmt.Errorf("%s did not connect within 3 s", who.Member)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *peerLinks) dialData(ctx context.Context, who phalanx.Incarnate) (*host.Link, error) {
	peer, ok := p.d.roster.peer(who.Member)
	if !ok {
		return nil, fmt.Errorf("the address of %s is not known", who.Member)
	}
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, cutAfter)
	defer cancel()
	c, err := p.d.listener.Dial(within, peer.Addr, ProtoData)
	if err != nil {
		if ctx.Err() == nil { // the formation is still wanted
			p.reach.failed(who.Member, ProtoData, began)
		}
		return nil, err
	}
	p.takeData(who.Member, c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.data[who.Member]; have != nil {
		return have.link, nil
	}
	return nil, net.ErrClosed
}

// keep closes the connections to members that are not in the world, and all of them when this member is not: they may be dead
// without anybody having noticed, and a later generation would form over them. Votes of older generations are forgotten.
func (p *peerLinks) keep(w *phalanx.World) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := w.SeatOf(p.d.me()) != nil
	p.reach.keep(w, in)
	for id, l := range p.votes {
		if !in || w.SeatOf(id) == nil {
			delete(p.votes, id)
			l.drop()
		}
	}
	for id, v := range p.heard {
		if v.Vote.Generation.Less(w.Generation) {
			delete(p.heard, id)
		}
	}
	for id, l := range p.data {
		if in && w.SeatOf(id) != nil {
			continue
		}
		delete(p.data, id)
		p.d.ends.Go(func() { _ = l.link.Close() })
	}
}

// usedLinks are the connections to other hosts over which a generation's collectives were formed here.
type usedLinks struct {
	generation phalanx.Generation
	peers      []host.RemotePeer
}

// watchLinks complains of a connection of the present generation that has ended, also when nothing here needs it any more: a
// daemon that came back beside its trainer may have to receive again what this one has sent for good, over a connection that
// belongs to no formation here, and neither of the two would ever fail. Nobody who answers the seal is evicted for it. It reports
// whether one has ended.
func (d *Daemon) watchLinks() (ended bool) {
	if d.links.generation != d.state.World.Generation || d.state.Phase == elastic.Finished {
		return false
	}
	for _, p := range d.links.peers {
		if err := p.Link.Err(); err != nil && int(p.Rank) < d.state.World.Size() {
			who := d.state.World.Seats[p.Rank].Incarnate
			d.addEvidence(phalanx.Evidence{Kind: phalanx.Unreachable, About: who, Source: d.me(), Detail: fmt.Sprintf("the connection for collectives broke: %v", err)})
			ended = true
		}
	}
	return ended
}

// secondHand is how long a member waits for the word of those whose own connection broke before it complains of a collective
// that was given up elsewhere.
const secondHand = 500 * time.Millisecond

// peerGaveUp reports a collective that this member could not finish because of another one. The engine does nothing more in
// the generation, so the next one must come even if everybody lives: a connection broke, or a daemon came back beside its
// trainer. Nobody who answers the seal is evicted for it.
func (d *Daemon) peerGaveUp(l *life, g phalanx.Generation, err error, waited bool) {
	if l != d.life || g != d.state.World.Generation {
		return
	}
	if d.watchLinks() {
		return
	}
	if waited {
		d.addEvidence(phalanx.Evidence{Kind: phalanx.Unreachable, About: l.who, Source: d.me(), Detail: err.Error()})
		return
	}
	time.AfterFunc(secondHand, func() { d.post(func() { d.peerGaveUp(l, g, err, true) }) })
}
