// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"fmt"
	"time"
)

// Verdict is one observer's judgement of one sender of signals.
type Verdict uint8

// The verdicts. The zero value judges nothing.
const (
	// Withdrawn: the observer was late itself, so its silence proves nothing about the other.
	Withdrawn Verdict = iota
	// Green: the last signal is no older than usual.
	Green
	// Yellow: late; look closer, prepare, do not act.
	Yellow
	// Red: so late that it is either gone or stalled; ask its kernel which of the two.
	Red
)

func (v Verdict) String() string {
	switch v {
	case Withdrawn:
		return "withdrawn"
	case Green:
		return "green"
	case Yellow:
		return "yellow"
	case Red:
		return "red"
	default:
		return fmt.Sprintf("verdict(%d)", uint8(v))
	}
}

// ArrivalBounds holds the expected interval within limits: a burst must not make the detector nervous, and a slow decline
// must not teach it to wait for ever. Red comes between 3 × Floor and 3 × Ceiling after the last signal.
type ArrivalBounds struct {
	Floor   time.Duration
	Ceiling time.Duration
}

// DefaultArrivalBounds suit heartbeats every 100 ms: red after 0.6 to 1.5 s, never below what a stall may last.
func DefaultArrivalBounds() ArrivalBounds {
	return ArrivalBounds{Floor: 200 * time.Millisecond, Ceiling: 500 * time.Millisecond}
}

// Validate names what is wrong with the bounds.
func (b ArrivalBounds) Validate() error {
	if b.Floor <= 0 || b.Ceiling < b.Floor {
		return fmt.Errorf("arrival bounds %v to %v: want 0 < floor <= ceiling", b.Floor, b.Ceiling)
	}
	return nil
}

// Factors of the expected interval, and the weight of a new interval in its average: one part in arrivalWeight.
const (
	yellowPercent = 150
	redPercent    = 300
	arrivalWeight = 8
)

// Arrivals models when signals of one sender arrive: a moving average of the intervals between them. It is a value;
// Signal returns the next one. Until the first interval is known it expects the ceiling.
type Arrivals struct {
	bounds  ArrivalBounds
	last    time.Time     // last signal, or the start
	mean    time.Duration // 0 until an interval was seen
	signals uint64
}

// NewArrivals starts to expect signals at now. Bounds that are not valid are replaced by the default ones.
func NewArrivals(bounds ArrivalBounds, now time.Time) Arrivals {
	if bounds.Validate() != nil {
		bounds = DefaultArrivalBounds()
	}
	return Arrivals{bounds: bounds, last: now}
}

// Signal notes a signal that arrived at now. A time before the last signal counts as the same moment.
func (a Arrivals) Signal(now time.Time) Arrivals {
	interval := max(0, now.Sub(a.last))
	first := a.signals == 0
	a.signals++
	if now.After(a.last) {
		a.last = now
	}
	if first {
		// From the start to the first signal is no interval between signals.
		return a
	}
	// One long silence that ended says little about the usual interval: it counts no more than the ceiling.
	interval = min(interval, a.bounds.Ceiling)
	if a.mean == 0 {
		a.mean = max(interval, 1)
		return a
	}
	a.mean = max(a.mean+(interval-a.mean)/arrivalWeight, 1)
	return a
}

// Expected is the interval after which the next signal is due, within the bounds.
func (a Arrivals) Expected() time.Duration {
	if a.mean == 0 {
		return a.bounds.Ceiling
	}
	return min(max(a.mean, a.bounds.Floor), a.bounds.Ceiling)
}

// Silence is the time since the last signal, or since the start.
func (a Arrivals) Silence(now time.Time) time.Duration { return max(0, now.Sub(a.last)) }

// Judge says what the silence at now means: yellow from 1.5, red from 3 expected intervals on.
func (a Arrivals) Judge(now time.Time) (Verdict, string) {
	return a.judge(a.Silence(now))
}

func (a Arrivals) judge(silence time.Duration) (Verdict, string) {
	expected := a.Expected()
	since := "last signal"
	if a.signals == 0 {
		since = "no signal yet, start"
	}
	verdict := Green
	switch percent := int64(100); {
	case int64(silence)*percent >= int64(expected)*redPercent:
		verdict = Red
	case int64(silence)*percent >= int64(expected)*yellowPercent:
		verdict = Yellow
	}
	why := fmt.Sprintf("%s: %s %v ago, expected every %v (average %v of %d)", verdict, since,
		silence.Round(time.Millisecond), expected.Round(time.Millisecond), a.mean.Round(time.Millisecond), a.signals)
	return verdict, why
}

// JudgeWhenLate is Judge for an observer that was itself late by lateness, by its own timers (Lateness.Worst). While it
// was off the CPU signals may have come that it has not read, so only what would stand with the lateness taken off the
// silence is said; when nothing of a yellow or red verdict stands, the testimony is withdrawn.
func (a Arrivals) JudgeWhenLate(now time.Time, lateness time.Duration) (Verdict, string) {
	verdict, why := a.Judge(now)
	if verdict == Green || lateness <= 0 {
		return verdict, why
	}
	sure, _ := a.judge(max(0, a.Silence(now)-lateness))
	if sure == verdict {
		return verdict, why
	}
	if sure == Green {
		sure = Withdrawn
	}
	return sure, fmt.Sprintf("%s: the observer was late by %v itself; without that %s", sure,
		lateness.Round(time.Millisecond), why)
}

// Lateness measures how late this daemon runs: it is told when its own periodic timer fires. It is a value.
type Lateness struct {
	period time.Duration
	keep   time.Duration
	last   time.Time
	worst  time.Duration
	at     time.Time // when worst was seen
}

// NewLateness expects ticks every period from now on and remembers the worst for keep. Keep should be as long as the
// longest silence that is judged.
func NewLateness(period, keep time.Duration, now time.Time) Lateness {
	return Lateness{period: period, keep: keep, last: now}
}

// Tick notes that the timer's handler ran at now.
func (l Lateness) Tick(now time.Time) Lateness {
	late := max(0, now.Sub(l.last)-l.period)
	l.last = now
	if late >= l.worst || now.Sub(l.at) > l.keep {
		l.worst, l.at = late, now
	}
	return l
}

// Worst is the largest lateness within the kept time, a tick that is overdue at now included.
func (l Lateness) Worst(now time.Time) time.Duration {
	overdue := max(0, now.Sub(l.last)-l.period)
	if now.Sub(l.at) > l.keep {
		return overdue
	}
	return max(l.worst, overdue)
}
