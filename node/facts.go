// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"time"

	"phalanx"
	"phalanx/elastic"
	"phalanx/membership"
)

// joinWindow is how long the first world waits for members beyond the minimum.
const joinWindow = 30 * time.Second

// leaveTogether is how long members that leave wait for others that were asked to leave at the same time.
const leaveTogether = time.Second

// kernelSilence is how long a kernel that owes acknowledgements is taken for alive.
const kernelSilence = 600 * time.Millisecond

// facts gathers what the planner may know, with deadlines turned into named facts.
func (a *arbiter) facts(now time.Time) *elastic.Facts {
	d := a.d
	f := &elastic.Facts{Leader: d.me(), Round: a.round, Reasons: a.reasons, Store: a.store, UnixNS: now.UnixNano(), LeaseOut: a.leaseOut(now), Stop: a.stop}
	if h := d.state.Halt; h != nil && h.Kind.Ends() {
		f.Restarted = h.UnixNS < d.started()
	}
	newest := d.committed()
	leaving, present := 0, 0
	for _, v := range a.members {
		m, ok := a.fact(v, now)
		if !ok {
			continue
		}
		if v.report != nil && v.report.Voted.Generation == d.state.World.Generation {
			newest = max(newest, v.report.Voted.Step)
		}
		if m.Leaving {
			leaving++
		}
		if m.Leaving || !a.left(&m) {
			present++
		}
		f.Members = append(f.Members, m)
	}
	for _, s := range d.siblings {
		if s != nil && s.page != nil {
			if v, n := s.page.ReadVote(); n > 0 && v.Generation == d.state.World.Generation {
				newest = max(newest, v.Step)
			}
		}
	}
	if own := d.life.machine.NewestVote(); own.Generation == d.state.World.Generation {
		newest = max(newest, own.Step)
	}
	f.Boundary = newest + 2
	if d.plain != nil {
		f.Boundary = 0 // no step to wait for
	}
	f.Stop = a.stop || leaving > 0 && leaving == present
	switch {
	case leaving == 0:
		a.leaveAt = time.Time{}
	case a.leaveAt.IsZero():
		a.leaveAt = now
	}
	if leaving > 0 && !f.Stop && now.Sub(a.leaveAt) < leaveTogether {
		for i := range f.Members { // the others of a stop that was sent to all of them are about to say so
			f.Members[i].Leaving = false
		}
	}
	a.stop = f.Stop
	slices.SortFunc(f.Members, func(x, y elastic.MemberFact) int { return phalanx.CompareMemberIDs(x.Member, y.Member) })
	for i := range f.Members {
		f.Members[i].Apart = a.apart(f, a.members[f.Members[i].Member])
	}
	a.judgeCuts(f, now)
	f.JoinClosed = now.Sub(a.since) > joinWindow
	return f
}

// left reports whether a member is none of those that a stop waits for: its life is over, or was never known and is not here.
func (a *arbiter) left(m *elastic.MemberFact) bool {
	known := a.d.state.Member(m.Member)
	if known == nil {
		return !m.Connected
	}
	return known.State == elastic.Gone && known.Incarnation >= m.Incarnation
}

// leaseOut reports whether no member of the world that has not answered the seal can hold a lease any more. Those that the
// leader still hears renew theirs, which must not keep the others' alive.
func (a *arbiter) leaseOut(now time.Time) bool {
	for _, seat := range a.d.state.World.Seats {
		v := a.members[seat.Member]
		if v == nil || v.answer != nil || v.report != nil && v.report.Incarnation > seat.Incarnation {
			continue // a lease is of one life
		}
		if now.Sub(a.since) <= leaseLength || now.Sub(v.granted) <= leaseLength {
			return false
		}
	}
	return true
}

