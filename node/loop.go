// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
	"phalanx/membership"
)

// loop is the one goroutine in which decisions meet the world: events in, actions out. It sleeps on the daemon's bell and on
// nothing else, so that what a trainer or another daemon has written reaches the page after one wake-up of one thread. What
// takes time runs elsewhere and comes back through post.
func (d *Daemon) loop() error {
	d.turn.take()
	d.ticked = time.Now()
	lateness := membership.NewLateness(tickEvery, time.Second, d.ticked)
	d.newest()
	d.checkEnd() // the log on the disk may have said so before this daemon began
	d.ensureTrainer()
	for next := d.ticked; !d.ended && d.broken == nil && d.ctx.Err() == nil; {
		rings := d.bell.Count() // before anything is looked at, so that no ring is lost
		if now := time.Now(); !now.Before(next) {
			next = now.Add(tickEvery)
			d.ticked = now
			lateness = lateness.Tick(now)
			d.tick(now, lateness.Worst(now))
			d.settle()
		}
		if d.applied.Swap(false) {
			d.newest()
			d.settle()
		}
		d.engine.Wake()
		d.scan()
		d.settle()
		d.takePosts()
		d.bell.SetCalm(d.calm())
		d.turn.give()
		d.bell.Hold(rings, time.Until(next))
		d.turn.take()
	}
	return d.broken
}

// calm reports whether what the trainer says of its own accord (that it has applied a step, that it waits for its seat) may
// wait until it asks for something, or until the next tick.
func (d *Daemon) calm() bool {
	l := d.life
	return d.plain == nil && l != nil && l.machine != nil && l.machine.Steady() && d.form == nil && d.heal == nil && d.saver.idle() && !d.leaving
}

// takePosts runs what waits when it is called. Who posts meanwhile rings again.
func (d *Daemon) takePosts() {
	for range len(d.posts) {
		(<-d.posts)()
		if d.lead != nil {
			d.lead.due = true
		}
		d.settle()
	}
}

// settle does once, after each event, what several events may have asked for.
func (d *Daemon) settle() {
	if d.dirty {
		d.dirty = false
		d.sendReport(time.Now())
	}
	if d.lead != nil && d.lead.due && time.Since(d.ticked) < lateTick { // a tick that is late is waiting: it forgives the members what this daemon missed
		d.lead.due = false
		d.lead.plan()
	}
}

// newest adopts the replica's state if it is newer than what the streams have brought.
func (d *Daemon) newest() { d.adoptState(d.replica.state.Load()) }

// adoptState acts on a state that the log leads to, whoever brought it first.
func (d *Daemon) adoptState(s *elastic.State) {
	if s.Seq <= d.state.Seq {
		return
	}
	old := d.state
	d.state = s
	if layout := d.ownLayout(); len(layout) > 0 { // before the machine acts: a heal that it begins reads the layout
		if err := d.life.openSlab(d.paths, d.cfg.Index, layout); err != nil && d.life.segment != nil {
			d.log.Debug("no slab to take over", "error", err)
		}
	}
	d.kv.stateChanged(s) // before a trainer is started in the new generation
	if d.life != nil && d.life.machine != nil {
		d.run(d.life.machine.Step(elastic.Read{State: s}))
	}
	d.noteNamed()
	if knows(s, d.life) && !knows(old, d.life) {
		d.judgeHello()
	}
	failpoint.Here("entry-read")
	d.writeView()
	d.meters.transition(old, s)
	d.saver.stateChanged(old, s)
	if d.lead != nil {
		d.lead.due = true
		d.lead.stateChanged(old, s)
	}
	if s.World.Generation != old.World.Generation {
		d.log.Info("generation", "generation", s.World.Generation.String(), "phase", s.Phase.String(), "world", s.World.Size(),
			"resume_step", uint64(s.Floor.Step), "branch", s.Branch, "cause", newestCause(s))
		d.sweep()
		d.peers.keep(&s.World)
		if d.life != nil && d.life.machine != nil {
			d.repeatVote() // a daemon that took over learns here who is in its world
		}
	}
	d.dirty = true
	d.checkEnd()
	d.ensureTrainer()
	if d.plain != nil {
		d.plain.stateChanged(s)
	}
}

