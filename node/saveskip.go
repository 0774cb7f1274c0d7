// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"phalanx"
)

// With an interval in steps, a save that cannot be begun at its step is skipped: the next one is of the next step of the interval.
// With an interval in time it is late instead. Nothing is staged that would have to wait, and no trainer waits.

// skipReason is why a save was not begun.
type skipReason string

const (
	saveBusy    skipReason = "busy"    // all slabs hold states that are still being written
	saveFailing skipReason = "failing" // saves fail, and the pause after the last one was not over
	saveMissed  skipReason = "missed"  // its step had passed when the trainers were asked for it
)

// SkippedSaves count the saves that were not begun at their step, by reason, since the job began.
type SkippedSaves struct {
	Busy    int          `json:"busy"`
	Failing int          `json:"failing"`
	Missed  int          `json:"missed"`
	Last    phalanx.Step `json:"last_step"` // the newest of them, 0 for none
}

// Sum counts all of them.
func (x SkippedSaves) Sum() int { return x.Busy + x.Failing + x.Missed }

// slabs is how many saves may be under way: a state is staged for each, and every member of the world has so many slabs.
func (p *publisher) slabs() int {
	n := 0
	for _, seat := range p.d.state.World.Seats {
		have := 1
		if v := p.d.lead.members[seat.Member]; v != nil && v.report != nil {
			have = max(have, v.report.SlabCount)
		}
		if n == 0 || have < n {
			n = have
		}
	}
	return n
}

// held says why no save can be begun now, "" when one can.
func (p *publisher) held(now time.Time) skipReason {
	switch {
	case now.Before(p.retry):
		return saveFailing
	case len(p.saves) >= p.slabs(), p.busy != nil && !slices.Contains(p.saves, p.busy):
		return saveBusy
	case slices.ContainsFunc(p.saves, func(x *saving) bool { return x.begun.IsZero() }):
		return saveBusy // one is announced: the next one comes after it
	}
	return ""
}

// count notes steps of the interval that have passed without a save.
func (p *publisher) count(due saveDue, now time.Time) {
	if due.every == 0 {
		return
	}
	at := due.at / due.every * due.every
	if !p.follows { // what was before is not this leader's to count
		p.follows, p.passed = true, at
	}
	if at <= p.passed || due.at >= due.last {
		return
	}
	n := int((at - p.passed/due.every*due.every) / due.every)
	p.passed = at
	why := p.held(now)
	if why == "" {
		why = saveMissed
	}
	p.skip(why, n, at)
}

// skip counts saves that were not begun at their step, the newest of which is given.
func (p *publisher) skip(why skipReason, n int, step phalanx.Step) {
	x := &p.record.Skipped
	switch why {
	case saveBusy:
		x.Busy += n
	case saveFailing:
		x.Failing += n
	case saveMissed:
		x.Missed += n
	}
	x.Last = max(x.Last, step)
	p.d.saver.record.Skipped = *x
	p.d.log.Info("a save is skipped", "step", uint64(step), "reason", string(why), "count", n)
	p.d.meters.skipped.WithLabelValues(string(why)).Add(float64(n))
}
