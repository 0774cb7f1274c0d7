// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
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

// A trainer hangs in what is its own work, in any phase of a step; while it waits for others its time does not run.
func TestHungIsWhoeverWaitsForNobody(t *testing.T) {
	g := phalanx.Generation{Number: 1}
	for _, c := range []struct {
		name  string
		write func(*wire.Page)
		hung  bool
	}{
		{"said hello and began nothing", func(*wire.Page) {}, true},
		{"waits for a seat", func(p *wire.Page) {
			p.WriteProgress(wire.Progress{Phase: wire.PhaseBegin, Counter: 1})
			p.WriteBegin(wire.Begin{Waiting: true, Step: 1})
		}, false},
		{"reads samples of the begun step", func(p *wire.Page) {
			p.WriteProgress(wire.Progress{Phase: wire.PhaseBegin, Counter: 1})
			p.WriteBegin(wire.Begin{Step: 1})
		}, true},
		{"computes", func(p *wire.Page) { p.WriteProgress(wire.Progress{Phase: wire.PhaseCompute, Counter: 1}) }, true},
		{"waits for a collective", func(p *wire.Page) {
			p.WriteProgress(wire.Progress{Phase: wire.PhaseReduce, Counter: 1})
			p.Post(wire.Descriptor{Generation: g})
		}, false},
		{"works on what was reduced", func(p *wire.Page) {
			p.WriteProgress(wire.Progress{Phase: wire.PhaseReduce, Counter: 1})
			p.CompleteDescriptor(p.Post(wire.Descriptor{Generation: g}), wire.StatusOK)
		}, true},
		{"waits for the votes", func(p *wire.Page) {
			p.WriteProgress(wire.Progress{Phase: wire.PhaseVote, Counter: 1})
			p.WriteSeat(wire.Seat{Action: wire.ActionRun, Generation: g})
			p.WriteVoteRequest(wire.VoteRequest{Generation: g, Step: 1})
		}, false},
		{"does not apply what is committed", func(p *wire.Page) {
			p.WriteProgress(wire.Progress{Phase: wire.PhaseVote, Counter: 1})
			p.WriteSeat(wire.Seat{Action: wire.ActionRun, Generation: g})
			p.WriteVoteRequest(wire.VoteRequest{Generation: g, Step: 1})
			p.WriteCommit(wire.Commit{Generation: g, Step: 1})
		}, true},
		{"evaluates, as it says", func(p *wire.Page) { p.WriteProgress(wire.Progress{Phase: wire.PhaseEval, Counter: 1}) }, false},
	} {
		d := &Daemon{cfg: Config{Hang: time.Minute, Start: time.Minute}}
		d.life = &life{who: incarnate("h", 0, 1), page: wire.NewPage(0, 1), helloPID: 1}
		c.write(d.life.page)
		now := time.Now()
		d.life.lastMove = now
		d.life.moved(now)
		if e := d.trainerTrouble(now.Add(time.Minute)); e != nil {
			t.Errorf("%s: %s, too early", c.name, e)
		}
		if e := d.trainerTrouble(now.Add(time.Hour)); (e != nil) != c.hung || e != nil && e.Kind != phalanx.Hung {
			t.Errorf("%s: %v", c.name, e)
		}
	}
}
