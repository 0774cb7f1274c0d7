// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// trainerKey names the own trainer in ProcWatch.
type trainerKey struct{ who phalanx.Incarnate }

// ensureTrainer starts the trainer of the present life if it has none and may have one, or begins the next life once an
// entry has removed this one. A trainer that died is never replaced inside its incarnation.
func (d *Daemon) ensureTrainer() {
	l := d.life
	if l == nil || d.failed != "" || d.outcome != nil || d.starting || d.stopWhy != "" || d.leaving {
		return
	}
	if d.state.Seq == 0 && !d.waitLog.IsZero() {
		return // the log of an earlier start may say that the job is done, or count on this life
	}
	if l.died != nil || l.machine == nil {
		m := d.state.Member(d.me())
		if m != nil && m.Incarnation == l.who.Incarnation && m.State != elastic.Gone {
			return // the log still counts on this life: its promises are asked for
		}
		if l.died != nil {
			d.lastEnd = "; the last one " + l.died.Detail
		}
		if err := d.newIncarnation(); err != nil {
			d.hinder(err)
			return
		}
		l = d.life
	}
	if l.trainer != nil || l.helloPID != 0 || d.plain != nil && d.plain.ready == l {
		return
	}
	next, wait, err := d.restart.Next()
	if err != nil {
		d.giveUp(err.Error() + d.lastEnd + d.neverHeard())
		return
	}
	d.restart, d.starting = next, true
	before, env := d.before, d.trainerEnv()
	d.ends.Go(func() {
		select {
		case <-time.After(wait):
		case <-d.ctx.Done():
			return
		}
		if !d.awaitEnd(before) {
			return
		}
		bad := healthCheck(d.ctx, d.cfg.Health, time.Minute)
		var ahead *trainerProcess
		if bad == nil && d.plain == nil {
			ahead = d.takeWarm(l.who, "", env, d.endOf(l.who))
		}
		d.post(func() { d.launch(l, bad, ahead) })
		if d.ctx.Err() != nil {
			ahead.kill() // the daemon ends, and nobody will look at it
		}
	})
}

// neverHeard says what may be wrong with trainers of which none has ever said hello.
func (d *Daemon) neverHeard() string {
	if d.heard || d.plain != nil {
		return ""
	}
	return "; if it does not use the Phalanx client, run it with --plain"
}

// awaitEnd waits until a trainer that was killed has let go of its memory and devices, which the next one may need. It returns
// false when the daemon ends first.
func (d *Daemon) awaitEnd(t *trainerProcess) bool {
	if t == nil {
		return true
	}
	again := time.NewTicker(5 * time.Millisecond) // it may be nobody's child here, and its pidfd went with its life
	defer again.Stop()
	for began, said := time.Now(), false; t.alive(); {
		if !said && time.Since(began) > stopDeadline {
			said = true
			d.log.Warn("the last trainer was killed and has not ended; the next one is started when it has", "pid", t.pid)
		}
		select {
		case <-again.C:
		case <-d.ctx.Done():
			return false
		}
	}
	return true
}

// endOf returns what is called at the end of the trainer of a life.
func (d *Daemon) endOf(who phalanx.Incarnate) func(how string, code int) {
	return func(how string, code int) { d.post(func() { d.trainerEnded(who, how, code, time.Now()) }) }
}

// launch starts the trainer, or goes on with one that was started ahead.
func (d *Daemon) launch(l *life, bad error, t *trainerProcess) {
	d.starting = false
	if l != d.life || l.trainer != nil || d.outcome != nil {
		t.kill()
		return
	}
	if bad != nil {
		d.giveUp(bad.Error())
		return
	}
	if d.plain != nil {
		d.plain.beginLife(l) // its trainer starts with a generation
		return
	}
	who := l.who
	if t == nil {
		var err error
		if t, err = startTrainer(&d.cfg, d.paths, who, d.trainerEnv(), d.endOf(who)); err != nil {
			d.restart = d.restart.Unstarted()
			d.hinder(err)
			return
		}
	}
	failpoint.Here("trainer-started")
	d.unhinder()
	d.meters.starts.Inc()
	l.trainer, l.startedAt, l.lastMove = t, time.Now(), time.Now()
	d.log.Info("trainer started", "incarnation", uint64(who.Incarnation), "pid", t.pid)
}

