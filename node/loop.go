// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/consensus"
	"phalanx/elastic"
	"phalanx/membership"
)

// loop is the one goroutine in which decisions meet the world: events in, actions out. What takes time runs elsewhere and
// comes back through post.
func (d *Daemon) loop() error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	d.ticked = time.Now()
	lateness := membership.NewLateness(tickEvery, time.Second, d.ticked)
	d.newest()
	d.ensureTrainer()
	for !d.ended {
		select {
		case <-d.ctx.Done():
			return nil
		case <-d.rung:
			d.scan()
		case <-d.applied:
			d.newest()
		case f := <-d.posts:
			f()
		case l := <-d.raft.LeaderChanges():
			d.leadershipChanged(l.IsSelf, l.Term)
		case x := <-d.procs.Exits():
			d.processExited(x)
		case h := <-d.hints():
			d.hinted(h)
		case err := <-d.raft.Failed():
			return &Problem{CodeFailed, fmt.Errorf("the log has stopped: %w", err), "the daemon is started again by phalanx run"}
		case now := <-ticker.C:
			d.ticked = time.Now()
			lateness = lateness.Tick(time.Now())
			d.tick(now, lateness.Worst(time.Now()))
		}
		d.settle()
	}
	return nil
}

// settle does once, after each event, what several events may have asked for.
func (d *Daemon) settle() {
	if d.dirty {
		d.dirty = false
		d.sendReport(time.Now())
	}
	if d.lead != nil && time.Since(d.ticked) < lateTick { // a tick that is late is waiting: it forgives the members what this daemon missed
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
	if d.life != nil && len(s.State) > 0 { // before the machine acts: a heal that it begins reads the layout
		if err := d.life.openSlab(d.paths, d.cfg.Index, s.State); err != nil && d.life.segment != nil {
			d.log.Debug("no slab to take over", "error", err)
		}
	}
	if d.life != nil && d.life.machine != nil {
		d.run(d.life.machine.Step(elastic.Read{State: s}))
	}
	d.writeView()
	d.meters.transition(old, s)
	d.saver.stateChanged(old, s)
	if d.lead != nil {
		d.lead.stateChanged(old, s)
	}
	if s.World.Generation != old.World.Generation {
		d.log.Info("generation", "generation", s.World.Generation.String(), "phase", s.Phase.String(), "world", s.World.Size(),
			"resume_step", uint64(s.Floor.Step), "branch", s.Branch, "cause", newestCause(s))
		d.sweep()
		d.peers.keep(&s.World)
	}
	d.dirty = true
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
	d.setLease() // before a vote: a daemon that was stopped for long may read its trainer's request before its own clock
	d.postDescriptors()
	if t := l.readTrainer(); t != l.seen {
		before := l.seen
		l.seen = t
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

// checkDone notes that the trainer has ended well.
func (d *Daemon) checkDone() {
	l := d.life
	if d.plain != nil {
		return // its exit status tells
	}
	v, n := l.page.ReadDone()
	finished := n > 0 && v.Step > 0 && d.state.Spec != nil && v.Step == d.state.Spec.LastStep && v.TrainerStart == l.helloStart && l.helloStart != 0
	if finished != l.finished {
		l.finished, l.digest, d.dirty = finished, v.Digest, true
	}
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
				return
			}
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
	if d.ticks++; d.ticks%4 == 0 {
		d.refreshSiblings()
	} else {
		for _, s := range d.siblings[:d.cfg.LocalSize] {
			if s != nil {
				d.checkSibling(s)
			}
		}
	}
	d.watchTrainer(now)
	d.rotateLog(now)
	if d.plain != nil {
		d.plain.tick(now)
	}
	d.watchLeader(now)
	if !d.waitLog.IsZero() && now.After(d.waitLog) {
		d.waitLog = time.Time{}
		d.ensureTrainer()
	}
	d.renewLease(now)
	d.scan() // a ring may have been lost with its ringer
	if now.Sub(d.reported) >= reportEvery {
		d.dirty = true
	}
	if d.lead != nil {
		d.lead.tick(now, lateness)
	}
	d.saver.tick(now)
	d.publishView()
	d.endOrphans()
}

// watchLeader says when there has been no leader for long: nothing changes until one is elected, and nobody else tells.
func (d *Daemon) watchLeader(now time.Time) {
	switch {
	case d.lead != nil || d.up.connected:
		d.leaderless = time.Time{}
	case d.leaderless.IsZero():
		d.leaderless = now
	case now.Sub(d.leaderless) > 10*time.Second && now.Sub(d.warned) > time.Minute:
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

// adopt takes over the page of this member's last life, or starts a new one.
func (d *Daemon) adopt() error {
	l, err := adoptLife(d.paths, d.cfg.Index, d.me(), 2*time.Second)
	if err != nil {
		return err
	}
	d.state = d.replica.state.Load()
	if l == nil {
		return d.newIncarnation()
	}
	d.life = l
	if d.plain != nil {
		l.plain = true
		d.plain.adopt(l)
	}
	l.lastMove = time.Now() // how long it had been still before is not known
	if err := l.openSlab(d.paths, d.cfg.Index, d.state.State); err != nil {
		d.log.Debug("no slab to take over", "error", err)
	}
	if l.helloPID != 0 && !membership.Alive(l.helloPID, l.helloStart) {
		d.noteTrainerDeath("it had ended when the daemon came back", time.Now())
	}
	l.identify(d.cfg.Index, false)
	if v, n := l.page.ReadView(); n > 0 {
		d.lease = v.LeaseBoottimeNS
	}
	l.machine = elastic.NewMachine(l.who, d.state, d.promises(l))
	l.seen = l.readTrainer()
	d.refreshSiblings()
	d.setLease()
	if l.trainer != nil {
		if err := d.procs.Watch(l.helloPID, l.helloStart, trainerKey{l.who}); err != nil {
			d.log.Warn("the adopted trainer is not watched", "error", err)
		}
	}
	d.log.Info("took over", "incarnation", uint64(l.who.Incarnation), "trainer_pid", l.helloPID, "trainer", l.trainer != nil)
	d.run(l.machine.Adopt(l.seen))
	return nil
}

// promises is what a page says, and since when this start counts.
func (d *Daemon) promises(l *life) elastic.Page {
	p := l.promises()
	p.Started = d.started()
	return p
}

func (d *Daemon) started() int64 {
	if d.cfg.Started.IsZero() {
		return 0
	}
	return d.cfg.Started.UnixNano()
}

// newIncarnation begins the next life of the member: one that no entry, page or file has ever named.
func (d *Daemon) newIncarnation() error {
	n := d.lastIncarnation() + 1
	if err := writeJSON(d.paths.Member(d.cfg.Index)+"/incarnation.json", n); err != nil {
		return err
	}
	l, err := newLife(d.paths, d.cfg.Index, phalanx.Incarnate{Member: d.me(), Incarnation: n})
	if err != nil {
		return err
	}
	if d.life != nil {
		d.retire(d.life)
	}
	d.life = l
	l.plain = d.plain != nil
	d.lease, d.leaseOK, d.asked = 0, false, time.Time{} // a lease belongs to one life
	l.identify(d.cfg.Index, false)
	l.machine = elastic.NewMachine(l.who, d.state, elastic.Page{Started: d.started()})
	d.log.Info("new incarnation", "incarnation", uint64(n))
	d.dirty = true
	return nil
}

func (d *Daemon) lastIncarnation() phalanx.Incarnation {
	var n phalanx.Incarnation
	_ = readJSON(d.paths.Member(d.cfg.Index)+"/incarnation.json", &n) // none: the first life
	if m := d.state.Member(d.me()); m != nil {
		n = max(n, m.Incarnation)
	}
	if lives := d.paths.Lives(d.cfg.Index); len(lives) > 0 {
		n = max(n, lives[len(lives)-1])
	}
	if d.life != nil {
		n = max(n, d.life.who.Incarnation)
	}
	return n
}

// retire lets a life go. Its collectives have been revoked; the memory is unmapped once nobody uses it.
func (d *Daemon) retire(l *life) {
	l.retired.Store(true)
	d.procs.Unwatch(trainerKey{l.who})
	if l.trainer != nil {
		l.trainer.kill()
	}
	left := d.engine.Revoke(d.state.World.Generation)
	d.stopForming()
	d.stopHealing()
	healed, saver := d.healed, d.saver
	d.ends.Go(func() {
		<-left
		if healed != nil {
			<-healed
		}
		saver.release(l)
		d.peers.serving.release(l)
		d.forming.Lock() // a formation that was under way reads it
		defer d.forming.Unlock()
		if err := l.unmap(); err != nil {
			d.log.Debug("unmap", "error", err)
		}
	})
}

// sweep removes the shared memory of lives that the log calls gone. Before, a page may hold a promise and a slab the only
// copy of the state.
func (d *Daemon) sweep() {
	m := d.state.Member(d.me())
	for _, n := range d.paths.Lives(d.cfg.Index) {
		if d.life != nil && n >= d.life.who.Incarnation {
			continue
		}
		if m != nil && (m.Incarnation > n || m.Incarnation == n && m.State == elastic.Gone) && !d.saver.needs(n) {
			d.paths.Remove(d.cfg.Index, n)
		}
	}
}

// end ends the daemon with an outcome once the trainer has left.
func (d *Daemon) end(o Outcome) {
	if d.outcome != nil {
		return
	}
	d.outcome = &o
	if d.plain != nil {
		d.plain.terminate()
	}
	d.log.Info("ending", "code", o.Code, "reason", o.Reason)
	var t *trainerProcess
	if d.life != nil {
		t = d.life.trainer // the life is the loop's own
	}
	wait := d.cfg.Grace
	if wait <= 0 || o.Code != CodeOK && o.Code != CodePreempted {
		wait = 2 * time.Second
	}
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, wait)
		defer cancel()
		for t != nil && membership.Alive(t.pid, t.start) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond): // an adopted trainer's end is not waited for by wait(2)
			}
		}
		t.kill()
		d.post(func() { d.farewell() })
	})
}

