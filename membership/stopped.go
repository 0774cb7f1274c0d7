// SPDX-License-Identifier: Apache-2.0

package membership

import "time"

// Stopped adds up samples of one process and tells for how long it has been stopped without a break. It is a value:
// Sample returns the next one. The zero value has seen nothing.
//
// A stopped process shows state T (or t under a tracer) and uses no CPU time. Two samples that show T with more CPU time
// in the second one prove that it ran in between, so the count starts again. Time between the last running sample and
// the first stopped one is not counted: the answer is never too long. Runs shorter than a clock tick (10 ms) between two
// samples go unseen.
type Stopped struct {
	since time.Time // first sample of the present stop, zero when not stopped
	ticks uint64
}

// Sample takes the process's state letter and its CPU time in clock ticks, as read at now.
func (s Stopped) Sample(now time.Time, state byte, ticks uint64) Stopped {
	if state != 'T' && state != 't' {
		return Stopped{}
	}
	if s.since.IsZero() || s.ticks != ticks {
		return Stopped{since: now, ticks: ticks}
	}
	return s
}

// For returns how long the process has been stopped at now, 0 when the last sample did not show it stopped.
func (s Stopped) For(now time.Time) time.Duration {
	if s.since.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.since))
}
