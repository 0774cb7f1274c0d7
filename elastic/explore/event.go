// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"math/bits"

	"phalanx"
	"phalanx/elastic"
)

// kind is what happens in an event.
type kind uint8

const (
	doRead kind = iota
	doForm
	doLeave
	doHear // one vote: of member arg>>4, step arg&15
	doHearAll
	doApply
	doApplied
	doHeal
	doHealed
	doCompute
	doAsk
	doSeal
	doStart
	doRestart
	doRenew
	doLead    // of those in arg, an ordinary round
	doLeadAll // with everybody, the round as it is; arg is the boundary
	doDraft
	doCommit
	doPublish
	doReach  // the level elastic.Levels[arg]
	doResize // to arg
	doDrain
	doQuarantine
	doLift
	doStop
	doResume
	doRewind
	doQuit
	// Faults.
	doNotOK
	doFlip
	doInsist
	doKill
	doLose
	doKillDaemon
	doExpire
	doBreak
)

// event is one thing that happens to a member, or to the whole.
type event struct {
	kind   kind
	member uint8
	arg    uint8
}

func (e event) fault() bool { return e.kind >= doNotOK }

// blind in arg of doLead and doDraft: the leader does not know what became of the members since they answered.
const blind = 1 << 7

// events appends everything that may happen.
func (d *doing) events(out []event) []event {
	x := d.x
	more := int(d.formed) < x.Generations
	faults := int(d.faults) < x.Faults
	now := d.state()
	for i := range x.Members {
		l := d.lives[i]
		add := func(k kind, arg int) { out = append(out, event{k, uint8(i), uint8(arg)}) }
		if l == nil {
			if more {
				add(doStart, 0)
			}
			continue
		}
		if l.lost || l.fenced || l.ended {
			if more {
				add(doStart, 0)
			}
			continue
		}
		if l.machine == nil {
			add(doRestart, 0)
		} else {
			if l.behind(d.head) {
				add(doRead, 0)
			}
			if !l.forming.IsZero() {
				add(doForm, 0)
			}
			if !l.leaving.IsZero() {
				add(doLeave, 0)
			}
			if l.expired {
				add(doRenew, 0)
			}
			out = d.hearing(i, out)
			if canHeal(l) && (x.Heals || d.source(i) >= -1) {
				add(doHeal, 0)
			}
			if x.Heals && l.heal != nil && l.torn && d.source(i) >= -1 {
				add(doHealed, 0)
			}
			if canCompute(l, x.Steps) {
				add(doCompute, 0)
				if x.Refusals && faults {
					add(doNotOK, 0)
					add(doFlip, 0)
				}
			}
			if now.World.Has(l.me) && more {
				if l.answer == nil || l.machine.State() == elastic.LocalSealing && l.answer.Possession != l.trainer.Possession {
					add(doAsk, 0)
				}
				if d.round.Planned && !l.asked && l.answer == nil {
					add(doSeal, 0)
				}
			}
		}
		if canApply(l) {
			add(doApply, 0)
		}
		if l.trainer.Holds && moving(&l.trainer) {
			add(doApplied, 0)
		}
		if !faults {
			continue
		}
		if x.Deaths {
			if l.trainer.Trainer {
				add(doKill, 0)
			}
			add(doLose, 0)
		}
		if x.Daemons && l.machine != nil {
			add(doKillDaemon, 0)
		}
		if x.Leases && l.machine != nil && !l.expired {
			add(doExpire, 0)
		}
		if x.Breaks && l.heal != nil && l.up() {
			add(doBreak, 0)
		}
		if r := l.trainer.Request; x.Insists && l.up() && r.OK && r.Step == l.trainer.Label.Step+1 && r.Generation == l.machine.Log().World.Generation {
			add(doInsist, 0)
		}
	}
	return d.leading(out, more)
}