func newestCause(s *elastic.State) string {
	if n := len(s.Transitions); n > 0 {
		return s.Transitions[n-1].Cause
	}
	return ""
}

// writeView tells the trainer and the siblings what this daemon has read and how long its lease lasts.
func (d *Daemon) writeView() {
	if d.life == nil {
		return
	}
	d.life.page.WriteView(wire.View{Generation: d.state.World.Generation, Branch: uint64(d.state.Branch), LeaseBoottimeNS: d.lease, Phase: uint64(d.state.Phase)})
}

// scan reads everything that a ringer of the bell may have written: the trainer's cells, its descriptors, siblings' votes.
func (d *Daemon) scan() {
	l := d.life
	if l == nil || l.machine == nil {
		return
	}
	d.watchPulse(l)
	d.scanAborts()
	d.setLease() // before a vote: a daemon that was stopped for long may read its trainer's request before its own clock
	d.postDescriptors()
	if t := l.readTrainer(); t != l.seen {
		before := l.seen
		l.seen = t
		switch {
		case t.Holds && t.Label.Step > before.Label.Step && t.Label.Generation.Less(d.state.World.Generation) && t.Gradient.Step == t.Label.Step:
			failpoint.Here("rolled-forward")
		case t.Holds && t.Label.Step > before.Label.Step:
			failpoint.Here("applied-seen")
		case t.Holds && t.Applying > t.Label.Step:
			failpoint.Here("applying-seen")
		}
		if t.Label.Step > before.Label.Step && t.Holds && before.Holds {
			d.restart = d.restart.Committed(t.Label.Step)
			if took := d.steps.add(time.Now()); took > 0 {
				d.meters.step(took)
			}
		}
		d.run(l.machine.Step(elastic.Seen{Trainer: t}))
		if t.Holds != before.Holds || t.Label.Generation != before.Label.Generation || t.Healed != before.Healed {
			d.dirty = true
		}
	}
	d.checkDone()
	d.readSiblingVotes()
	if d.heal != nil {
		d.heal.moved()
	}
	d.peers.serving.moved()
	d.saver.scan()
}

// checkDone notes that the trainer has ended well. One that is gone has done so only if its last state is kept without it.
func (d *Daemon) checkDone() {
	l := d.life
	if d.plain != nil {
		return // its exit status tells
	}
	v, n := l.page.ReadDone()
	finished := n > 0 && v.Step > 0 && d.state.Spec != nil && v.Step == d.state.Spec.LastStep && v.TrainerStart == l.helloStart && l.helloStart != 0 &&
		(l.died == nil || d.keepsLast(l))
	if finished != l.finished {
		failpoint.Here("done-seen")
		l.finished, l.digest, d.dirty = finished, v.Digest, true
	}
}

// keepsLast reports whether the state of the last step outlives the trainer: the job needs it until it is published, and a
// trainer that was killed between its last word and its last save has taken it away.
func (d *Daemon) keepsLast(l *life) bool {
	last := d.state.Spec.LastStep
	if p := d.state.NewestPublished(); d.state.Done != nil || p != nil && p.Step >= last {
		return true
	}
	return slices.ContainsFunc(l.slabLabels(), func(x phalanx.Label) bool { return x.Step == last && d.state.OfLineage(x) })
}

// postDescriptors hands new collectives to the engine, in order. One of a generation that this daemon has still to form waits:
// the trainer of a daemon that took over is in it already, and so are the others. Formed and abort look again.
func (d *Daemon) postDescriptors() {
	l := d.life
	for head := l.page.RingHead(); l.posted < head; {
		seq := l.posted + 1
		if l.page.Completion(seq) == wire.StatusNone {
			v := l.page.ReadDescriptor(seq)
			if !d.engine.Settled(v.Generation) {
				d.endAborted()
				return
			}
			d.giveGroups(v.Generation)
			d.postDescriptor(l, v)
		}
		l.posted = seq
	}
}

// readSiblingVotes reads the votes of the world's members on this host from their pages.
func (d *Daemon) readSiblingVotes() {
	for _, s := range d.siblings[:d.cfg.LocalSize] {
		if s == nil {
			continue
		}
		v, n := s.page.ReadVote()
		if n == 0 || n == s.voteSeq {
			continue
		}
		s.voteSeq = n
		who := phalanx.Incarnate{Member: s.identity.Member, Incarnation: s.life}
		d.peerVoted(who, elastic.Vote{Generation: v.Generation, Step: v.Step, OK: v.OK, Digest: v.Digest})
	}
}

