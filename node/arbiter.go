// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"phalanx"
	"phalanx/consensus"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// arbiter is what a leading daemon knows beside the log, and its hands: it fills the planner's facts, turns expired
// deadlines into named ones, and carries out the plan. The loop owns it; it lives as long as the leadership.
type arbiter struct {
	d        *Daemon
	term     uint64
	since    time.Time
	members  map[phalanx.MemberID]*memberView
	planner  elastic.Planner
	round    elastic.Round
	roundAt  time.Time
	due      bool               // something has happened that the planner may act on
	reasons  []phalanx.Evidence // of the round
	busy     bool               // a command is being proposed
	retryAt  time.Time
	store    elastic.StoreFact
	looking  bool
	asks     []leaseWaiter
	proving  bool
	why      string
	whySince time.Time // when it began to be so
	timing   timing
	voters   bool // the configuration is being changed
	votersAt time.Time
	stop     bool
	stopAt   time.Time
	leaveAt  time.Time // when the first member said that it leaves
	formedAt time.Time // when the current generation was applied here
	progress int64     // sum of heal progress, to tell slow from stuck
	movedAt  time.Time
	placed   int // the group size in which places were asked for, and who was given which
	given    map[phalanx.MemberID]phalanx.Pin
	cutAt    time.Time // when members of the current generation were first heard of that do not reach each other
}

// memberView is what the leader has seen of one member.
type memberView struct {
	id     phalanx.MemberID
	conn   *downstream // nil: not connected; the leader's own member is always local
	local  bool
	peer   Peer
	report *Report
	heard  time.Time
	since  time.Time // when this daemon was first heard: one that took over has to form the generation again
	// granted is when it was last given a lease; zero: never since the election.
	granted time.Time
	lost    time.Time // when the connection ended, or the election if there never was one
	answer  *elastic.Answer
	first   *FirstStep
	gossip  time.Time // when gossip called it dead; zero: it does not
	// rival is when a daemon of the same host's name and another directory appeared beside a living one, rivalSeen when it was
	// seen last.
	rival, rivalSeen time.Time
	// unready is the evidence that it did not get ready in the current generation.
	unready *phalanx.Evidence
}

type leaseWaiter struct {
	member phalanx.MemberID
	conn   *downstream
	sentNS int64
}

func (d *Daemon) leadershipChanged(leads bool, term uint64) {
	switch {
	case leads && (d.lead == nil || d.lead.term != term):
		d.log.Info("leads", "term", term)
		if d.lead != nil { // the end of the last term was not told: its streams speak to nobody now
			d.lead.end()
		}
		d.lead = newArbiter(d, term)
		d.up.connected = false
		d.newest()
		d.asked = time.Time{}
		d.renewLease(time.Now())
		d.reportFirst()
		d.dirty = true
		d.saver.lead(term)
	case !leads && d.lead != nil:
		d.log.Info("leads no more")
		d.lead.end()
		d.lead = nil
		d.saver.lead(0)
	}
	_, addr, ok := d.raft.Leader()
	if !ok {
		addr = ""
	}
	d.up.leave(addr)
}

func newArbiter(d *Daemon, term uint64) *arbiter {
	now := time.Now()
	a := &arbiter{d: d, term: term, since: now, members: map[phalanx.MemberID]*memberView{}, formedAt: now, movedAt: now}
	a.planner = elastic.Planner{Policy: d.cfg.Policy, WarmStart: d.cfg.WarmStart}
	a.due = true
	a.members[d.me()] = &memberView{id: d.me(), local: true, peer: d.self(), heard: now, since: now}
	a.stateChanged(nil, d.state)
	return a
}

// end cuts the members off: they look for the next leader.
func (a *arbiter) end() {
	for _, v := range a.members {
		if v.conn != nil {
			v.conn.close()
		}
	}
}

// What connect answers to a stream that may come again: this daemon leads no more, or does not know yet.
const (
	leadsNoMore = "not leading any more"
	askAgain    = "ask again"
)

// connect takes a member's stream. It returns why it is refused, "" when it is not.
func (a *arbiter) connect(s *downstream) string {
	id := s.peer.Member
	if why := a.doubted(s.peer, time.Now()); why != "" {
		return why
	}
	v := a.members[id]
	if v == nil {
		v = &memberView{id: id}
		a.members[id] = v
	}
	if v.local {
		return livesElsewhere(id)
	}
	if v.conn != nil {
		v.conn.close() // the same daemon dialled again, or its successor did
	}
	v.connected(s, time.Now())
	if a.d.roster.learn([]Peer{s.peer}) {
		a.tellRoster()
	} else {
		s.send(&Message{Roster: append(a.d.roster.all(), a.d.self())})
	}
	if a.round.Asked && a.d.state.World.SeatOf(id) != nil {
		s.send(&Message{Seal: &SealAsk{a.d.state.World.Generation, a.round.Boundary}})
	}
	return ""
}