// leading appends what leaders may do.
func (d *doing) leading(out []event, more bool) []event {
	x := d.x
	now := d.state()
	answered, outside, died := uint8(0), uint8(0), uint8(0)
	for i, l := range d.lives {
		switch {
		case l == nil:
		case now.World.Has(l.me):
			if l.answer != nil {
				answered |= 1 << i
				if l.machine == nil || l.lost || l.answer.Possession.Trainer && !l.trainer.Trainer || l.expired {
					died |= 1 << i
				}
			}
		case l.up() && !l.expired:
			outside |= 1 << i
		}
	}
	lead := func(arg uint8) {
		p := d.plan(x.ordinary(arg))
		if _, forms := formation(p.Command); forms && (p.next != nil || p.wrong != "") {
			out = append(out, event{doLead, 0, arg})
			if len(d.drafts) < x.Late {
				out = append(out, event{doDraft, 0, arg})
			}
		}
	}
	if more {
		for some := answered | outside; ; some-- {
			if some&^(answered|outside) == 0 {
				if some&answered&died != 0 {
					lead(some | blind)
				}
				lead(some)
			}
			if some == 0 {
				break
			}
		}
	}
	if p := d.plan(d.everybody(0)); p.Ask == nil {
		if _, forms := formation(p.Command); p.wrong != "" || p.next != nil && (more || !forms) {
			out = append(out, event{doLeadAll, 0, 0})
		}
	} else if x.Planned && p.Ask.Planned && more && !d.round.Asked {
		for b := now.Floor.Step + 1; b <= max(x.Steps, now.Floor.Step+1); b++ {
			out = append(out, event{doLeadAll, 0, uint8(b)})
		}
	}
	if ends(now) && now.Phase == elastic.Halted {
		out = append(out, event{doResume, 0, 0})
	}
	for k := range d.drafts {
		out = append(out, event{doCommit, 0, uint8(k)})
	}
	if len(d.stored) < x.Publish {
		if _, ok := d.whole(); ok {
			out = append(out, event{doPublish, 0, 0})
		}
	}
	if now.Phase != elastic.Finished && int(d.reached) < x.Reach {
		for i := range elastic.Levels {
			if c, ok := d.level(i); ok {
				if next, wrong := x.entered(d.head.state, c); next != nil || wrong != "" {
					out = append(out, event{doReach, 0, uint8(i)})
				}
			}
		}
	}
	if int(d.wishes) < x.Wishes {
		return d.wishing(out)
	}
	return out
}

// wishing appends what an operator may ask for. A resume ends what a stop began, at no cost.
func (d *doing) wishing(out []event) []event {
	x, now := d.x, d.state()
	if x.Wish&Stops != 0 && now.Spec != nil {
		out = append(out, event{doStop, 0, 0})
	}
	if now.Phase == elastic.Finished {
		return out
	}
	if x.Wish&Rewinds != 0 && len(d.stored) > 0 && now.World.Size() > 0 && int(d.formed) < x.Generations {
		if next, wrong := x.entered(d.head.state, d.rewind()); next != nil || wrong != "" {
			out = append(out, event{doRewind, 0, 0})
		}
	}
	for want := 1; want <= x.Members && x.Wish&Resizes != 0 && now.Spec != nil; want++ {
		if want != now.Policy.Want {
			out = append(out, event{doResize, 0, uint8(want)})
		}
	}
	for i, l := range d.lives {
		if l == nil {
			continue
		}
		m := now.Member(l.me.Member)
		if m == nil {
			continue
		}
		if x.Wish&Drains != 0 && m.State != elastic.Gone && m.State != elastic.Draining {
			out = append(out, event{doDrain, uint8(i), 0})
		}
		if x.Wish&Quarantines != 0 && !m.Quarantine {
			out = append(out, event{doQuarantine, uint8(i), 0})
		}
		if x.Wish&Quarantines != 0 && m.Quarantine {
			out = append(out, event{doLift, uint8(i), 0})
		}
		if x.Wish&Leaves != 0 && !l.quit && l.up() {
			out = append(out, event{doQuit, uint8(i), 0})
		}
	}
	return out
}

// formation returns the part of a command that makes a new world.
func formation(c elastic.Command) (elastic.FormGeneration, bool) {
	switch c := c.(type) {
	case elastic.FormGeneration:
		return c, true
	case elastic.Rewind:
		return c.FormGeneration, true
	}
	return elastic.FormGeneration{}, false
}

// ordinary is the view of a leader that has the answers of some, and asked for no boundary.
func (x *explorer) ordinary(arg uint8) view {
	return view{hears: arg &^ blind, round: elastic.Round{Asked: true}, blind: arg&blind != 0}
}

// everybody is the view of a leader that hears all.
func (d *doing) everybody(boundary phalanx.Step) view {
	return view{hears: 1<<maxMembers - 1, round: d.round, boundary: boundary}
}

// hearing appends the votes that a member may hear. One that it knows, or that is older than one that it knows, says nothing.
func (d *doing) hearing(i int, out []event) []event {
	l := d.lives[i]
	log := l.machine.Log()
	if l.machine.Seat() == nil && !d.x.Fine {
		return out
	}
	g := log.World.Generation
	for o := range d.x.Members {
		if o == i {
			continue
		}
		for _, v := range d.ballots[o] {
			if v.Generation != g {
				continue
			}
			seat := log.World.SeatOf(d.x.names[o])
			if seat == nil || l.machine.Heard(seat.Rank).Step >= v.Step {
				continue
			}
			if d.x.Fine {
				out = append(out, event{doHear, uint8(i), uint8(o<<4) | uint8(v.Step)})
				continue
			}
			e := event{doHearAll, uint8(i), uint8(v.Step)}
			seen := false
			for k := len(out) - 1; k >= 0 && out[k].kind == doHearAll && out[k].member == uint8(i); k-- {
				seen = seen || out[k] == e
			}
			if !seen && d.matters(i, v.Step) {
				out = append(out, e)
			}
		}
	}
	return out
}

