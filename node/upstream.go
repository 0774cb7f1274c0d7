// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"phalanx"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
	"phalanx/membership"
)

// upstream is this member's stream to the leader. Its goroutine dials, reads and applies entries to a copy of its own; the
// loop sends through a bounded queue. When this daemon leads itself, nothing is dialled.
type upstream struct {
	d     *Daemon
	queue chan *Message // 256: more means that the leader does not read; the stream is then broken and begun anew
	kick  chan struct{} // 1: look for the leader again, now
	open  atomic.Pointer[openStream]

	// The loop's own.
	connected bool
	leader    phalanx.MemberID
}

// openStream is the stream in use, also while it is dialled, for whoever has to end it.
type openStream struct {
	addr string
	end  context.CancelFunc
}

func startUpstream(d *Daemon) *upstream {
	u := &upstream{d: d, queue: make(chan *Message, 256), kick: make(chan struct{}, 1)}
	d.ends.Go(u.follow)
	return u
}

// sendUp sends a message to the leader, or hands it to the own arbiter. Reports that find no leader are dropped: the next
// one says the same, and what must arrive is asked for again by the next leader.
func (d *Daemon) sendUp(m *Message) {
	if d.lead != nil {
		d.lead.fromMember(d.life.who.Member, m)
		return
	}
	if d.up == nil || !d.up.connected {
		return
	}
	select {
	case d.up.queue <- m:
	default:
		d.log.Warn("the leader does not read; dropping a message")
	}
}

func (u *upstream) hasten() {
	select {
	case u.kick <- struct{}{}:
	default:
	}
}

// leave ends a stream to another daemon than the leader that Raft names now. A stopped leader's stream stays open, and its
// successor would take this member's silence for a failure. No leader leaves a stream as it is: the same may be elected again.
func (u *upstream) leave(leader string) {
	if s := u.open.Load(); s != nil && leader != "" && s.addr != leader {
		s.end()
	}
	u.hasten()
}

// follow finds the leader and stays with it, until the daemon ends.
func (u *upstream) follow() {
	d := u.d
	hint, hops, failures := "", 0, 0
	for d.ctx.Err() == nil {
		if d.raft.IsLeader() {
			hint, failures = "", 0
			u.pause(time.Second) // the end of the leadership hastens
			continue
		}
		began := time.Now()
		next, err := u.attempt(hint)
		if err != nil && d.ctx.Err() == nil {
			d.log.Debug("no stream to a leader", "error", err)
			d.noLeader(err)
		}
		if hops++; next != "" && next != hint && next != d.addr() && hops < maxHops {
			hint = next
			continue
		}
		hint, hops = "", 0
		if failures++; time.Since(began) > time.Second { // there was a stream, or nobody answered, which takes its time by itself
			failures = 0
		}
		u.pause(retryAfter(failures))
	}
}

// maxHops is how many daemons in a row are followed to whom they think leads: two that name each other are asked again later.
const maxHops = 4

// retryAfter is how long a daemon that found no leader waits. No election takes as long as the first retries; a job that
// waits for hosts for hours must not fill their cores with handshakes.
func retryAfter(failures int) time.Duration {
	wait := 20*time.Millisecond + rand.N(30*time.Millisecond)
	if failures > 100 {
		wait *= 20
	}
	return wait
}

func (u *upstream) pause(t time.Duration) {
	select {
	case <-time.After(t):
	case <-u.kick:
	case <-u.d.ctx.Done():
	}
}

// attempt tries the leader that Raft or a hint names, then everyone. It returns where somebody said the leader is.
func (u *upstream) attempt(hint string) (string, error) {
	d := u.d
	var tried []string
	if hint != "" {
		tried = append(tried, hint)
	} else if _, addr, ok := d.raft.Leader(); ok && addr != "" && addr != d.addr() {
		tried = append(tried, addr)
	} else {
		tried = d.roster.addrs(d.cfg.LocalSize)
	}
	var errs []error
	for _, addr := range tried {
		next, err := u.stream(addr)
		if next != "" {
			return next, err
		}
		errs = append(errs, err) // nil: it knows no leader either, like the siblings of a host that has just come
		if d.raft.IsLeader() || d.ctx.Err() != nil {
			break
		}
	}
	return "", errors.Join(errs...)
}