// connected notes a stream. Only another daemon's begins anew with its deadlines: a connection that comes and goes would
// otherwise never reach one.
func (v *memberView) connected(s *downstream, now time.Time) {
	old := v.peer
	if v.since.IsZero() || old.DaemonPID != s.peer.DaemonPID || old.BootID != s.peer.BootID || old.Incarnate != s.peer.Incarnate {
		v.since = now
	}
	v.conn, v.peer, v.heard, v.lost = s, s.peer, now, time.Time{}
}

func (a *arbiter) tellRoster() {
	all := append(a.d.roster.all(), a.d.self())
	for _, v := range a.members {
		if v.conn != nil {
			v.conn.send(&Message{Roster: all})
		}
	}
	a.d.keepRoster()
}

func (a *arbiter) disconnect(s *downstream, at time.Time) {
	if v := a.members[s.peer.Member]; v != nil && v.conn == s {
		v.conn, v.lost = nil, at
	}
}

func (a *arbiter) fromStream(s *downstream, m *Message) {
	v := a.members[s.peer.Member]
	if v == nil || v.conn != s {
		return // a newer stream has taken its place
	}
	a.fromMember(v.id, m)
}

// fromMember notes what a member says.
func (a *arbiter) fromMember(id phalanx.MemberID, m *Message) {
	v := a.members[id]
	if v == nil {
		return
	}
	v.heard = time.Now()
	a.due = true
	switch {
	case m.Report != nil:
		a.reported(v, m.Report)
	case m.Answer != nil:
		if m.Answer.Generation == a.d.state.World.Generation {
			v.answer = m.Answer
		}
	case m.Lease != nil:
		a.asks = append(a.asks, leaseWaiter{id, v.conn, m.Lease.SentNS})
		a.prove()
	case m.First != nil:
		v.first = m.First
		a.activate(false)
	case m.Shard != nil:
		a.d.saver.shardWritten(id, m.Shard)
	case m.Ask != nil:
		a.request(id, m.Ask, func(r *Reply) { r.ID = m.Ask.ID; v.reply(a.d, r) })
	}
}

func (a *arbiter) reported(v *memberView, r *Report) {
	if v.report != nil && (r.Incarnation != v.report.Incarnation) {
		v.answer, v.first, v.unready = nil, nil, nil
	}
	v.report = r
	if a.planner.Spec == nil && a.d.state.Spec == nil && r.Spec != nil && r.Ready {
		a.planner.Spec = r.Spec
		if r.Pin == phalanx.AnyPlace {
			a.planner.State = r.State
		}
	}
}

// prove grants the leases asked for after a quorum round that begins now.
func (a *arbiter) prove() {
	if a.proving || len(a.asks) == 0 {
		return
	}
	a.proving = true
	asks := a.asks
	a.asks = nil
	d := a.d
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, time.Second)
		err := d.raft.VerifyLeader(ctx)
		cancel()
		d.post(func() {
			if d.lead != a {
				return
			}
			a.proving = false
			if err == nil {
				now := time.Now()
				for _, w := range asks {
					g := &LeaseGrant{w.sentNS, int64(leaseLength)}
					if v := a.members[w.member]; v != nil {
						v.granted = now
					}
					if w.conn != nil {
						w.conn.send(&Message{Grant: g})
					} else if w.member == d.me() {
						d.grant(g)
					}
				}
			}
			a.prove()
		})
	})
}

// stateChanged forgets what belonged to an older generation.
func (a *arbiter) stateChanged(old, s *elastic.State) {
	now := time.Now()
	if old == nil || old.World.Generation != s.World.Generation {
		a.round, a.roundAt, a.reasons, a.store = elastic.Round{}, time.Time{}, nil, elastic.StoreFact{}
		a.formedAt, a.movedAt, a.progress = now, now, 0
		a.cutAt = time.Time{}
		for _, v := range a.members {
			v.answer, v.first, v.unready = nil, nil, nil
		}
		if old != nil {
			a.timing.generation, a.timing.applied, a.timing.recorded = s.World.Generation, now, false
		}
	}
	if old != nil && len(s.Published) != len(old.Published) {
		a.store = elastic.StoreFact{}
	}
	for _, seat := range s.World.Seats {
		if a.members[seat.Member] == nil {
			a.members[seat.Member] = &memberView{id: seat.Member, lost: now}
		}
	}
}

// plan asks the planner what to do next and does it.
func (a *arbiter) plan() {
	if a.busy || a.d.outcome != nil || time.Now().Before(a.retryAt) {
		return
	}
	facts := a.facts(time.Now())
	p := a.planner.Plan(a.d.state, facts)
	if p.Why != a.why {
		a.why, a.whySince = p.Why, time.Now()
		a.d.log.Debug("plan", "why", p.Why)
	}
	switch {
	case p.Ask != nil:
		a.ask(p, facts)
	case p.Command != nil:
		a.propose(p.Command, p.Why)
	}
	if p.Look {
		a.look()
	}
}