// peerVoted gives the machine a vote, wherever it came from.
func (d *Daemon) peerVoted(who phalanx.Incarnate, v elastic.Vote) {
	seat := d.state.World.SeatOf(who.Member)
	if seat == nil || seat.Incarnation != who.Incarnation || v.Generation != d.state.World.Generation {
		return
	}
	d.run(d.life.machine.Step(elastic.PeerVoted{Rank: seat.Rank, Vote: v}))
}

// rereadVotes reads every vote again: a new generation counts votes that came before it was read here.
func (d *Daemon) rereadVotes() {
	for _, s := range d.siblings[:d.cfg.LocalSize] {
		if s != nil {
			s.voteSeq = 0
		}
	}
	d.readSiblingVotes()
	d.peers.replayVotes()
}

// processExited handles the end of a watched process.
func (d *Daemon) processExited(x membership.ProcExit) {
	switch k := x.Key.(type) {
	case siblingKey:
		d.siblingExited(k, x.At)
		if s := d.siblings[k.index]; s != nil && !k.trainer && !s.daemon {
			d.leaderDied(s.identity.Member)
		}
		d.dirty = true
	case trainerKey:
		// A child's end is told by wait, which also knows how; what it started itself, or a daemon before this one, by this.
		child := d.life != nil && d.life.trainer != nil && d.life.trainer.own && d.life.trainer.pid == x.PID
		if d.life != nil && d.life.who == k.who && d.life.helloPID == x.PID && !child {
			d.trainerEnded(k.who, "its process has ended", -1, x.At)
		}
	}
}

// tick turns expired deadlines into events. lateness is how late this daemon itself ran: what it has not read yet may have
// come in time.
func (d *Daemon) tick(now time.Time, lateness time.Duration) {
	d.ticks++
	d.watchHost()
	d.watchTrainer(now)
	d.rotateLogs(now)
	d.forget(now)
	if d.plain != nil {
		d.plain.tick(now)
	}
	d.watchLeader(now)
	d.watchLinks()
	d.peers.tryWorld(now)
	if !d.waitLog.IsZero() && now.After(d.waitLog) {
		d.waitLog = time.Time{}
		d.ensureTrainer()
	}
	d.renewLease(now)
	d.scan() // a ring may have been lost with its ringer
	if age := now.Sub(d.reported); age >= reportEvery || age >= troubleEvery && d.trainerTrouble(now) != nil {
		d.dirty = true
	}
	if d.lead != nil {
		d.lead.due = true
		d.lead.tick(now, lateness)
	}
	d.saver.tick(now)
	if now.Sub(d.viewed) >= viewEvery {
		d.publishView(now)
	}
	d.endOrphans()
	if d.hidden && d.ticks%20 == 0 && d.sayWhere() == nil {
		d.log.Info("others of this host find this daemon by its file now")
	}
}

// watchLeader says when there has been no leader for long: nothing changes until one is elected, and nobody else tells.
func (d *Daemon) watchLeader(now time.Time) {
	switch {
	case d.lead != nil || d.up.connected:
		d.leaderless = time.Time{}
	case d.leaderless.IsZero():
		d.leaderless = now
	case now.Sub(d.leaderless) > time.Second && d.ticks%4 == 0:
		d.joinEnd()
	}
	if !d.leaderless.IsZero() && now.Sub(d.leaderless) > 10*time.Second && now.Sub(d.warned) > time.Minute {
		d.warned = now
		d.log.Warn("no leader: nothing changes until a majority of the voters is up", "seconds", int(now.Sub(d.leaderless).Seconds()))
	}
}

// run carries out the machine's actions in order.
func (d *Daemon) run(acts []elastic.Action) {
	for _, a := range acts {
		d.execute(a)
	}
}

// stepTimes keeps the newest times between commits, for the hang deadline and status.
type stepTimes struct {
	at    time.Time
	last  [128]time.Duration
	count int
}

func (s *stepTimes) add(now time.Time) (took time.Duration) {
	if !s.at.IsZero() {
		took = now.Sub(s.at)
		s.last[s.count%len(s.last)] = took
		s.count++
	}
	s.at = now
	return took
}
