// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"phalanx"
	"phalanx/elastic"
)

// sendReport tells the leader what this member is now.
func (d *Daemon) sendReport(now time.Time) {
	l := d.life
	if l == nil || l.machine == nil {
		return
	}
	d.reported = now
	d.saver.findOld() // the first report that says "ready" says what is in memory: a leader may plan by it at once
	d.saver.findCopies()
	m := l.machine
	r := &Report{
		Incarnate: l.who, Seq: d.state.Seq, Generation: d.state.World.Generation, Local: m.State().String(),
		Ready: d.trainerReady() && l.died == nil && d.failed == "", Possession: l.seen.Possession, Slabs: d.saver.slabs(), SlabCount: len(l.slabs),
		Sealed: m.Sealed(), Refused: m.Refusal(), Voted: m.NewestVote(), Failed: d.failed, Leaving: d.leaving,
		Finished: l.finished, Digest: l.digest, Siblings: d.siblingReports(now), Niced: d.niced, Note: d.hindered,
		OneSlab: l.oneSlab,
	}
	r.TrainerPID = l.helloPID
	if l.trainer != nil && r.TrainerPID == 0 {
		r.TrainerPID = l.trainer.pid
	}
	if l.died != nil {
		r.TrainerPID = 0 // the page still names it, and the kernel may give its number to somebody else
	}
	r.Pin, r.Place = l.pin, l.place
	if d.state.Spec == nil && l.spec != nil {
		r.Spec, r.State = l.spec, l.layout
	} else if _, known := d.state.LayoutOf(l.pin.Coordinate()); !known && l.pin != phalanx.AnyPlace && l.spec != nil {
		r.State = l.layout
	}
	if d.heal != nil {
		r.Healed, r.HealTotal, r.HealRate = d.heal.bytes.Load(), d.heal.total, d.heal.rate()
	}
	if w := &d.state.World; w.SeatOf(d.me()) != nil {
		r.Cut = d.peers.reach.cut(now)
	} else if d.plain == nil {
		r.Cut = d.peers.reach.apart(w, d.cfg.Host, now)
	}
	r.HostBytes = d.memory.used()
	r.SaveRead = d.saver.read.Load()
	r.Store = d.trouble.says(now)
	r.StepNS = int64(d.steps.slowest())
	r.Evidence = d.reportedEvidence(now)
	if d.plain != nil {
		r.Plain = d.plain.rendezvous
	}
	d.sendUp(&Message{Report: r})
}

// reportFirst repeats what was said about the first step of the generation, to a leader that may not have heard it.
func (d *Daemon) reportFirst() {
	if d.plain == nil && d.state.Phase == elastic.Forming && d.timings.StepNS != 0 && d.timings.Generation == d.state.World.Generation {
		t := d.timings
		d.sendUp(&Message{First: &t})
	}
}

// trainerReady reports whether the trainer has said hello and which state it starts with or, without the step protocol, could
// be started. A world that is formed between the two would take it for one without any state.
func (d *Daemon) trainerReady() bool {
	if d.plain != nil {
		return d.plain.ready == d.life
	}
	if d.life.helloPID == 0 {
		return false
	}
	applied, n := d.life.page.ReadApplied()
	return n > 0 && applied.TrainerStart == d.life.helloStart
}

// reportedEvidence is what this member says against itself and others in the current generation.
func (d *Daemon) reportedEvidence(now time.Time) []phalanx.Evidence {
	var out []phalanx.Evidence
	l := d.life
	if l.died != nil && !l.finished {
		out = append(out, *l.died)
	}
	if e := d.trainerTrouble(now); e != nil {
		out = append(out, *e)
	}
	out = append(out, d.evidence...)
	if d.failed != "" {
		out = append(out, phalanx.Evidence{Kind: phalanx.TrainerExited, About: l.who, Source: d.me(), UnixNS: now.UnixNano(), Detail: d.failed})
	}
	return out
}
