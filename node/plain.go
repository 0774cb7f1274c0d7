// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"phalanx"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
	"phalanx/membership"
)

const (
	// plainSettle is how long a world that is not full waits before its trainers start. A member whose trainer died comes back
	// as a new incarnation within milliseconds; started at once, all trainers would be stopped again for it.
	plainSettle = 500 * time.Millisecond
	// plainSteady is the uptime after which a trainer counts as one that starts well: its member's budget of starts begins anew.
	plainSteady = time.Minute
	// plainSlots is the number of slots that a job without a step protocol pretends to have: a bound of its world, also after a resize.
	plainSlots = 4096
)

// plainSpec is what the log says about a job without the step protocol. Every daemon derives the same.
func plainSpec() *phalanx.JobSpec {
	return &phalanx.JobSpec{LastStep: 1, Slots: plainSlots, GlobalBatch: plainSlots, GroupSize: 1, Threads: 1, Settings: elastic.PlainSettings}
}

// plainRun runs a trainer that knows nothing of steps, as torchrun does: it is started with the ranks of one generation and
// stopped before the next one begins. Its parts of the common machinery: a member is ready as soon as it could start its
// trainer, possesses the seed's state as long as its life lasts, is formed when its trainer runs, has left its work when its
// trainer has ended, and is finished when that exited with 0. The loop owns it.
type plainRun struct {
	d          *Daemon
	ready      *life         // could start its trainer
	proc       *plainProcess // newest trainer, nil before the first
	forming    phalanx.Generation
	cancel     context.CancelFunc // ends the start under way
	offered    plainOffer         // what rank 0, if it is here, may bind
	rendezvous string             // of the newest start
	steady     bool               // proc has run for plainSteady
}

// plainProcess is the trainer of one life in one generation.
type plainProcess struct {
	life *life
	plainRecord
	trainer  trainerProcess
	started  time.Time
	over     bool      // it has ended and its end was dealt with
	awaited  bool      // it has ended; its status is looked for
	stopping time.Time // when it was asked to end: its exit is no failure
	hung     bool      // it was called hung
}

func newPlainRun(d *Daemon) *plainRun { return &plainRun{d: d, cancel: func() {}} }

// plainTrainer is what a life without a step protocol possesses: the state that every start begins with.
func (l *life) plainTrainer() elastic.Trainer {
	var t elastic.Trainer
	if l.died == nil {
		t.Trainer, t.Holds, t.Label.Coordinate = true, true, elastic.AnyCoordinate
	}
	return t
}

// beginLife is told that a life could start its trainer.
func (p *plainRun) beginLife(l *life) {
	p.ready, l.spec = l, plainSpec()
	p.d.scan() // what it possesses is reported with it
	p.d.dirty = true
}

// stateChanged follows the log: a start for a generation that is over is given up, and a job of the other kind is refused.
func (p *plainRun) stateChanged(s *elastic.State) {
	if p.forming != (phalanx.Generation{}) && p.forming != s.World.Generation {
		p.cancel()
		p.forming = phalanx.Generation{}
	}
	if s.Spec != nil && s.Spec.Settings != elastic.PlainSettings && p.d.failed == "" {
		p.d.giveUp("the job in " + p.d.cfg.Dir + " is one with a step protocol; run it without --plain, or a new job in another --dir")
	}
}

