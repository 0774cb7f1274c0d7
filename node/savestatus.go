// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"
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

// status is what status says about saves, nil without the step protocol.
func (s *saver) status(now time.Time) *SavesStatus {
	d := s.d
	if d.plain != nil || d.state.Spec == nil {
		return nil
	}
	out := &SavesStatus{Failures: s.record.Failures, Trouble: s.record.Trouble, Policy: d.cfg.SaveFailure.String()}
	since := d.cfg.Started
	if p := d.state.NewestPublished(); p != nil {
		out.RecoveryPoint, since = p.Step, time.Unix(0, p.UnixNS)
	}
	if !since.IsZero() {
		out.Age = max(0, now.Sub(since).Seconds())
	}
	p := s.pub
	if p == nil || p.attempt == nil {
		return out
	}
	x := &SaveStatus{Step: p.attempt.Step, Waiting: p.begun.IsZero(), Shares: len(p.shares), Stored: p.written(), TakenOver: p.taken}
	if !x.Waiting {
		x.Seconds = now.Sub(p.begun).Seconds()
	}
	out.Under = x
	return out
}
