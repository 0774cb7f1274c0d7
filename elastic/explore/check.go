// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"

	"phalanx"
	"phalanx/elastic"
)

// voted writes a vote to the page, which publishes it, and checks that it may be there.
func (d *doing) voted(i int, v elastic.Vote) {
	l := d.on(i)
	l.page.Vote = v
	for _, old := range d.ballots[i] {
		if old.Generation == v.Generation && old.Step == v.Step {
			if old == v {
				return // repeated
			}
			if !d.x.LenientPromises {
				d.broken("%s changed its vote for step %d", l.me, v.Step)
			}
		}
	}
	if !l.promised.Less(v.Generation) && !d.x.LenientPromises {
		d.broken("%s voted in %s and had sealed %s", l.me, v.Generation, l.promised)
	}
	d.ballots[i] = append(slices.Clip(d.ballots[i]), v)
	d.takesPart(i, v)
	d.count(v.Generation, v.Step)
}

// takesPart checks that a member which votes stands where the world stands.
func (d *doing) takesPart(i int, v elastic.Vote) {
	l := d.lives[i]
	log := l.machine.Log()
	seat := l.machine.Seat()
	switch {
	case l.mixed:
		d.broken("%s votes for step %d with a state torn by an unfinished heal", l.me, v.Step)
	case seat == nil:
		d.broken("%s votes for step %d without a seat", l.me, v.Step)
	case v.Step != l.trainer.Label.Step+1:
		d.broken("%s votes for step %d and stands at %d", l.me, v.Step, l.trainer.Label.Step)
	case l.trainer.Label.Coordinate != seat.Coordinate && l.trainer.Label.Coordinate != elastic.AnyCoordinate:
		d.broken("%s votes as coordinate %d with the shard of coordinate %d", l.me, seat.Coordinate, l.trainer.Label.Coordinate)
	}
	if seat == nil {
		return
	}
	for step := phalanx.Step(1); step < v.Step && step <= maxSteps; step++ {
		if !d.stood(log, step, seat.Coordinate, l.history[step]) {
			d.broken("%s takes part in %s with a step %d that %d made, which was not decided there", l.me, v.Generation, step, l.history[step]>>2)
		}
	}
}

// stood reports whether the branch that a member has read decided what its state was made of at some step.
func (w *world) stood(log *elastic.State, step phalanx.Step, coordinate int, what lab) bool {
	for _, x := range w.decided {
		if x.step == step && x.coordinate == coordinate && x.what == what && log.OfLineage(x.label()) {
			return true
		}
	}
	return false
}

func (x decision) label() phalanx.Label {
	return phalanx.Label{Step: x.step, Generation: x.generation, Coordinate: x.coordinate}
}

// count decides a step when every member of the world has voted ok for it with equal digests per coordinate.
func (d *doing) count(g phalanx.Generation, step phalanx.Step) {
	n := d.entry(g)
	if n == nil {
		return
	}
	w := &n.state.World
	var digests [maxMembers]phalanx.Digest
	for _, seat := range w.Seats {
		v := d.ballot(d.index(seat.Member), g, step)
		if v == nil || !v.OK {
			return
		}
		if x := digests[seat.Coordinate]; !x.IsZero() && x != v.Digest {
			return
		}
		digests[seat.Coordinate] = v.Digest
	}
	for c := range w.GroupSize {
		d.decide(phalanx.Label{Step: step, Generation: g, Digest: digests[c], Coordinate: c}, "voted for by all")
	}
}

func (w *world) ballot(i int, g phalanx.Generation, step phalanx.Step) *elastic.Vote {
	for k := range w.ballots[i] {
		if v := &w.ballots[i][k]; v.Generation == g && v.Step == step {
			return v
		}
	}
	return nil
}

// entry is where a generation begins, nil when the log does not hold it.
func (w *world) entry(g phalanx.Generation) *node {
	var found *node
	for n := w.head; n != nil && n.state.World.Generation.Compare(g) >= 0; n = n.prev {
		if n.state.World.Generation == g {
			found = n
		}
	}
	return found
}

