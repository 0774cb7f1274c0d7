// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"

	"phalanx"
	"phalanx/elastic"
)

// after is the world in which an event has happened.
func (x *explorer) after(w *world, e event) *world {
	c := *w
	d := &doing{x: x, world: &c}
	d.do(e)
	d.refresh()
	return d.world
}

func (d *doing) do(e event) {
	i := int(e.member)
	if e.fault() {
		d.faults++
	}
	if e.kind >= doResize && e.kind <= doQuit && e.kind != doResume {
		d.wishes++
	}
	switch e.kind {
	case doRead:
		d.read(i)
		d.settle(i)
	case doForm:
		d.form(i)
	case doLeave:
		d.leave(i)
	case doHear:
		o, step := int(e.arg>>4), phalanx.Step(e.arg&15)
		log := d.lives[i].machine.Log()
		if v := d.ballot(o, log.World.Generation, step); v != nil {
			d.step(i, elastic.PeerVoted{Rank: log.World.SeatOf(d.x.names[o]).Rank, Vote: *v})
		}
	case doHearAll:
		d.on(i)
		d.each(i, phalanx.Step(e.arg), func(r phalanx.Rank, v elastic.Vote) { d.step(i, elastic.PeerVoted{Rank: r, Vote: v}) })
	case doApply:
		d.apply(i)
	case doApplied:
		d.finish(i)
	case doHeal:
		d.heal(i)
		if !d.x.Heals {
			d.healed(i)
		}
	case doHealed:
		d.healed(i)
	case doCompute, doNotOK, doFlip:
		l := d.on(i)
		l.notOK, l.flip = e.kind == doNotOK, e.kind == doFlip
		d.compute(i)
	case doInsist:
		l := d.on(i)
		l.trainer.Request.OK = false
		d.see(i)
	case doAsk:
		d.step(i, elastic.SealAsked{Generation: d.state().World.Generation})
	case doSeal:
		d.seal(i)
	case doStart:
		d.start(i)
		return
	case doRestart:
		d.restart(i)
	case doRenew:
		d.on(i).expired = false
		d.step(i, elastic.Lease{Valid: true})
	case doLead:
		d.commit(d.plan(d.x.ordinary(e.arg)))
	case doLeadAll:
		d.lead(d.everybody(phalanx.Step(e.arg)))
	case doDraft:
		v := d.x.ordinary(e.arg)
		d.drafts = append(slices.Clip(d.drafts), d.x.draft(d.draftName(), d.plan(v).Command))
	case doCommit:
		c := d.drafts[e.arg].command
		d.drafts = slices.Delete(slices.Clone(d.drafts), int(e.arg), int(e.arg)+1)
		d.append(c)
	case doPublish:
		d.publish()
	case doReach:
		if c, ok := d.level(int(e.arg)); ok {
			d.reached++
			d.append(c)
		}
	case doResize:
		d.append(elastic.Resize{Want: int(e.arg)})
	case doDrain:
		d.append(elastic.Drain{Member: d.x.names[i], Why: "asked by an operator"})
	case doQuarantine:
		d.append(elastic.Quarantine{Member: d.x.names[i], Evidence: phalanx.Evidence{Kind: phalanx.Asked, About: d.lives[i].me, Source: d.x.names[i]}})
	case doLift:
		d.append(elastic.Lift{Member: d.x.names[i], Why: "it was tested"})
	case doStop:
		d.append(elastic.Halt{Reason: elastic.HaltReason{Kind: elastic.StoppedByOperator, Words: "an operator asked for it"}})
	case doResume:
		d.append(elastic.Resume{})
	case doRewind:
		d.append(d.rewind())
	case doQuit:
		d.on(i).quit = true
	case doKill:
		d.stop(i)
	case doLose:
		l := d.on(i)
		l.lost, l.machine, l.trainer, l.history, l.mixed, l.torn = true, nil, elastic.Trainer{}, [maxSteps + 1]lab{}, false, false
		l.page, l.heal, l.forming, l.leaving = elastic.Page{}, nil, phalanx.Generation{}, phalanx.Generation{}
	case doKillDaemon:
		l := d.on(i)
		l.machine, l.heal, l.forming, l.leaving = nil, nil, phalanx.Generation{}, phalanx.Generation{}
		l.evidence = nil // it was in its memory
	case doExpire:
		d.on(i).expired = true
		d.step(i, elastic.Lease{Valid: false})
	case doBreak:
		d.breakHeal(i)
	}
	d.settle(i)
}

func (d *doing) apply(i int) {
	l := d.on(i)
	l.trainer.Applying = l.page.Told.Step
	d.see(i)
	if !d.x.Fine {
		d.finish(i)
	}
}

func (d *doing) finish(i int) {
	l := d.on(i)
	g := l.trainer.Gradient
	made := phalanx.Label{Step: g.Step, Generation: g.Generation, Digest: g.Digest, Coordinate: g.Coordinate}
	d.applied(i, made)
	l.trainer.Label = made
	l.done = made.Step == d.x.spec.LastStep
	d.see(i)
}

func (d *doing) heal(i int) {
	l := d.on(i)
	l.trainer = elastic.Trainer{Possession: l.trainer.Torn(), Healed: l.trainer.Healed}
	l.mixed, l.torn = true, true
	d.see(i)
}

