// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"time"

	"phalanx"
)

// RestartPolicy decides whether and when a member's trainer is started again. It is a value; the loop keeps it.
type RestartPolicy struct {
	Max    int          // starts without progress since the last one
	Unit   string       // of progress, for messages; "" is a committed step
	starts int          // since the last committed step
	step   phalanx.Step // newest committed step seen
}

// Committed notes progress of the job: the budget begins anew.
func (p RestartPolicy) Committed(step phalanx.Step) RestartPolicy {
	if step > p.step {
		p.step, p.starts = step, 0
	}
	return p
}

// Unstarted takes back the newest start: there was none.
func (p RestartPolicy) Unstarted() RestartPolicy {
	p.starts = max(0, p.starts-1)
	return p
}

// Next says how long to wait before the next start, or why there is none. The first restart is immediate: most crashes do
// not come back; then it doubles from a quarter of a second to half a minute.
func (p RestartPolicy) Next() (RestartPolicy, time.Duration, error) {
	if p.starts > p.Max {
		return p, 0, fmt.Errorf("started %d times without %s in between (--max-restarts %d)", p.starts, cmp.Or(p.Unit, "a committed step"), p.Max)
	}
	p.starts++
	if p.starts <= 2 {
		return p, 0, nil
	}
	wait := 250 * time.Millisecond << min(p.starts-3, 7)
	return p, min(wait, 30*time.Second), nil
}
