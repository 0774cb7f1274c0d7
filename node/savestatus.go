// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// String is the policy as --save-failure has it.
func (f SaveFailure) String() string {
	switch {
	case f.After > 0:
		return fmt.Sprintf("halt-after=%d", f.After)
	case f.Older > 0:
		return "halt-older=" + f.Older.String()
	}
	return "continue"
}

// levels are the newest steps at each level. Whether one is still held the leader alone can tell.
func (s *saver) levels(now time.Time) LevelsStatus {
	d := s.d
	one := func(r *elastic.Reached, held phalanx.Step) *LevelStatus {
		if r == nil {
			return nil
		}
		out := &LevelStatus{Step: r.Step, Age: max(0, now.Sub(time.Unix(0, r.UnixNS)).Seconds())}
		if d.lead != nil {
			out.Held = held >= r.Step
		}
		return out
	}
	var local, memory phalanx.Label
	if d.lead != nil {
		local, memory = stagedLevels(d.lead.holdings(), d.state.GroupSize())
	}
	out := LevelsStatus{Local: one(d.state.Levels.Local, local.Step), Memory: one(d.state.Levels.Memory, memory.Step)}
	if p := d.state.NewestPublished(); p != nil {
		out.Durable = &LevelStatus{Step: p.Step, Age: max(0, now.Sub(time.Unix(0, p.UnixNS)).Seconds()), Held: true}
	}
	return out
}

// status is what status says about saves, nil without the step protocol.
func (s *saver) status(now time.Time) *SavesStatus {
	d := s.d
	if d.plain != nil || d.state.Spec == nil {
		return nil
	}
	out := &SavesStatus{Failures: s.record.Failures, Trouble: s.record.Trouble, Policy: d.cfg.SaveFailure.String(), Skipped: s.record.Skipped}
	since := d.cfg.Started
	if p := d.state.NewestPublished(); p != nil {
		out.RecoveryPoint, since = p.Step, time.Unix(0, p.UnixNS)
	}
	if !since.IsZero() {
		out.Age = max(0, now.Sub(since).Seconds())
	}
	out.Levels = s.levels(now)
	p := s.pub
	if p == nil {
		return out
	}
	for _, x := range p.saves {
		v := SaveStatus{Step: x.attempt.Step, Waiting: x.begun.IsZero(), Shares: len(x.shares), Stored: x.written(), TakenOver: x.taken}
		if !v.Waiting {
			v.Seconds = now.Sub(x.begun).Seconds()
		}
		out.Under = append(out.Under, v)
	}
	return out
}
