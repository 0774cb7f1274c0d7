// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"phalanx"
	"phalanx/elastic"
)

// timing notes when the parts of the transition under way were over.
type timing struct {
	seen, asked, closed, applied time.Time
	generation                   phalanx.Generation
	recorded                     bool
}

// activate records how long the parts took, once every member has seen the first commit, or the others for long enough.
func (a *arbiter) activate(late bool) {
	s := a.d.state
	if s.Phase != elastic.Forming || a.timing.recorded || a.busy {
		return
	}
	t := &a.timing
	var formed, healed, first int64
	some := false
	for _, seat := range s.World.Seats {
		f := a.members[seat.Member].first
		if f == nil || f.Generation != s.World.Generation {
			if late {
				continue
			}
			return
		}
		some = true
		formed, healed = max(formed, f.FormedNS), max(healed, f.HealedNS)
		if first == 0 || f.StepNS < first {
			first = f.StepNS
		}
	}
	if !some {
		return
	}
	t.recorded = true
	span := func(from, to time.Time) float64 {
		if from.IsZero() || to.IsZero() || to.Before(from) {
			return 0
		}
		return to.Sub(from).Seconds()
	}
	at := func(ns int64) time.Time {
		if ns == 0 {
			return time.Time{}
		}
		return time.Unix(0, ns)
	}
	sec := elastic.Seconds{Detect: span(t.seen, t.asked), Seal: span(t.asked, t.closed), Agree: span(t.closed, t.applied), Form: span(t.applied, at(formed))}
	from := at(formed)
	if healed > formed {
		sec.Heal = span(from, at(healed))
		from = at(healed)
	}
	sec.FirstStep = span(from, at(first))
	a.propose(elastic.Activate{Generation: s.World.Generation, Seconds: sec, UnixNS: time.Now().UnixNano()}, "the first step is committed")
}