// matters reports whether hearing every vote up to a step leads to anything: a set that is not whole says nothing.
func (d *doing) matters(i int, step phalanx.Step) bool {
	m := d.lives[i].machine.Clone()
	acts := 0
	d.each(i, step, func(r phalanx.Rank, v elastic.Vote) { acts += len(m.Step(elastic.PeerVoted{Rank: r, Vote: v})) })
	return acts > 0
}

// each calls f with every vote of others up to a step that a member has not heard.
func (d *doing) each(i int, step phalanx.Step, f func(phalanx.Rank, elastic.Vote)) {
	l := d.lives[i]
	log := l.machine.Log()
	for o := range d.x.Members {
		seat := log.World.SeatOf(d.x.names[o])
		if o == i || seat == nil {
			continue
		}
		for _, v := range d.ballots[o] {
			if v.Generation == log.World.Generation && v.Step <= step && v.Step > l.machine.Heard(seat.Rank).Step {
				f(seat.Rank, v)
			}
		}
	}
}

func canHeal(l *life) bool {
	t := &l.trainer
	return t.Trainer && t.Holds && !l.torn && l.heal != nil && !moving(t) && l.seat == elastic.SeatHeal
}

func canApply(l *life) bool {
	t, c := &l.trainer, l.page.Told
	return t.Trainer && t.Holds && !moving(t) && c.Step > 0 && c.Step == t.Label.Step+1 && t.Gradient.Step == c.Step && t.Gradient.Generation == c.Generation
}

// canCompute: the trainer waits in its seat of the generation that its daemon has read, and has not asked for this vote.
func canCompute(l *life, limit phalanx.Step) bool {
	t := &l.trainer
	if !l.up() || l.done || !t.Trainer || !t.Holds || moving(t) || l.seat != elastic.SeatRun || t.Label.Step >= limit {
		return false
	}
	g := l.machine.Log().World.Generation
	return l.seatIn == g && l.machine.Seat() != nil && !canApply(l) && !(t.Request.Generation == g && t.Request.Step == t.Label.Step+1)
}

// source is the member from which another may read the state that it heals to now, −1 for another source, −2 for none.
func (d *doing) source(i int) int {
	h := d.lives[i].heal
	switch h.Source.Kind {
	case elastic.FromSeed, elastic.FromWarmStart:
		return -1
	case elastic.FromStore:
		for k := range d.stored {
			if d.stored[k].Commit == h.Source.Commit {
				return -1
			}
		}
	case elastic.FromLive:
		for _, id := range h.Source.Holders {
			// A donor serves the generation that it has read, and no other.
			o := d.index(id)
			if x := d.lives[o]; o != i && x.up() && x.machine.Log().World.Generation == h.Generation && standsAt(&x.trainer, h.Label) {
				return o
			}
		}
	case elastic.FromSlab:
	}
	return -2
}

// whole is the newest state that living trainers hold whole and that is newer than what was published.
func (d *doing) whole() (stored, bool) {
	now := d.state()
	var best stored
	for _, l := range d.lives {
		if l == nil || !standsAt(&l.trainer, l.trainer.Label) || l.trainer.Label.Step <= best.Step || !now.OfLineage(l.trainer.Label) {
			continue
		}
		at := l.trainer.Label
		x := stored{Published: elastic.Published{Step: at.Step, Generation: at.Generation, Branch: now.Branch, Labels: make([]phalanx.Label, d.x.Group), Commit: uint64(len(d.stored) + 1)}}
		found := 0
		for _, o := range d.lives {
			if o == nil || !o.trainer.Trainer {
				continue
			}
			if y := o.trainer.Label; standsAt(&o.trainer, y) && y.Step == at.Step && y.Generation == at.Generation && x.Labels[y.Coordinate].Step == 0 {
				x.Labels[y.Coordinate], x.history[y.Coordinate] = y, o.history
				found++
			}
		}
		if found == d.x.Group {
			best = x
		}
	}
	if n := len(d.stored); best.Step == 0 || n > 0 && now.Phase != elastic.Finished && d.stored[n-1].Step >= best.Step && now.OfLineage(d.stored[n-1].Labels[0]) {
		return stored{}, false
	}
	return best, true
}

func (x *explorer) list(mask uint8) string {
	text := ""
	for mask &^= blind; mask != 0; mask &= mask - 1 {
		text += " " + string(x.names[bits.TrailingZeros8(mask)])
	}
	return text
}

func (e event) String() string { return fmt.Sprintf("%d of %d with %d", e.kind, e.member, e.arg) }
