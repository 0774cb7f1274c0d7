// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

var testBounds = ArrivalBounds{Floor: 100 * ms, Ceiling: 400 * ms}

// arrive feeds n signals, one every interval, and returns the model and the time of the last.
func arrive(n int, interval time.Duration) (Arrivals, time.Time) {
	now := time.Unix(1000, 0)
	a := NewArrivals(testBounds, now)
	for range n {
		now = now.Add(interval)
		a = a.Signal(now)
	}
	return a, now
}

func TestArrivalsJudge(t *testing.T) {
	for name, c := range map[string]struct {
		signals  int
		interval time.Duration
		silence  time.Duration
		want     Verdict
	}{
		"start, waits for the ceiling":      {0, 0, 599 * ms, Green},
		"start, late":                       {0, 0, 600 * ms, Yellow},
		"start, never came":                 {0, 0, 1200 * ms, Red},
		"one signal tells no interval":      {1, 10 * ms, 599 * ms, Green},
		"steady, on time":                   {50, 200 * ms, 200 * ms, Green},
		"steady, just not late":             {50, 200 * ms, 299 * ms, Green},
		"steady, 1.5 times":                 {50, 200 * ms, 300 * ms, Yellow},
		"steady, just not red":              {50, 200 * ms, 599 * ms, Yellow},
		"steady, 3 times":                   {50, 200 * ms, 600 * ms, Red},
		"burst, floor holds":                {50, ms, 149 * ms, Green},
		"burst, 1.5 floors":                 {50, ms, 150 * ms, Yellow},
		"burst, 3 floors":                   {50, ms, 300 * ms, Red},
		"slow, ceiling holds":               {50, 5 * time.Second, 1200 * ms, Red},
		"slow, yellow before":               {50, 5 * time.Second, 1199 * ms, Yellow},
		"all at one moment, floor holds":    {50, 0, 149 * ms, Green},
		"silence before the clock, a skew ": {50, 200 * ms, -time.Hour, Green},
	} {
		t.Run(name, func(t *testing.T) {
			a, last := arrive(c.signals, c.interval)
			got, why := a.Judge(last.Add(c.silence))
			if got != c.want {
				t.Errorf("got %s, want %s: %s", got, c.want, why)
			}
			if !strings.HasPrefix(why, c.want.String()+": ") {
				t.Errorf("why %q does not begin with the verdict", why)
			}
		})
	}
}

func TestArrivalsIsAValue(t *testing.T) {
	a, now := arrive(20, 200*ms)
	before := a
	_ = a.Signal(now.Add(time.Minute))
	if a != before {
		t.Error("Signal changed its receiver")
	}
}

func TestOneLongSilenceIsSoonForgotten(t *testing.T) {
	a, now := arrive(50, 100*ms)
	now = now.Add(time.Hour)
	a = a.Signal(now)
	if got := a.Expected(); got > 150*ms {
		t.Errorf("after an hour's silence a signal is expected every %v", got)
	}
}

func TestArrivalsWithdrawsWhenTheObserverWasLate(t *testing.T) {
	a, last := arrive(50, 200*ms) // yellow at 300 ms, red at 600 ms
	for name, c := range map[string]struct {
		silence, lateness time.Duration
		want              Verdict
	}{
		"green stands":                {200 * ms, time.Second, Green},
		"on time":                     {700 * ms, 0, Red},
		"a little late, red stands":   {700 * ms, 50 * ms, Red},
		"red melts to yellow":         {700 * ms, 200 * ms, Yellow},
		"red melts away":              {700 * ms, 500 * ms, Withdrawn},
		"yellow melts away":           {350 * ms, 100 * ms, Withdrawn},
		"later than the silence":      {700 * ms, time.Hour, Withdrawn},
		"a negative lateness is none": {700 * ms, -time.Hour, Red},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := a.JudgeWhenLate(last.Add(c.silence), c.lateness); got != c.want {
				t.Errorf("got %s, want %s: %s", got, c.want, why)
			}
		})
	}
}

func TestInvalidBoundsAreReplaced(t *testing.T) {
	a := NewArrivals(ArrivalBounds{Floor: time.Second, Ceiling: ms}, time.Unix(0, 0))
	if a.Expected() != DefaultArrivalBounds().Ceiling {
		t.Errorf("expected %v", a.Expected())
	}
}

// Whatever arrives, a verdict only worsens while nothing does, and red lies between three floors and three ceilings.
func TestArrivalsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		a := NewArrivals(testBounds, now)
		for range rapid.IntRange(0, 40).Draw(t, "signals") {
			now = now.Add(time.Duration(rapid.Int64Range(-1e9, 1e10).Draw(t, "interval")))
			a = a.Signal(now)
		}
		worst := Green
		for silence := time.Duration(0); silence < 2*time.Second; silence += 10 * ms {
			v, why := a.Judge(a.last.Add(silence))
			if v < worst {
				t.Fatalf("%s after %s in one silence: %s", v, worst, why)
			}
			worst = v
			if v == Red && silence < 3*testBounds.Floor || v != Red && silence >= 3*testBounds.Ceiling {
				t.Fatalf("%v of silence: %s", silence, why)
			}
		}
	})
}

func TestLateness(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return t0.Add(d) }
	l := NewLateness(100*ms, time.Second, t0)
	l = l.Tick(at(100 * ms)).Tick(at(205 * ms))
	if got := l.Worst(at(210 * ms)); got != 5*ms {
		t.Errorf("worst %v, want 5ms", got)
	}
	l = l.Tick(at(705 * ms)) // 400 ms late
	l = l.Tick(at(800 * ms))
	if got := l.Worst(at(800 * ms)); got != 400*ms {
		t.Errorf("worst %v, want 400ms", got)
	}
	if got := l.Worst(at(1400 * ms)); got != 500*ms {
		t.Errorf("an overdue tick: worst %v, want 500ms", got)
	}
	for d := 900 * ms; d <= 1800*ms; d += 100 * ms {
		l = l.Tick(at(d))
	}
	if got := l.Worst(at(1800 * ms)); got != 0 {
		t.Errorf("worst %v is kept for too long", got)
	}
}
