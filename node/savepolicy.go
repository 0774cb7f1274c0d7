// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	"phalanx/elastic"
)

// recoveryPoint is when the newest durable state was saved, or when training began without one.
func (p *publisher) recoveryPoint() time.Time {
	begun := p.since
	if t := p.d.cfg.Started; !t.IsZero() {
		begun = t // what was not saved while the job did not run costs nothing
	}
	if n := p.d.state.NewestPublished(); n != nil && time.Unix(0, n.UnixNS).After(begun) {
		return time.Unix(0, n.UnixNS)
	}
	return begun
}

// exhausted reports whether saves fail for longer than the user allows, and says so.
func (p *publisher) exhausted(now time.Time) (words string, over bool) {
	allowed, age := p.d.cfg.SaveFailure, now.Sub(p.recoveryPoint())
	failing := p.record.Failures > 0 || len(p.saves) > 0 && !p.saves[0].begun.IsZero() && now.Sub(p.saves[0].begun) > allowed.Older
	switch {
	case allowed.After > 0 && p.record.Failures >= allowed.After:
		words = fmt.Sprintf("%d saves in a row have failed", p.record.Failures)
	case allowed.Older > 0 && age > allowed.Older && failing:
		words = fmt.Sprintf("saves fail and nothing newer than %s is durable", age.Truncate(time.Second))
	default:
		return "", false
	}
	if n := p.d.state.NewestPublished(); n != nil {
		words += fmt.Sprintf("; the newest durable step is %d", n.Step)
	} else {
		words += "; no step is durable"
	}
	if p.record.Trouble != "" {
		words += ": " + p.record.Trouble
	}
	return words, true
}

// checkSaves ends the job when saves fail for longer than the user allows, or can never succeed again.
func (a *arbiter) checkSaves(now time.Time) {
	d := a.d
	p, s := d.saver.pub, d.state
	if p == nil || a.busy || d.plain != nil || s.World.Size() == 0 || s.Phase != elastic.Running && s.Phase != elastic.Forming {
		return
	}
	kind, words := elastic.Fenced, p.fencedBy
	if words == "" {
		var over bool
		if words, over = p.exhausted(now); !over {
			return
		}
		kind = elastic.SavesFail
	}
	d.log.Error("the job is halted", "cause", words)
	a.propose(elastic.Halt{Reason: elastic.HaltReason{Kind: kind, Words: words}, UnixNS: now.UnixNano()}, words)
}

// tryStop saves at the next boundary and halts the job when that is durable, or when the grace is over.
func (a *arbiter) tryStop(now time.Time) {
	d := a.d
	p := d.saver.pub
	s := d.state
	if a.busy || s.Phase == elastic.Finished || s.Phase == elastic.Halted && s.Halt != nil && s.Halt.Kind.Ends() {
		return
	}
	if a.stopAt.IsZero() {
		a.stopAt = now
	}
	if p != nil && p.wanted == 0 && s.World.Size() > 0 {
		p.wanted = d.committed() + 1
	}
	published := s.NewestPublished()
	durable := published != nil && p != nil && p.wanted > 0 && published.Step >= p.wanted
	training := s.World.Size() > 0 && s.Phase != elastic.Halted && d.plain == nil // plain trainers save by themselves when they get TERM
	if durable || !training || now.Sub(a.stopAt) > d.cfg.Grace {
		kind, words := elastic.StoppedByOperator, "stopped on request"
		switch {
		case durable:
			words = fmt.Sprintf("stopped on request; step %d is saved", published.Step)
		case training:
			kind, words = elastic.StoppedUnsaved, fmt.Sprintf("stopped on request; the newest step is not saved within the grace of %s", d.cfg.Grace)
			if published != nil {
				words += fmt.Sprintf(", step %d is", published.Step)
			}
			if p != nil && p.record.Trouble != "" {
				words += ": " + p.record.Trouble
			}
		}
		a.propose(elastic.Halt{Reason: elastic.HaltReason{Kind: kind, Words: words}, UnixNS: now.UnixNano()}, words)
	}
}