// decide notes a decided step and checks that the world did not decide otherwise.
func (d *doing) decide(l phalanx.Label, how string) {
	x := decision{l.Step, l.Coordinate, labOf(l), l.Generation}
	now := d.state()
	for _, o := range d.decided {
		if o == x {
			return
		}
		if o.step == x.step && o.coordinate == x.coordinate && !d.separated(o, x) {
			d.broken("step %d of coordinate %d was decided in %s and in %s (%s)", x.step, x.coordinate, o.generation, x.generation, how)
		}
	}
	if g := now.World.Generation; x.generation.Less(g) && now.OfLineage(l) && now.Floor.Step < x.step && now.World.Size() > 0 {
		d.broken("step %d is %s in %s, and %s resumes at %d", x.step, how, x.generation, g, now.Floor.Step)
	}
	d.decided = append(slices.Clip(d.decided), x)
	slices.SortFunc(d.decided, func(a, b decision) int {
		if a.step != b.step {
			return int(a.step) - int(b.step)
		}
		if a.coordinate != b.coordinate {
			return a.coordinate - b.coordinate
		}
		return int(a.what) - int(b.what)
	})
}

// separated reports whether a rewind lies between two decisions of one step: they are of different branches.
func (w *world) separated(a, b decision) bool {
	if b.generation.Less(a.generation) {
		a, b = b, a
	}
	for _, r := range w.rewinds {
		if a.generation.Less(r.Generation) && !b.generation.Less(r.Generation) && a.step > r.Source {
			return true
		}
	}
	return false
}

// floorMoved checks an entry that began a generation: what was decided is undone by rewinds alone.
func (d *doing) floorMoved(before, now *elastic.State) {
	if now.Branch != before.Branch {
		d.rewinds = append(slices.Clip(d.rewinds), elastic.RewindRecord{Generation: now.World.Generation, Source: now.Floor.Step})
	}
	for i := range d.stored {
		if now.Branch == before.Branch {
			break
		}
		if p := &d.stored[i]; p.Step > now.Floor.Step && before.OfLineage(p.Labels[0]) {
			d.broken("%s resumes at %d below the published step %d", now.World.Generation, now.Floor.Step, p.Step)
		}
	}
	g, floor := now.World.Generation, now.Floor
	for _, x := range d.decided {
		if now.World.Size() == 0 {
			break // nobody resumes there; only a rewind may follow
		}
		if !x.generation.Less(g) || !now.OfLineage(x.label()) {
			continue
		}
		switch l := floor.Label(x.coordinate); {
		case x.step > floor.Step:
			d.broken("step %d was decided in %s and %s resumes at %d", x.step, x.generation, g, floor.Step)
		case x.step == floor.Step && (x.generation != l.Generation || !l.Digest.IsZero() && labOf(l) != x.what):
			d.broken("step %d was decided in %s and %s resumes at that of %s", x.step, x.generation, g, l.Generation)
		}
	}
	for _, l := range floor.Labels {
		if l.Step > 0 && !l.Digest.IsZero() {
			d.decide(l, "resumed at")
		}
	}
}

// applied checks a step that a trainer has made.
func (d *doing) applied(i int, l phalanx.Label) {
	x := d.on(i)
	if int(l.Step) > maxSteps {
		return
	}
	at := phalanx.Step(0)
	for at < maxSteps && x.history[at+1] != 0 {
		at++
	}
	if l.Step != at+1 {
		d.broken("%s applied step %d after %d", x.me, l.Step, at)
	}
	if x.mixed {
		d.broken("%s applied step %d to a state torn by an unfinished heal", x.me, l.Step)
	}
	if l.Coordinate < 0 || !slices.Contains(d.decided, decision{l.Step, l.Coordinate, labOf(l), l.Generation}) {
		d.broken("%s applied %s, which nobody has decided", x.me, l)
	}
	x.history[l.Step] = labOf(l)
}

// newest is the newest step of the lineage that was decided.
func (w *world) newest() phalanx.Step {
	now := w.state()
	newest := now.Floor.Step
	for _, x := range w.decided {
		if now.OfLineage(x.label()) {
			newest = max(newest, x.step)
		}
	}
	return newest
}