// ask asks every member of the world for a seal.
func (a *arbiter) ask(p elastic.Plan, facts *elastic.Facts) {
	if a.round.Asked && a.round.Planned == p.Ask.Planned && a.round.Boundary == p.Ask.Boundary {
		return
	}
	now := time.Now()
	a.round, a.roundAt = elastic.Round{Asked: true, Planned: p.Ask.Planned, Boundary: p.Ask.Boundary}, now
	a.reasons = p.Ask.Evidence
	a.timing = timing{asked: now, seen: now}
	for _, m := range facts.Members {
		for _, e := range m.Evidence {
			if t := time.Unix(0, e.UnixNS); !p.Ask.Planned && t.Before(a.timing.seen) && now.Sub(t) < time.Minute {
				a.timing.seen = t
			}
		}
	}
	a.d.log.Info("asks for a seal", "generation", p.Ask.Generation.String(), "boundary", uint64(p.Ask.Boundary), "why", p.Why)
	ask := &SealAsk{p.Ask.Generation, p.Ask.Boundary}
	own := false
	for _, seat := range a.d.state.World.Seats {
		v := a.members[seat.Member]
		if v.conn != nil {
			v.conn.send(&Message{Seal: ask})
		}
		own = own || v.local
	}
	failpoint.Here("seal-round-begun")
	if own {
		a.d.run(a.d.life.machine.Step(elastic.SealAsked{Generation: ask.Generation, Boundary: ask.Boundary}))
	}
}

// propose puts a command into the log. One is under way at a time: the next plan needs its outcome.
func (a *arbiter) propose(c elastic.Command, why string) {
	b, err := elastic.EncodeCommand(c)
	if err != nil {
		a.d.log.Error("command not encoded", "error", err)
		return
	}
	a.busy = true
	switch c.(type) {
	case elastic.FormGeneration, elastic.Rewind:
		a.timing.closed = time.Now()
		failpoint.Here("proposing")
	case elastic.AdmitMembers:
		failpoint.Here("admitting")
	case elastic.Activate:
		failpoint.Here("activating")
	case elastic.Done:
		failpoint.Here("finishing")
	case elastic.ReachLevel:
		failpoint.Here("level-reached")
	}
	d := a.d
	d.log.Debug("proposes", "command", fmt.Sprintf("%T", c), "why", why)
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		res, err := d.raft.Propose(ctx, b)
		cancel()
		d.post(func() {
			if d.lead != a {
				return
			}
			a.busy = false
			failpoint.Here("entry-applied")
			d.newest()
			var lost consensus.ErrNotLeader
			switch r, refused := res.Response.(refusal); {
			case errors.As(err, &lost):
				a.retryAt = time.Now().Add(20 * time.Millisecond) // the end of this leadership is about to be heard of
			case err != nil:
				d.log.Warn("command not committed", "error", err)
				a.retryAt = time.Now().Add(20 * time.Millisecond)
			case refused:
				d.log.Warn("command refused", "error", r.err)
				a.retryAt = time.Now().Add(50 * time.Millisecond)
			}
			if _, activates := c.(elastic.Activate); activates && err != nil {
				a.timing.recorded = false // tried again by the next tick
			}
		})
	})
}

// look reads the store in the background, when a plan waits for it. What was seen counts for one generation: a checkpoint may
// be published, or become unreadable, in the next one.
func (a *arbiter) look() {
	if a.store.Known || a.looking {
		return
	}
	a.looking = true
	d := a.d
	groups, branchless := d.state.GroupSize(), d.state
	d.ends.Go(func() {
		fact := lookIntoStore(d, groups, branchless)
		d.post(func() {
			if d.lead == a {
				a.looking, a.store = false, fact
				if !fact.Known {
					a.retryAt = time.Now().Add(500 * time.Millisecond)
				}
			}
		})
	})
}

// tick looks at the leader's deadlines.
func (a *arbiter) tick(now time.Time, lateness time.Duration) {
	if lateness > lateTick { // what was not read yet may have come in time: nobody is judged by it
		for _, v := range a.members {
			if v.conn != nil {
				v.heard = v.heard.Add(lateness)
				if v.heard.After(now) {
					v.heard = now
				}
			}
		}
	}
	for _, seat := range a.d.state.World.Seats {
		if f := a.members[seat.Member]; f != nil && f.first != nil && now.Sub(time.Unix(0, f.first.StepNS)) > time.Second {
			a.activate(true)
			break
		}
	}
	if a.round.Planned && !a.round.Late && now.Sub(a.roundAt) > a.boundaryDeadline() {
		a.round.Late = true
	}
	a.keepVoters(now)
	a.checkSaves(now)
	if a.stop {
		a.tryStop(now)
	}
}

func (a *arbiter) boundaryDeadline() time.Duration {
	step := a.d.steps.slowest()
	if step == 0 {
		return a.d.cfg.Hang
	}
	return min(10*step+2*time.Second, max(a.d.cfg.Hang, 2*time.Second))
}