func (d *doing) healed(i int) {
	l := d.on(i)
	h := l.heal
	o := d.source(i)
	if o == -2 {
		return // what was begun has lost its source
	}
	l.history, l.mixed, l.torn = [maxSteps + 1]lab{}, false, false
	switch {
	case o >= 0:
		l.history, l.mixed = d.lives[o].history, d.lives[o].mixed
	case h.Source.Kind == elastic.FromStore:
		for k := range d.stored {
			if d.stored[k].Commit == h.Source.Commit {
				l.history = d.stored[k].history[h.Label.Coordinate]
			}
		}
	}
	l.trainer = elastic.Trainer{Possession: elastic.Possession{Trainer: true, Holds: true, Label: h.Label, Applying: h.Label.Step},
		Healed: elastic.HealResult{Generation: h.Generation, OK: true}}
	l.heal = nil
	l.done = h.Label.Step == d.x.spec.LastStep
	d.see(i)
}

func (d *doing) breakHeal(i int) {
	l := d.on(i)
	g := l.heal.Generation
	l.heal = nil
	d.step(i, elastic.HealBroken{Generation: g, Why: "no source answers"})
}

// compute lets a trainer make the next gradient and ask for its vote.
func (d *doing) compute(i int) {
	l := d.on(i)
	seat, g := l.machine.Seat(), l.machine.Log().World.Generation
	n := l.trainer.Label.Step + 1
	r := elastic.Vote{Generation: g, Step: n, OK: !l.notOK}
	if r.OK {
		r.Digest = phalanx.Digest{1, 1}
		if l.flip {
			r.Digest = phalanx.Digest{2, 1}
		}
		l.trainer.Gradient = elastic.Gradient{Generation: g, Step: n, Digest: r.Digest, Coordinate: seat.Coordinate}
	}
	l.trainer.Request = r
	l.notOK, l.flip = false, false
	d.see(i)
}

// seal delivers the ask of the present round.
func (d *doing) seal(i int) {
	d.on(i).asked = true
	d.step(i, elastic.SealAsked{Generation: d.state().World.Generation, Boundary: d.round.Boundary})
}

// lead lets the leader that knows all do one thing. It reports whether anything came of it.
func (d *doing) lead(v view) bool {
	p := d.plan(v)
	switch {
	case p.wrong != "" || p.next != nil:
		return d.commit(p)
	case p.Ask != nil:
		r := elastic.Round{Asked: true, Planned: p.Ask.Planned, Boundary: p.Ask.Boundary}
		if d.round == r {
			return false
		}
		d.round = r
		for i, l := range d.lives {
			if l != nil && l.asked {
				d.on(i).asked = false
			}
		}
		return true
	}
	return false
}

// rewind is an operator's: to the newest checkpoint, with the present world, resting on nobody's seal.
func (d *doing) rewind() elastic.Rewind {
	now, p := d.state(), &d.stored[len(d.stored)-1].Published
	floor := elastic.Floor{Step: p.Step, Labels: p.Labels}
	world := now.World.Clone()
	world.Generation = now.NextGeneration(floor)
	return elastic.Rewind{FormGeneration: elastic.FormGeneration{Base: now.World.Generation, World: world, Floor: floor,
		Source: elastic.Source{Kind: elastic.FromStore, Commit: p.Commit}, Cause: "an operator asked for it"}, Branch: now.Branch + 1}
}

func (d *doing) publish() {
	if s, ok := d.whole(); ok {
		d.stored = append(slices.Clip(d.stored), s)
		d.append(elastic.PublishCheckpoint{Published: s.Published})
	}
}

// level is what a leader says when the newest whole state of living trainers is staged.
func (d *doing) level(i int) (elastic.ReachLevel, bool) {
	s, ok := d.whole()
	return elastic.ReachLevel{Level: elastic.Levels[i], Reached: elastic.Reached{Step: s.Step, Generation: s.Generation}}, ok
}

// draft is an entry that is proposed later.
func (x *explorer) draft(name string, c elastic.Command) *draft {
	dr := &draft{name: name, command: c}
	f, _ := formation(c)
	for _, order := range x.orders {
		b := x.buffer()
		_, rewind := c.(elastic.Rewind)
		if rewind {
			b = append(b, 1)
		}
		b = elastic.AppendLabel(b, phalanx.Label{Step: f.Floor.Step, Generation: f.Base})
		for _, l := range f.Floor.Labels {
			b = elastic.AppendLabel(b, l)
		}
		b = append(append(b, f.Source.Kind...), byte(f.Source.Commit))
		for _, k := range order {
			id := x.names[k]
			seat := f.World.SeatOf(id)
			flags := byte(0)
			if seat != nil {
				flags = byte(seat.Incarnation)<<2 | 2
				if x.Group > 1 {
					b = append(b, byte(seat.Rank))
				}
			}
			if slices.Contains(f.Source.Holders, id) {
				flags |= 1
			}
			for _, s := range f.Seals {
				if s.Member == id {
					flags |= 0x80
				}
			}
			b = append(b, flags)
		}
		names := make([]phalanx.MemberID, len(order))
		for n, k := range order {
			names[n] = x.names[k]
		}
		b = elastic.AppendEvidence(b, f.Evidence, names)
		for _, e := range f.Evictions {
			b = elastic.AppendEvidence(b, []phalanx.Evidence{{Kind: e.Evidence.Kind, About: e.Incarnate}}, names)
		}
		dr.key = append(dr.key, sum(b))
		x.release(b)
	}
	return dr
}