// form starts the trainer of a generation, once nothing of an older one runs. A trainer that an earlier daemon started for
// this generation is kept.
func (p *plainRun) form(g phalanx.Generation) {
	d, l := p.d, p.d.life
	x := p.proc
	if x != nil && x.life == l && g.Less(x.Generation) {
		return // this daemon came back and has not read as far as its predecessor
	}
	p.cancel()
	p.ready, p.forming, l.finished, d.dirty = l, g, false, true
	switch halted := d.state.Phase == elastic.Halted; {
	case x != nil && x.life == l && x.Generation == g:
		d.later(func() { p.keep(x) })
		return
	case halted && d.state.Halt.Kind.Ends(): // and was started again: the world must be made anew
		d.later(func() { p.lost(l, "the job was stopped before its trainer started") })
		return
	case halted: // too few: nothing runs
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	p.cancel = cancel
	world := d.state.World.Clone()
	settle := time.Duration(0)
	if world.Size() < d.state.WantGroups()*d.state.GroupSize() {
		settle = plainSettle
	}
	p.stop(func() {
		d.ends.Go(func() {
			at, err := p.agree(ctx, world, settle)
			d.post(func() {
				if err == nil && ctx.Err() == nil && d.life == l && d.state.World.Generation == g {
					p.start(&world, at)
				}
			})
		})
	})
}

// keep goes on with the trainer that an earlier daemon started for the current generation.
func (p *plainRun) keep(x *plainProcess) {
	d := p.d
	if x.Port != 0 && !x.over {
		if _, err := d.kv.listen(x.Generation, x.Port); err != nil && !errors.Is(err, phalanx.ErrStaleGeneration) {
			d.log.Warn("the trainer finds no store any more where it looks for it: what makes new groups fails until the next start", "error", err)
		}
	}
	switch {
	case x.life != d.life || x.Generation != d.state.World.Generation:
	case x.over && x.Exit != nil && *x.Exit == 0 && !x.Asked && d.state.Phase != elastic.Halted:
		x.life.finished, d.dirty = true, true
		p.formed(x)
	case x.over:
		p.lost(x.life, x.how())
	case d.state.Phase != elastic.Halted:
		if r := x.life.ringOf; r != nil && r.generation == x.Generation {
			p.formRing(r)
		}
		p.formed(x)
	}
}

// lost ends a life whose trainer is gone: the next generation is made without it, and the member's next life joins.
func (p *plainRun) lost(l *life, how string) {
	d := p.d
	if l != d.life || l.died != nil || d.outcome != nil {
		return
	}
	d.noteTrainerDeath(how, time.Now())
	d.run(l.machine.Step(elastic.Seen{Trainer: l.readTrainer()}))
	l.seen = elastic.Trainer{}
	d.dirty = true
	d.ensureTrainer()
}

// agree waits for late comers and finds out where the trainers meet.
func (p *plainRun) agree(ctx context.Context, world phalanx.World, settle time.Duration) (string, error) {
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return p.ask(ctx, world)
}

// start starts the trainer, once per generation. The record is written first: a daemon that comes back starts none for a
// generation that it finds there.
func (p *plainRun) start(world *phalanx.World, at string) {
	d, l, g := p.d, p.d.life, world.Generation
	if d.outcome != nil || d.failed != "" || l.died != nil || l.machine.State() != elastic.LocalForming {
		return
	}
	x := &plainProcess{life: l, plainRecord: newPlainRecord(l.who, g), started: time.Now()}
	var err error
	if x.Port, err = d.kv.listen(g, 0); err != nil {
		p.startLater(world, at, err)
		return
	}
	if err := x.save(d.paths, d.cfg.Index); err != nil {
		p.startLater(world, at, err)
		return
	}
	_ = os.Remove(d.paths.TrainerError(l.who)) // of this life's trainer in an older generation
	failpoint.Here("plain-start")
	env := d.plainEnv(world, at, x.Port, x.Token)
	t := d.takeWarm(l.who, x.Token, env, nil) // its end is seen as that of an adopted one
	if t == nil {
		if t, err = startTrainer(&d.cfg, d.paths, l.who, env, func(how string, code int) {
			d.post(func() { p.ended(x, how, code) })
		}); err != nil {
			p.startLater(world, at, err)
			return
		}
	}
	d.unhinder()
	x.trainer, x.PID, x.Start = *t, t.pid, t.start
	if err := x.save(d.paths, d.cfg.Index); err != nil {
		d.log.Warn("a daemon that comes back will not find this trainer and start it anew", "error", err)
	}
	p.proc, p.rendezvous, p.steady = x, at, false
	p.show(x)
	if !t.own {
		if err := d.procs.Watch(x.PID, x.Start, trainerKey{l.who}); err != nil {
			d.log.Warn("the end of the trainer will be seen late", "error", err)
		}
	}
	d.log.Info("trainer started", "incarnation", uint64(l.who.Incarnation), "pid", t.pid, "generation", g.String(), "rank", int(world.SeatOf(d.me()).Rank), "rendezvous", at)
	p.formed(x)
}

// startLater tries a start again that something hindered which can heal. It counts for its generation alone, like the first try.
func (p *plainRun) startLater(world *phalanx.World, at string, err error) {
	d, l := p.d, p.d.life
	d.afterHindrance(err, func() {
		if d.life == l && d.state.World.Generation == world.Generation {
			p.start(world, at)
		}
	})
}

// show puts the trainer where status, siblings and the watch for stalls look for it.
func (p *plainRun) show(x *plainProcess) {
	d, l := p.d, x.life
	l.trainer, l.helloPID, l.helloStart = &x.trainer, x.PID, x.Start
	l.startedAt, l.lastMove, l.stopped = x.started, time.Now(), membership.Stopped{}
	l.identify(d.paths.system, d.cfg.Index, false)
	d.dirty = true
}

// formed tells the machine that the generation's trainer was started.
func (p *plainRun) formed(x *plainProcess) {
	d := p.d
	if x.life != d.life || d.life.died != nil || x.Generation != d.state.World.Generation {
		return
	}
	if d.timings.FormedNS == 0 {
		d.timings.FormedNS = time.Now().UnixNano()
		d.timings.StepNS = d.timings.FormedNS
	}
	d.run(d.life.machine.Step(elastic.Formed{Generation: x.Generation}))
	p.reportFormed()
}

// reportFormed says that the generation is at work, again until the log says so too: a leader may be lost with the word.
func (p *plainRun) reportFormed() {
	d := p.d
	if x := p.proc; d.state.Phase == elastic.Forming && x != nil && x.life == d.life && x.Generation == d.state.World.Generation && d.timings.FormedNS != 0 {
		t := d.timings
		t.Generation = x.Generation
		d.sendUp(&Message{First: &t})
	}
}

// abort ends the work of a generation: the machine hears when the trainer has ended.
func (p *plainRun) abort(g phalanx.Generation) {
	d, l := p.d, p.d.life
	p.cancel()
	p.forming = phalanx.Generation{}
	workers := p.endRing(g)
	left := func() {
		d.ends.Go(func() {
			<-workers // the engine's workers check at every chunk
			d.post(func() {
				if d.life == l {
					d.run(l.machine.Step(elastic.WorkersLeft{Generation: g}))
				}
			})
		})
	}
	if x := p.proc; x != nil && x.life == l && g.Less(x.Generation) {
		d.later(left) // see form
		return
	}
	p.stop(left)
}

// stop asks the trainer to end, kills what is left of it when the grace is over, and then calls then in the loop.
func (p *plainRun) stop(then func()) {
	d, x := p.d, p.proc
	if x == nil || x.over {
		d.later(then)
		return
	}
	p.terminate()
	left := d.cfg.Grace - time.Since(x.stopping)
	if x.hung {
		left = 0 // it will not come to where it looks
	}
	t := x.trainer
	d.ends.Go(func() {
		if !t.gone(d.ctx, left) {
			if d.ctx.Err() != nil {
				return // the daemon ends and leaves its trainer alone
			}
			d.log.Warn("the trainer did not end within the grace and is killed", "pid", t.pid, "grace", d.cfg.Grace.String())
		}
		t.kill() // what it forked goes with it
		t.gone(d.ctx, stopDeadline)
		d.post(then)
	})
}

// terminate sends TERM to the trainer, once. One that is stopped goes on, to hear it.
func (p *plainRun) terminate() {
	x := p.proc
	if x == nil || x.over || !x.stopping.IsZero() {
		return
	}
	x.stopping = time.Now()
	if membership.Alive(x.PID, x.Start) {
		_ = syscall.Kill(-x.PID, syscall.SIGTERM) // ended meanwhile
		_ = syscall.Kill(-x.PID, syscall.SIGCONT)
	}
}

// ended deals with the end of a trainer, once. A code below 0 says that nobody knows how it ended.
func (p *plainRun) ended(x *plainProcess, how string, code int) {
	d, l := p.d, x.life
	if x.over {
		return
	}
	x.over, x.Exit, x.Asked = true, &code, !x.stopping.IsZero()
	x.trainer.kill()                // what it forked goes with it
	d.engine.AbortAll(x.Generation) // others may wait for it
	if p.proc == x {                // else the record is of a newer one
		if err := x.save(d.paths, d.cfg.Index); err != nil {
			d.log.Warn("a daemon that comes back will not know how the trainer ended", "error", err)
		}
	}
	if p.proc == x && l == d.life {
		l.trainer, l.helloPID, l.helloStart = nil, 0, 0
		l.identify(d.paths.system, d.cfg.Index, false)
		d.dirty = true
	}
	d.log.Info("trainer ended", "incarnation", uint64(l.who.Incarnation), "generation", x.Generation.String(), "how", how, "asked", !x.stopping.IsZero())
	if l != d.life || l.died != nil || !x.stopping.IsZero() || d.outcome != nil || x.Generation != d.state.World.Generation {
		return
	}
	if code == 0 {
		l.finished = true
		return
	}
	if code == CodePreempted {
		d.leave("its trainer ended as one that was asked to")
	}
	if code > 0 && code < 128 {
		how += d.lastWords(l.who.Incarnation)
	}
	p.lost(l, how)
}

// exited is told that the process of an adopted trainer is gone. How it ended is known to whoever reaped it.
func (p *plainRun) exited(string, int) {
	if x := p.proc; x != nil && !x.over && !x.trainer.own && !membership.Alive(x.PID, x.Start) {
		p.awaitStatus(x)
	}
}

// tick follows the trainer's uptime.
func (p *plainRun) tick(now time.Time) {
	if x := p.proc; x != nil && !x.over && !p.steady && now.Sub(x.started) >= plainSteady {
		p.steady = true
		p.d.restart.starts = 0
	}
	p.exited("", -1) // it may have ended before it was watched
	p.reportFormed()
}

// adopt takes over the trainer that the last daemon of this life started, if it started one.
func (p *plainRun) adopt(l *life) {
	d := p.d
	_ = readJSON(offerPath(d.paths, d.cfg.Index), &p.offered) // none: rank 0 was never here
	r, ok := readPlainRecord(d.paths, d.cfg.Index, l.who)
	if !ok {
		return
	}
	x := &plainProcess{life: l, plainRecord: r, started: time.Now()}
	p.proc = x
	if x.PID == 0 { // the daemon ended while it started it: whether it did is for the kernel to say
		for _, t := range append(findByToken(x.Token), findWarm(d.paths, x.Token)...) {
			t.kill()
			t.gone(d.ctx, time.Second)
		}
	}
	if x.over = x.PID == 0 || x.Exit != nil; x.over {
		return // what it means follows from the generation, once that is known
	}
	x.trainer = trainerProcess{system: d.paths.system, pid: x.PID, start: x.Start}
	p.adoptRing(x)
	if membership.Alive(x.PID, x.Start) {
		p.show(x)
	} else {
		p.awaitStatus(x)
	}
}

// awaitStatus waits a moment for the status of a trainer that was not this daemon's child, which run leaves when it reaps it.
func (p *plainRun) awaitStatus(x *plainProcess) {
	if x.awaited {
		return
	}
	x.awaited = true
	d := p.d
	d.ends.Go(func() {
		code, how := -1, "its process has ended and nobody knows how"
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && d.ctx.Err() == nil; {
			if c, ok := readPlainExit(d.paths, d.cfg.Index, x.Token); ok {
				code, how = c, fmt.Sprintf("exited with status %d", c)
				break
			}
			select {
			case <-time.After(20 * time.Millisecond): // a file appears: nothing signals it
			case <-d.ctx.Done():
			}
		}
		d.post(func() { p.ended(x, how, code) })
	})
}

// later runs f in the loop, after what runs there now.
func (d *Daemon) later(f func()) { d.ends.Go(func() { d.post(f) }) }

// gone waits until nothing of the process runs, at most for the given time.
func (t *trainerProcess) gone(ctx context.Context, wait time.Duration) bool {
	for end := time.Now().Add(wait); t.alive(); {
		if ctx.Err() != nil || !time.Now().Before(end) {
			return false
		}
		select {
		case <-time.After(5 * time.Millisecond): // an adopted trainer's end is not waited for by wait(2)
		case <-ctx.Done():
		}
	}
	return true
}