// fact is what is known about one member. A member that never spoke to this leader is judged by its siblings' kernel alone.
func (a *arbiter) fact(v *memberView, now time.Time) (elastic.MemberFact, bool) {
	d := a.d
	m := elastic.MemberFact{Host: v.id.Host(), Connected: v.local || v.conn != nil, Answer: v.answer}
	m.Member = v.id
	seat := d.state.World.SeatOf(v.id)
	known := d.state.Member(v.id)
	if r := v.report; r != nil {
		m.Incarnation, m.Ready, m.Possession, m.Slabs = r.Incarnation, r.Ready, r.Possession, r.Slabs
		m.Pin, m.Layout = r.Pin, r.State
		m.Failed, m.Leaving, m.Finished, m.Digest = r.Failed != "", r.Leaving, r.Finished, r.Digest
		if d.plain != nil { // an exit 0 in an older generation is none in this one
			m.Finished = r.Finished && r.Generation == d.state.World.Generation
		}
		m.Evidence = slices.Clone(r.Evidence)
		if g := d.state.World.Generation; r.Generation != g {
			// What was reported against another generation does not end this one.
			m.Evidence = slices.DeleteFunc(m.Evidence, func(e phalanx.Evidence) bool { return ofGeneration(e.Kind) })
		}
	} else {
		switch {
		case seat != nil:
			m.Incarnation = seat.Incarnation
		case known != nil:
			m.Incarnation = known.Incarnation
		default:
			return m, false
		}
		m.Possession.Trainer = true // until something says otherwise
	}
	who := m.Incarnate
	var s *Sibling
	var from phalanx.MemberID
	if !m.Connected { // a look through everybody's reports
		s, from = a.sibling(who)
	}
	if !m.Connected && s != nil && a.trainerGone(v, s, now) && !m.Finished { // a daemon that speaks knows its trainer better
		m.Possession = elastic.Possession{}
		if s.Evidence != nil {
			m.Evidence = append(m.Evidence, *s.Evidence)
		}
	}
	if m.Connected {
		a.judgeConnected(&m, v, now)
	} else {
		a.judgeLost(&m, v, s, from, now)
	}
	if seat != nil && v.report != nil && m.Connected && seat.Incarnation == m.Incarnation {
		a.judgeReady(&m, v, now)
		a.judgeAnswer(&m, v, now)
	}
	return m, true
}

// ofGeneration reports whether evidence of this kind is against what happened in one generation, rather than against a process.
func ofGeneration(k phalanx.EvidenceKind) bool {
	switch k {
	case phalanx.VotedNotOK, phalanx.DigestsUnequal, phalanx.HealFailed, phalanx.Unreachable, phalanx.Sealed, phalanx.NotReady, phalanx.CutOff:
		return true
	case phalanx.TrainerExited, phalanx.DaemonExited, phalanx.HostSilent, phalanx.Stalled, phalanx.Hung, phalanx.GossipDead, phalanx.Asked:
	}
	return false
}

// trainerGone reports whether the word of a sibling proves that there is nothing of the trainer to come back to. Without the
// step protocol a member may have no trainer for a while, and one that has ended may have ended well: the daemon's successor
// finds out, if it comes.
func (a *arbiter) trainerGone(v *memberView, s *Sibling, now time.Time) bool {
	if silence := now.Sub(v.lost); a.d.plain != nil && (silence < graceNewPID || s.Daemon && silence < graceHello) {
		return false
	}
	return !s.Trainer
}

// sibling returns the newest word of a living daemon of the same host about a member.
func (a *arbiter) sibling(who phalanx.Incarnate) (*Sibling, phalanx.MemberID) {
	for _, v := range a.members {
		if v.id == who.Member || v.id.Host() != who.Member.Host() || v.report == nil || !(v.local || v.conn != nil) {
			continue
		}
		for i := range v.report.Siblings {
			if v.report.Siblings[i].Incarnate == who {
				return &v.report.Siblings[i], v.id
			}
		}
	}
	return nil, ""
}

// judgeConnected finds a daemon whose kernel answers and which does not run.
func (a *arbiter) judgeConnected(m *elastic.MemberFact, v *memberView, now time.Time) {
	silence := now.Sub(v.heard)
	if v.local || silence < stallAfter {
		return
	}
	m.Silent = true
	e := phalanx.Evidence{Kind: phalanx.Stalled, About: m.Incarnate, Source: a.d.me(), UnixNS: v.heard.UnixNano(),
		Detail: fmt.Sprintf("its kernel answers and its daemon has said nothing for %.1f s", silence.Seconds())}
	if m.Host != a.d.cfg.Host {
		if ack, err := membership.ReadAckState(v.conn.conn); err == nil && ack.Waiting() && ack.SinceAck > kernelSilence {
			e.Kind, e.Detail = phalanx.HostSilent, fmt.Sprintf("its kernel has acknowledged nothing for %.1f s", ack.SinceAck.Seconds())
		}
	}
	m.Evidence = append(m.Evidence, e)
}

