// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"sync"

	"phalanx"
	"phalanx/elastic"
)

// seenSet is a set of worlds that several goroutines fill.
type seenSet struct {
	parts [64]struct {
		sync.Mutex
		known map[hash]struct{}
	}
}

func newSeenSet() *seenSet {
	s := &seenSet{}
	for i := range s.parts {
		s.parts[i].known = map[hash]struct{}{}
	}
	return s
}

func (s *seenSet) has(h hash) bool {
	p := &s.parts[h[1]%64]
	p.Lock()
	defer p.Unlock()
	_, ok := p.known[h]
	return ok
}

func (s *seenSet) add(h hash) {
	p := &s.parts[h[1]%64]
	p.Lock()
	defer p.Unlock()
	p.known[h] = struct{}{}
}

// progress lets a world go on without further faults, in one order, until its next step is committed. Daemons come back,
// lives that are over are followed by the next ones, and another leader is elected; a planned seal that was begun is also
// gone on with by its own leader. It returns what does not go on, "" when all does. Worlds from which it was shown once are
// remembered.
func (k *keyed) progress(w *world) (wrong string, same bool) {
	if w.round.Planned {
		if why := k.goOn(w, true); why != "" {
			return why, true
		}
	}
	return k.goOn(w, false), false
}

func (k *keyed) goOn(w *world, same bool) string {
	if ends(w.state()) {
		return ""
	}
	c := *w
	d := &doing{x: k.x, world: &c}
	k.target = w.newest() + 1
	d.recover(same)
	var path []hash
	if k.x.Finish {
		k.target = min(k.target, k.x.Steps)
	}
	for range 200 {
		if d.arrived(k.target) {
			break
		}
		d.refresh()
		h := k.key(d.world)
		if k.x.good.has(h) {
			break
		}
		path = append(path, h)
		if d.wrong != "" {
			return "on the way to the next step: " + d.wrong
		}
		if !d.round1(k.target) {
			return fmt.Sprintf("step %d is not committed without further faults: %s", k.target, d.standing())
		}
		if len(path) > 150 {
			return fmt.Sprintf("step %d is not committed, it does not come to rest: %s", k.target, d.standing())
		}
	}
	for _, h := range path {
		k.x.good.add(h)
	}
	return ""
}

// recover ends every fault.
func (d *doing) recover(same bool) {
	d.faults, d.formed, d.drafts = 0, 0, nil
	if !same {
		d.round = elastic.Round{}
	}
	for i, l := range d.lives {
		if l == nil {
			if d.state().World.Generation.IsZero() && i < d.x.Members {
				d.start(i)
			}
			continue
		}
		if m := d.state().Member(l.me.Member); m != nil && m.Quarantine {
			d.append(elastic.Lift{Member: l.me.Member})
		}
		if l.quit {
			d.on(i).quit = false
		}
		if !same && (l.answer != nil || l.asked) {
			l = d.on(i)
			l.answer, l.asked = nil, false // what it told itself it tells again
		}
		if l.expired {
			d.on(i).expired = false
			d.step(i, elastic.Lease{Valid: true})
		}
		switch {
		case l.lost || l.fenced || l.ended || d.unborn(l):
			d.start(i)
		case l.machine == nil:
			d.restart(i)
		}
	}
}

// unborn reports whether a life ended before the log knew it.
func (d *doing) unborn(l *life) bool {
	x := d.state().Member(l.me.Member)
	return !l.trainer.Trainer && (x == nil || x.Incarnation < l.me.Incarnation)
}

// round1 lets every member do what it can, then the leader. It reports whether anything happened.
func (d *doing) round1(target phalanx.Step) bool {
	moved := false
	for i := range d.x.Members {
		moved = d.turn(i, target) || moved
	}
	boundary := d.state().Floor.Step
	for _, l := range d.lives {
		if l.up() && l.page.Vote.Generation == d.state().World.Generation {
			boundary = max(boundary, l.page.Vote.Step)
		}
	}
	boundary += 2
	if d.round.Asked {
		boundary = max(boundary, d.round.Boundary)
	}
	if d.lead(d.everybody(boundary)) || moved {
		return true
	}
	if s, ok := d.whole(); ok && s.Step == d.x.spec.LastStep {
		d.publish()
		return true
	}
	for i, l := range d.lives {
		switch {
		case l.up() && l.heal != nil:
			d.breakHeal(i)
			moved = true
		case l != nil && (l.fenced || l.ended) && !ends(d.state()):
			d.start(i)
			moved = true
		}
	}
	return moved
}

// turn lets one member do all that it can at once.
func (d *doing) turn(i int, target phalanx.Step) (moved bool) {
	limit := max(target, d.round.Boundary)
	for range 100 {
		l := d.lives[i]
		if l == nil || l.lost {
			return moved
		}
		switch {
		case l.up() && l.behind(d.head):
			d.read(i)
		case l.up() && d.round.Asked && l.answer == nil && !l.asked && d.state().World.Has(l.me):
			d.seal(i)
		case l.up() && !l.leaving.IsZero():
			d.leave(i)
		case l.up() && !l.forming.IsZero():
			d.form(i)
		case l.up() && l.machine.Seat() != nil && d.hears(i):
		case canApply(l):
			d.apply(i)
		case l.trainer.Holds && moving(&l.trainer):
			d.finish(i)
		case l.up() && canHeal(l) && d.source(i) >= -1:
			d.heal(i)
			d.healed(i)
		case l.up() && l.heal != nil && l.torn && d.source(i) >= -1:
			d.healed(i)
		case canCompute(l, limit):
			d.compute(i)
		default:
			return moved
		}
		moved = true
	}
	return moved
}

// hears lets a member hear every vote.
func (d *doing) hears(i int) bool {
	n := 0
	d.each(i, maxSteps, func(phalanx.Rank, elastic.Vote) { n++ })
	if n > 0 {
		d.on(i)
		d.each(i, maxSteps, func(r phalanx.Rank, v elastic.Vote) { d.step(i, elastic.PeerVoted{Rank: r, Vote: v}) })
	}
	return n > 0
}

// arrived reports whether everybody in the world has applied the step.
func (d *doing) arrived(step phalanx.Step) bool {
	now := d.state()
	if now.Phase == elastic.Finished || d.x.Finish && step == d.x.spec.LastStep {
		return now.Phase == elastic.Finished
	}
	for _, seat := range now.World.Seats {
		l := d.lives[d.index(seat.Member)]
		if l == nil || l.me != seat.Incarnate || !l.trainer.Trainer || !l.trainer.Holds || l.trainer.Label.Step < step {
			return false
		}
	}
	return now.World.Size() > 0
}

// standing says where everybody stands.
func (d *doing) standing() string {
	text := fmt.Sprintf("%s %s", d.state().Phase, d.state().World.Generation)
	for i, l := range d.lives {
		switch {
		case l == nil:
		case l.machine == nil:
			text += fmt.Sprintf(", %s has no daemon", d.x.names[i])
		case !l.trainer.Trainer:
			text += fmt.Sprintf(", %s has no trainer", l.me)
		default:
			text += fmt.Sprintf(", %s %s at %d", l.me, l.machine.State(), l.trainer.Label.Step)
		}
	}
	p := d.plan(d.everybody(0))
	return text + "; leader: " + p.Why
}