// stream opens one stream and serves it until it ends.
func (u *upstream) stream(addr string) (next string, err error) {
	d := u.d
	open, end := context.WithCancel(d.ctx)
	defer end()
	u.open.Store(&openStream{addr, end})
	defer u.open.Store(nil)
	ctx, cancel := context.WithTimeout(open, 2*time.Second)
	defer cancel()
	conn, err := d.listener.Dial(ctx, addr, ProtoStream)
	if err != nil {
		if server, leads, ok := d.raft.Leader(); ok && leads == addr && errors.Is(err, syscall.ECONNREFUSED) {
			d.raft.Stand(server) // the kernel of its host lives and says that nobody listens there any more
		}
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(open, func() { conn.Close() })
	defer stop()
	if err := membership.SetUserTimeout(conn, 2*time.Second); err != nil {
		d.log.Debug("no user timeout", "error", err)
	}
	local := d.replica.state.Load()
	hello := make(chan Peer, 1) // 1: the loop answers once
	d.post(func() {
		if d.state.Seq > local.Seq {
			local = d.state
		}
		p := d.self()
		p.Incarnation = d.life.who.Incarnation
		hello <- p
	})
	var me Peer
	select {
	case me = <-hello:
	case <-d.ctx.Done():
		return "", d.ctx.Err()
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if err := writeMessage(conn, &Message{Hello: &StreamHello{Job: d.tag, ProtocolMin: ProtocolVersion, ProtocolMax: ProtocolVersion, Peer: me, From: local.Seq}}); err != nil {
		return "", err
	}
	m, err := readMessage(conn)
	if err != nil {
		return "", err
	}
	w := m.Welcome
	switch {
	case w == nil:
		return "", fmt.Errorf("stream to %s: no welcome", addr)
	case w.Refused != "":
		d.post(func() { d.refusedByLeader(w.Refused) })
		return "", fmt.Errorf("stream to %s: %s", addr, w.Refused)
	case !w.Leading:
		if len(w.Roster) > 0 {
			d.roster.learn(w.Roster)
		}
		if w.State != nil && w.State.Seq > local.Seq { // committed, whoever leads: a daemon that comes back need not wait for an election
			d.post(func() { d.adoptState(w.State) })
		}
		return w.Leader, nil
	}
	_ = conn.SetDeadline(time.Time{})
	return "", u.serve(conn, local)
}

// serve exchanges messages with the leader until the stream breaks.
func (u *upstream) serve(conn *tls.Conn, local *elastic.State) error {
	d := u.d
	leader := memberOf(conn)
	for len(u.queue) > 0 {
		<-u.queue // of an earlier stream
	}
	d.post(func() {
		u.connected, u.leader = true, leader
		d.asked = time.Time{}
		d.sendReport(time.Now())
		d.renewLease(time.Now())
		d.reportFirst()
	})
	defer d.post(func() {
		u.connected = false
		if d.lead == nil {
			d.leaderLost(leader)
		}
	})
	broken := make(chan struct{})
	done := make(chan struct{})
	go func() { // the writer: ends with the stream
		defer close(done)
		for {
			select {
			case m := <-u.queue:
				_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
				if writeMessage(conn, m) != nil {
					conn.Close()
					return
				}
			case <-broken:
				return
			}
		}
	}()
	defer func() { close(broken); conn.Close(); <-done }()
	for {
		_ = conn.SetReadDeadline(time.Now().Add(3 * time.Second)) // the leader sends something every second
		m, err := readMessage(conn)
		if err != nil {
			return err
		}
		if local, err = u.receive(m, local); err != nil {
			return err
		}
	}
}

// receive applies entries and hands the rest to the loop.
func (u *upstream) receive(m *Message, local *elastic.State) (*elastic.State, error) {
	d := u.d
	if m.Snapshot != nil && m.Snapshot.State != nil && m.Snapshot.State.Seq > local.Seq {
		local = m.Snapshot.State
	}
	for _, e := range m.Entries {
		if e.Seq <= local.Seq {
			continue
		}
		if e.Seq != local.Seq+1 {
			return local, fmt.Errorf("entry %d after %d", e.Seq, local.Seq)
		}
		c, err := elastic.DecodeCommand(e.Command)
		if err != nil {
			d.cancel(logProblem(err)) // a command of a newer version is never skipped
			return local, err
		}
		local, _ = local.Apply(c) // refused alike by everyone
	}
	if m.Snapshot != nil || len(m.Entries) > 0 {
		s := local
		d.post(func() { d.adoptState(s) })
	}
	if m.Seal != nil || m.Grant != nil || m.Save != nil || m.Copy != nil || m.Roster != nil || m.Reply != nil {
		d.post(func() { d.fromLeader(m) })
	}
	return local, nil
}

// fromLeader carries out what the leader asks for.
func (d *Daemon) fromLeader(m *Message) {
	switch {
	case m.Seal != nil:
		failpoint.Here("seal-asked")
		d.run(d.life.machine.Step(elastic.SealAsked{Generation: m.Seal.Generation, Boundary: m.Seal.Boundary}))
	case m.Grant != nil:
		d.grant(m.Grant)
	case m.Save != nil:
		d.saver.asked(m.Save)
	case m.Copy != nil:
		d.saver.copyAsked(m.Copy)
	case m.Roster != nil:
		if d.roster.learn(m.Roster) {
			d.keepRoster()
		}
	case m.Reply != nil:
		d.replied(m.Reply)
	}
}

func (d *Daemon) rejoinGossip() {
	if d.gossip == nil {
		return
	}
	var addrs []string
	for _, p := range d.roster.all() {
		addrs = append(addrs, p.Addr)
	}
	d.gossip.Rejoin(addrs)
}

// leaderLost hastens the election when the leader's death was observed: its stream ended, and on its own host its process
// is gone, which is proof.
func (d *Daemon) leaderLost(leader phalanx.MemberID) {
	if leader.Host() == d.cfg.Host {
		s := d.sibling(leader)
		if s != nil && s.daemon && d.paths.system.Alive(s.identity.DaemonPID, s.identity.DaemonStart) {
			return
		}
		if s != nil && s.identity.DaemonPID != 0 { // else nobody has said yet who runs it
			d.leaderDied(leader)
			return
		}
	}
	d.raft.Hasten()
	d.up.hasten()
}

// leaderDied begins an election if the member whose daemon has ended, by the word of its kernel, led.
func (d *Daemon) leaderDied(member phalanx.MemberID) {
	server, _, ok := d.raft.Leader()
	if !ok {
		return
	}
	if p, known := d.roster.byServer(server); known && p.Member == member {
		d.raft.Stand(server)
		d.up.hasten()
	}
}

// refusedByLeader ends a newcomer, which nothing will make welcome. One that is in the log stays: its page keeps promises.
func (d *Daemon) refusedByLeader(why string) {
	switch {
	case d.state.Member(d.me()) == nil:
		reason, hint, _ := strings.Cut(why, "; ")
		d.dismiss()
		d.end(Outcome{Code: CodeLocked, Reason: "the job refuses this member: " + reason, Hint: hint})
	case d.failed == "":
		d.giveUp(why)
	}
}

// renewLease asks for a lease well before it runs out, and tells the machine when one begins or ends.
func (d *Daemon) renewLease(now time.Time) {
	if now.Sub(d.asked) >= leaseRenew || d.lease-d.paths.system.BoottimeNS() < int64(leaseLength/2) && now.Sub(d.asked) > 200*time.Millisecond {
		if d.lead != nil || d.up != nil && d.up.connected {
			d.asked = now
			d.sendUp(&Message{Lease: &LeaseAsk{SentNS: d.paths.system.BoottimeNS()}})
		}
	}
	d.setLease()
}

// setLease tells the machine when the lease begins or has run out.
func (d *Daemon) setLease() {
	ok := d.lease > d.paths.system.BoottimeNS()
	if ok != d.leaseOK && d.life != nil && d.life.machine != nil {
		d.leaseOK = ok
		if !ok {
			d.log.Warn("the lease has run out: no votes until the leader renews it")
		}
		d.run(d.life.machine.Step(elastic.Lease{Valid: ok}))
	}
}

func (d *Daemon) grant(g *LeaseGrant) {
	if until := g.SentNS + g.DurationNS; until > d.lease {
		d.lease = until
		failpoint.Here("lease-granted")
		d.writeView()
		failpoint.Here("lease-written")
	}
	d.setLease()
}