// judgeLost says what the loss of a member's connection means by now.
func (a *arbiter) judgeLost(m *elastic.MemberFact, v *memberView, s *Sibling, from phalanx.MemberID, now time.Time) {
	silence := now.Sub(v.lost)
	e := phalanx.Evidence{About: m.Incarnate, Source: a.d.me(), UnixNS: v.lost.UnixNano()}
	switch {
	case s == nil:
		if a.hostLives(m.Member) && silence < graceNewPID {
			m.InGrace = true // its siblings have not looked yet
			return
		}
		if silence < sealSilence {
			m.InGrace = true
			return
		}
		m.Silent = true
		e.Kind, e.Detail = phalanx.Unreachable, fmt.Sprintf("no connection for %.1f s and nobody of its host says more", silence.Seconds())
	case !s.Daemon && a.trainerGone(v, s, now):
		m.Dead = true
		e.Kind, e.Source, e.Detail = phalanx.DaemonExited, from, "daemon and trainer have ended"
	case !s.Daemon:
		m.InGrace = silence < graceNewPID
		m.Silent = !m.InGrace
		e.Kind, e.Source, e.Detail = phalanx.DaemonExited, from, "its daemon has ended beside a living trainer and did not come back"
	case s.Stopped:
		m.Silent = true
		e.Kind, e.Source, e.Detail = phalanx.Stalled, from, "its daemon is stopped"
	default: // a new process, or one that lost its connection: it has some time to say hello
		m.InGrace = silence < graceHello
		m.Silent = !m.InGrace
		e.Kind, e.Source, e.Detail = phalanx.Unreachable, from, fmt.Sprintf("its daemon lives and has said nothing for %.1f s", silence.Seconds())
	}
	if m.Dead || m.Silent {
		m.Evidence = append(m.Evidence, e)
		if !v.gossip.IsZero() {
			m.Evidence = append(m.Evidence, phalanx.Evidence{Kind: phalanx.GossipDead, About: m.Incarnate, Source: a.d.me(), UnixNS: v.gossip.UnixNano(), Detail: "gossip calls it dead too"})
		}
	}
}

// setGossipDead notes what gossip believes about a member; it counts only beside other evidence.
func (d *Daemon) setGossipDead(id phalanx.MemberID, at time.Time) {
	if d.lead == nil {
		return
	}
	if v := d.lead.members[id]; v != nil {
		v.gossip = at
	}
}

// hostLives reports whether another daemon of the member's host is connected.
func (a *arbiter) hostLives(id phalanx.MemberID) bool {
	for _, v := range a.members {
		if v.id != id && v.id.Host() == id.Host() && (v.local || v.conn != nil) {
			return true
		}
	}
	return false
}

// judgeReady adds what the member itself says about the current generation, and the deadline of a formation.
func (a *arbiter) judgeReady(m *elastic.MemberFact, v *memberView, now time.Time) {
	r, g := v.report, a.d.state.World.Generation
	m.Sealed = r.Sealed
	if v.unready != nil {
		m.Evidence = append(m.Evidence, *v.unready) // it stands until the generation ends, or the round would close without it
		return
	}
	if a.d.state.Phase == elastic.Halted || a.round.Asked {
		return
	}
	if r.Healed > a.progress {
		a.progress, a.movedAt = r.Healed, now
	}
	late := now.Sub(a.formedAt) > formDeadline && now.Sub(a.movedAt) > formDeadline && now.Sub(v.since) > formDeadline
	if late && (r.Generation != g || r.Local == elastic.LocalForming.String() || r.Local == elastic.LocalHealing.String()) {
		v.unready = &phalanx.Evidence{Kind: phalanx.NotReady, About: m.Incarnate, Source: a.d.me(), UnixNS: now.UnixNano(),
			Detail: fmt.Sprintf("%s for %.0f s after generation %s was formed, without progress", r.Local, now.Sub(a.formedAt).Seconds(), g)}
		m.Evidence = append(m.Evidence, *v.unready)
	}
}

// judgeAnswer takes a member that speaks and does not answer an ordinary seal for one that is silent: nobody waits for ever for
// workers that do not leave its segment.
func (a *arbiter) judgeAnswer(m *elastic.MemberFact, v *memberView, now time.Time) {
	deadline := answerDeadline
	if a.d.plain != nil {
		deadline += a.d.cfg.Grace + stopDeadline // its trainer is given the grace first
	}
	if !a.round.Asked || a.round.Planned || v.answer != nil || now.Sub(a.roundAt) <= deadline {
		return
	}
	m.Silent = true
	m.Evidence = append(m.Evidence, phalanx.Evidence{Kind: phalanx.Unreachable, About: m.Incarnate, Source: a.d.me(), UnixNS: now.UnixNano(),
		Detail: fmt.Sprintf("it speaks and has not answered the seal for %.0f s", now.Sub(a.roundAt).Seconds())})
}

// slowest is the slowest of the newest steps, 0 before any.
func (s *stepTimes) slowest() time.Duration {
	if s.count == 0 {
		return 0
	}
	return slices.Max(s.last[:min(s.count, len(s.last))])
}
