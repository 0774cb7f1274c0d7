// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"
)

// stepped has measured n steps that took that long.
func stepped(n int, each time.Duration) (s stepTimes) {
	at := time.Now()
	for range n + 1 { // between the first and the last are n
		s.add(at)
		at = at.Add(each)
	}
	return s
}

func TestHangDeadlineFollowsTheSteps(t *testing.T) {
	const most = 5 * time.Minute
	for _, c := range []struct {
		name  string
		steps stepTimes
		want  time.Duration
	}{
		{"nothing measured", stepTimes{}, most},
		{"too little measured", stepped(99, time.Millisecond), most},
		{"fast steps", stepped(100, time.Millisecond), 10 * time.Second},
		{"steps of a second", stepped(100, time.Second), 30 * time.Second},
		{"slow steps", stepped(100, time.Minute), most},
		{"more steps than are kept", stepped(1000, time.Second), 30 * time.Second},
	} {
		d := &Daemon{cfg: Config{Hang: most}, steps: c.steps}
		if got := d.hangDeadline(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	short := &Daemon{cfg: Config{Hang: 2 * time.Second}, steps: stepped(200, time.Millisecond)}
	if got := short.hangDeadline(); got != 2*time.Second {
		t.Errorf("the operator's %s became %s", 2*time.Second, got)
	}
}

// One slow step among the newest counts until it is forgotten.
func TestStepTimesForget(t *testing.T) {
	s := stepped(3, time.Second)
	if s.slowest() != time.Second || (&stepTimes{}).slowest() != 0 {
		t.Errorf("slowest %s", s.slowest())
	}
	at := s.at.Add(time.Minute)
	s.add(at)
	for i := range len(s.last) {
		if got := s.slowest(); got != time.Minute {
			t.Fatalf("forgotten after %d steps: %s", i, got)
		}
		at = at.Add(time.Second)
		s.add(at)
	}
	if got := s.slowest(); got != time.Second {
		t.Errorf("not forgotten: %s", got)
	}
}