// farewell hands leadership over and lets the last entry reach the others before the daemon's connections end.
func (d *Daemon) farewell() {
	others := !d.outcome.Done && d.state.Phase != elastic.Halted
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		defer cancel()
		d.watchers.drain(ctx)
		if others {
			d.handOver(ctx)
		}
		d.post(func() {
			if d.outcome.Done {
				for _, n := range d.paths.Lives(d.cfg.Index) {
					d.paths.Remove(d.cfg.Index, n)
				}
				_ = d.paths.memory.Remove(d.paths.Bells()) // whoever has it mapped keeps it
			}
			if err := writeJSON(d.paths.Outcome(d.cfg.Index), d.outcome); err != nil {
				d.log.Error("the outcome is not written", "error", err)
			}
			d.ended = true
		})
	})
}

// handOver leaves Raft to those who go on: leadership first, then the vote. They need a majority without this daemon before
// it goes, or two that leave at once take the quorum with them.
func (d *Daemon) handOver(ctx context.Context) {
	if d.raft.IsLeader() {
		if err := d.raft.Transfer(ctx); err != nil {
			d.log.Debug("leadership not handed over", "error", err)
		}
	}
	for ctx.Err() == nil {
		servers, err := d.raft.Servers()
		if err != nil || !slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.ID == d.raft.ServerID() && s.Voter }) {
			return
		}
		select {
		case <-ctx.Done():
			d.log.Warn("leaves although it still votes in the log")
		case <-time.After(20 * time.Millisecond): // nothing signals a change of the configuration
		}
	}
}

// endOrphans ends trainers on this host whose member the log has evicted and whose daemon is dead, if this is the lowest
// living daemon of the host and no run is there to do it.
func (d *Daemon) endOrphans() {
	for _, s := range d.siblings[:d.cfg.Index] {
		if s != nil && s.daemon {
			return
		}
	}
	for _, s := range d.siblings[:d.cfg.LocalSize] {
		if s == nil || s.daemon || !s.trainer || s.identity.TrainerPID == 0 {
			continue
		}
		m := d.state.Member(s.identity.Member)
		if m != nil && (m.Incarnation > s.life || m.Incarnation == s.life && m.State == elastic.Gone) {
			d.log.Info("ends an orphan trainer", "about", string(s.identity.Member), "pid", s.identity.TrainerPID)
			(&trainerProcess{pid: s.identity.TrainerPID, start: s.identity.TrainerStart}).kill()
		}
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