// trainerEnv is torchrun's environment as far as it is known before the first world, and the way to the daemon.
func (d *Daemon) trainerEnv() []string {
	i := strconv.Itoa(d.cfg.Index)
	return append([]string{
		"PHALANX_SOCKET=" + d.paths.Socket(d.cfg.Index), "PHALANX_JOB=" + d.cfg.Job, "PHALANX_MEMBER=" + string(d.me()),
		"LOCAL_RANK=" + i, "RANK=" + i, "LOCAL_WORLD_SIZE=" + strconv.Itoa(d.cfg.LocalSize), "WORLD_SIZE=" + strconv.Itoa(d.cfg.Policy.Want),
		"TORCHELASTIC_RUN_ID=" + d.cfg.Job, "TORCHELASTIC_ERROR_FILE=" + d.paths.TrainerError(d.life.who), "ROLE_NAME=" + cmp.Or(d.cfg.Role, "default"),
	}, StartEnv(false, d.cfg.LocalSize)...)
}

// StartEnv is the part of a trainer's environment that libraries read when they are loaded: also one that is started ahead has it
// from its start. With the step protocol every trainer computes the same bits: MKL is held to one
// path of code that does not look at where memory lies: processors with AVX-512 and without give the same bits, as COMPATIBLE does at half the
// speed for processors of any age.
func StartEnv(plain bool, localSize int) []string {
	if !plain {
		return []string{"OMP_NUM_THREADS=1", "MKL_CBWR=AVX2,STRICT", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1", "CUBLAS_WORKSPACE_CONFIG=:4096:8"}
	}
	var env []string
	if _, set := os.LookupEnv("TORCH_NCCL_ASYNC_ERROR_HANDLING"); !set {
		env = append(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1")
	}
	if _, set := os.LookupEnv("OMP_NUM_THREADS"); !set && localSize > 1 {
		env = append(env, "OMP_NUM_THREADS=1") // as torchrun: several trainers share the cores
	}
	return env
}

// giveUp keeps the member out with a reason, and failAs with the code that its outcome has if the job ends by it. The daemon stays: it may vote in Raft and its page keeps its promises.
func (d *Daemon) giveUp(why string) { d.failAs(CodeFailed, why) }

func (d *Daemon) failAs(code int, why string) {
	d.failed, d.failedAs, d.dirty = why, code, true
	d.log.Error("the trainer is not started any more", "reason", why)
}

// hello answers the trainer's one request over the socket.
func (d *Daemon) hello(h *wire.Hello) (*wire.Welcome, *wire.Error) {
	l := d.life
	switch {
	case d.plain != nil:
		return d.plain.hello(h)
	case h.Plain:
		return nil, d.wrongKind("this job has a step protocol, and its trainer wants collectives alone", "run it with --plain")
	case l == nil || l.died != nil:
		return nil, &wire.Error{Message: "this incarnation has ended", Hint: "exit; a new trainer is started", Code: wire.CodeFenced}
	case l.helloPID != 0 && !d.paths.system.Alive(l.helloPID, l.helloStart): // its end is about to be heard of
		return nil, &wire.Error{Message: "the trainer of this incarnation has ended", Hint: "exit; a new trainer is started", Code: wire.CodeFenced}
	case l.helloPID != 0:
		return nil, &wire.Error{Message: fmt.Sprintf("member %s has a trainer, pid %d", d.me(), l.helloPID), Hint: "one trainer per daemon", Code: wire.CodeBusy}
	case h.ProtocolMax < wire.Protocol || h.ProtocolMin > wire.Protocol:
		return nil, &wire.Error{Message: fmt.Sprintf("client speaks protocol %d to %d, the daemon %d", h.ProtocolMin, h.ProtocolMax, wire.Protocol), Hint: "use client and daemon of one release", Code: wire.CodeProtocol}
	}
	if err := h.Spec.Validate(); err != nil {
		return nil, d.refuse(err.Error())
	}
	if why := otherTraining(d.state, &h.Spec, h.Coordinate, h.State); why != "" {
		return nil, d.refuse(why)
	}
	if err := d.memory.admit(l.needs(h)); err != nil {
		d.failAs(CodeUsage, err.Error())
		return nil, &wire.Error{Message: err.Error(), Hint: "raise --max-host-bytes, or run fewer members on each host", Code: wire.CodeNoSpace}
	}
	if err := l.outfit(d.paths, d.cfg.Index, h); err != nil {
		return nil, &wire.Error{Message: err.Error(), Hint: "free shared memory", Code: wire.CodeNoSpace}
	}
	d.addSecondSlab(l, h)
	failpoint.Here("hello-heard")
	l.identify(d.paths.system, d.cfg.Index, false)
	failpoint.Here("hello-written")
	if err := d.procs.Watch(h.PID, h.Start, trainerKey{l.who}); err != nil {
		d.log.Warn("the trainer is not watched by pidfd", "error", err)
	}
	l.lastMove, d.heard = time.Now(), true
	d.scan()
	d.dirty = true
	n := l.who.Incarnation
	slabs := l.slabPaths(d.paths, d.cfg.Index)
	welcome := &wire.Welcome{
		Member: d.me(), Incarnation: n, Page: d.paths.Shared(d.cfg.Index, n, "page"), Bells: d.paths.Bells(),
		DaemonBell: 2 * d.cfg.Index, TrainerBell: 2*d.cfg.Index + 1, Segment: d.paths.Shared(d.cfg.Index, n, "seg"), SegmentBytes: int64(len(l.segment.Bytes())),
		Slab: slabs[0], SlabBytes: l.slabBytes(), Protocol: wire.Protocol, Spec: h.Spec,
	}
	if len(slabs) > 1 {
		welcome.Slabs = slabs
	}
	return welcome, nil
}

// otherTraining says why a trainer cannot take part in the job of a state, "" when it can.
func otherTraining(s *elastic.State, spec *phalanx.JobSpec, pin phalanx.Pin, layout []phalanx.TensorInfo) string {
	if !pin.Valid(spec.GroupSize) {
		return fmt.Sprintf("the trainer asks for %s in groups of %d", pin, spec.GroupSize)
	}
	if s.Spec == nil {
		return ""
	}
	if diff := s.Spec.Diff(*spec); diff != "" {
		return "the trainer asks for another job: " + diff
	}
	if err := s.Register(pin, layout); err != nil {
		return err.Error()
	}
	return ""
}

// ownLayout is the layout of the own trainer's state as the log has it, and until then as its trainer registered it with the daemon
// before; nil when neither is known.
func (d *Daemon) ownLayout() []phalanx.TensorInfo {
	if d.life == nil {
		return nil
	}
	pin := d.life.pin
	if pin == phalanx.AnyPlace { // taken over: only the log says it
		pin = d.state.PinOf(d.life.who)
	}
	layout, known := d.state.LayoutOf(pin.Coordinate())
	if !known {
		return d.life.said
	}
	return layout
}

// knows reports whether a state says what a life's trainer must have registered.
func knows(s *elastic.State, l *life) bool {
	if l == nil || s.Spec == nil {
		return false
	}
	_, known := s.LayoutOf(l.pin.Coordinate())
	return known || s.Pinned() && l.pin == phalanx.AnyPlace
}

// judgeHello looks again at what the trainer registered, once the log has more to compare it with: others may have been heard first.
func (d *Daemon) judgeHello() {
	l := d.life
	if l == nil || l.spec == nil || l.died != nil || l.helloPID == 0 || d.plain != nil || d.failed != "" {
		return
	}
	why := otherTraining(d.state, l.spec, l.pin, l.layout)
	if w := d.state.WarmStart; why == "" && d.state.World.Generation.IsZero() && !w.Equal(d.cfg.WarmStart) {
		why = "this host was started with another --warm-start, or other rules for it, than the one that began the job"
	}
	if why == "" {
		return
	}
	_ = d.refuse(why) // there is no answer to put it into any more
	if l.trainer != nil {
		l.trainer.kill()
	}
}

// wrongKind keeps out a trainer of the other kind of job: no start of it would be one of this kind.
func (d *Daemon) wrongKind(why, hint string) *wire.Error {
	d.failAs(CodeUsage, why+"; "+hint)
	return &wire.Error{Message: why, Hint: hint, Code: wire.CodeProtocol}
}

// refuse keeps a trainer with another job out for good: a restart would not change it.
func (d *Daemon) refuse(why string) *wire.Error {
	d.failAs(CodeUsage, why)
	return &wire.Error{Message: why, Hint: "start it with the job's own arguments, or a new job in another --dir", Code: wire.CodeSpecDiffers}
}

// trainerEnded notes the end of the trainer of a life. It is called by wait(2), by pidfd, or by both.
func (d *Daemon) trainerEnded(who phalanx.Incarnate, how string, code int, at time.Time) {
	l := d.life
	if l == nil || l.who != who || d.plain != nil {
		if d.plain != nil {
			d.plain.exited(how, code)
		}
		return
	}
	if code == 0 {
		how = "exited 0 before the last step"
	}
	if code >= 0 && l.helloPID == 0 {
		how += " before its hello" + d.lastWords(who.Incarnation)
	} else if code > 0 && code < 128 {
		how += d.lastWords(who.Incarnation)
	}
	if l.died != nil {
		if l.died.Detail == "its process has ended" { // its pidfd was faster than wait, which knows how
			l.died.Detail = how
		}
		if code == CodePreempted {
			d.leave("its trainer ended as one that was asked to")
		}
		return
	}
	d.scan() // what it wrote last counts
	if l.finished && d.keepsLast(l) {
		l.trainer = nil
		return
	}
	l.finished = false
	if code == CodePreempted {
		d.leave("its trainer ended as one that was asked to")
	}
	d.noteTrainerDeath(how, at)
	if l.trainer != nil {
		l.trainer.kill() // what it forked goes with it
		d.before, l.trainer = l.trainer, nil
	}
	d.run(l.machine.Step(elastic.Seen{Trainer: l.readTrainer()}))
	l.seen = elastic.Trainer{}
	d.log.Info("trainer ended", "incarnation", uint64(who.Incarnation), "how", how)
	d.dirty = true
	d.ensureTrainer()
}

// noteTrainerDeath writes down why the trainer is gone and which slot it was computing.
func (d *Daemon) noteTrainerDeath(how string, at time.Time) {
	l := d.life
	e := &phalanx.Evidence{Kind: phalanx.TrainerExited, About: l.who, Source: d.me(), UnixNS: at.UnixNano(), Detail: how}
	if w, n := l.page.ReadWork(); n > 0 && w.On && w.TrainerStart == l.helloStart && l.helloStart != 0 {
		e.Working, e.Step, e.Slot = true, w.Step, w.Slot
	}
	l.died = e
	failpoint.Here("trainer-death-seen")
}

// watchTrainer finds stalls and hangs.
func (d *Daemon) watchTrainer(now time.Time) {
	l := d.life
	if l == nil || l.trainer == nil || l.died != nil {
		return
	}
	if l.helloPID == 0 {
		if d.cfg.Start > 0 && now.Sub(l.startedAt) > d.cfg.Start {
			l.trainer.kill()
			d.failAs(CodeTimeout, fmt.Sprintf("the trainer said no hello within %s (--start-timeout); if it does not use the Phalanx client, run it with --plain", d.cfg.Start))
		}
		return
	}
	if st, err := d.paths.system.Stat(l.helloPID); err == nil && st.Start == l.helloStart {
		if st.Killed() != 0 { // a trainer without a pulse whose memory takes long to be unmapped
			d.pulseEnded(l, time.Now()) // the tick itself may be older than the kill
			return
		}
		l.stopped = l.stopped.Sample(now, st.State, st.UserTicks+st.SysTicks)
	}
	if l.page.Preempt() != 0 {
		d.leave("the trainer was asked to end by a signal")
	}
	l.moved(now)
}

// moved reads where the trainer is and notes when it has moved. Both are read together: a look at the place alone would take
// a trainer that has just gone on, after a long wait for others, for one that was there all the time.
func (l *life) moved(now time.Time) (p wire.Progress, said bool) {
	p, n := l.page.ReadProgress()
	if n != 0 && (p.Counter != l.progress || l.waits(p.Phase)) {
		l.progress, l.lastMove = p.Counter, now
	}
	return p, n > 0
}

// waits reports whether the trainer can only go on by something that others do. The rest of a phase is its own: reading the
// samples of a step that was begun, or clipping a gradient that was reduced.
func (l *life) waits(phase wire.Phase) bool {
	switch phase {
	case wire.PhaseBegin:
		b, _ := l.page.ReadBegin()
		return b.Waiting
	case wire.PhaseReduce:
		head := l.page.RingHead()
		return head > 0 && l.page.Completion(head) == wire.StatusNone
	case wire.PhaseVote:
		r, _ := l.page.ReadVoteRequest()
		c, _ := l.page.ReadCommit()
		s, _ := l.page.ReadSeat()
		return (c.Step != r.Step || c.Generation != r.Generation) && s.Action == wire.ActionRun && s.Generation == r.Generation
	default:
		return false
	}
}

// patience is how long the trainer may stay where it is. What it announces beside its steps has no deadline of ours.
func (d *Daemon) patience(p wire.Progress, said bool) time.Duration {
	switch {
	case !said:
		return d.cfg.Start // it has said hello and begun nothing
	case p.Phase == wire.PhaseBegin || p.Phase == wire.PhaseCompute || p.Phase == wire.PhaseReduce || p.Phase == wire.PhaseVote || p.Phase == wire.PhaseApply:
		return d.hangDeadline()
	}
	return 0
}

// trainerTrouble is evidence against the living trainer: stopped for longer than a stall may last, or hung.
func (d *Daemon) trainerTrouble(now time.Time) *phalanx.Evidence {
	l := d.life
	if d.plain != nil {
		return d.plain.trouble(now)
	}
	if l == nil || l.died != nil || l.helloPID == 0 || d.life.finished {
		return nil
	}
	e := phalanx.Evidence{About: l.who, Source: d.me(), UnixNS: now.UnixNano()}
	if s := l.stopped.For(now); s > stallAfter {
		e.Kind, e.Detail = phalanx.Stalled, fmt.Sprintf("its trainer has been stopped for %.1f s", s.Seconds())
		return &e
	}
	p, said := l.moved(now)
	if silence, limit := now.Sub(l.lastMove), d.patience(p, said); limit > 0 && silence > limit {
		e.Kind, e.Step, e.Detail = phalanx.Hung, p.Step, fmt.Sprintf("no progress for %.1f s in %s of step %d", silence.Seconds(), p.Phase, p.Step)
		return &e
	}
	return nil
}

// hangDeadline is the stated default until 100 steps are measured, then thirty times the slowest of the newest steps, within
// ten seconds and the default.
func (d *Daemon) hangDeadline() time.Duration {
	if d.steps.count < 100 {
		return d.cfg.Hang
	}
	slowest := slices.Max(d.steps.last[:min(d.steps.count, len(d.steps.last))])
	return min(max(30*slowest, 10*time.Second), d.cfg.Hang)
}
