// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"testing"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// publisherOf is the publisher of a leader of two members with so many slabs.
func publisherOf(slabs ...int) *publisher {
	d := &Daemon{log: slog.New(slog.DiscardHandler), state: elastic.NewState(), lead: &arbiter{members: map[phalanx.MemberID]*memberView{}}}
	d.meters = newMeters("job", "a/0", func() *Status { return nil })
	d.saver = newSaver(d)
	for i, n := range slabs {
		who := phalanx.Incarnate{Member: phalanx.NewMemberID("a", i), Incarnation: 1}
		d.state.World.Seats = append(d.state.World.Seats, phalanx.Seat{Incarnate: who, Rank: phalanx.Rank(i)})
		if n >= 0 {
			d.lead.members[who.Member] = &memberView{report: &Report{Incarnate: who, SlabCount: n}}
		}
	}
	return &publisher{d: d}
}

// TestSavesUnderWay: as many as the member with the fewest slabs has; one that has not reported, or an older release, has one.
func TestSavesUnderWay(t *testing.T) {
	for _, c := range []struct {
		slabs []int
		want  int
	}{{[]int{2, 2}, 2}, {[]int{2, 1}, 1}, {[]int{0, 2}, 1}, {[]int{2, -1}, 1}} {
		if got := publisherOf(c.slabs...).slabs(); got != c.want {
			t.Errorf("slabs %v: %d saves, want %d", c.slabs, got, c.want)
		}
	}
}

// TestSkipped: what passes without a save is counted once, with what was in the way.
func TestSkipped(t *testing.T) {
	now := time.Now()
	p := publisherOf(2, 2)
	pass := func(at phalanx.Step, want SkippedSaves) {
		t.Helper()
		if p.count(saveDue{at: at, last: 1000, every: 20}, now); p.record.Skipped != want {
			t.Errorf("at step %d: %+v, want %+v", at, p.record.Skipped, want)
		}
	}
	pass(45, SkippedSaves{}) // what was before is not this leader's
	pass(59, SkippedSaves{})
	begun := func(step phalanx.Step) *saving {
		x := &saving{begun: now}
		x.attempt.Step = step
		p.saves, p.passed = append(p.saves, x), step
		return x
	}
	first := begun(60)
	pass(75, SkippedSaves{})
	if p.held(now) != "" {
		t.Error("there is a second slab")
	}
	begun(80)
	pass(99, SkippedSaves{})
	want := SkippedSaves{Busy: 1, Last: 100}
	pass(100, want)
	pass(119, want)
	want = SkippedSaves{Busy: 3, Last: 140}
	pass(145, want) // two at once
	p.remove(first)
	p.retry = now.Add(time.Second)
	want.Failing, want.Last = 1, 160
	pass(160, want)
	p.retry = time.Time{}
	want.Missed, want.Last = 1, 180
	pass(185, want)
	p.giveUpMissed(t, now)
	want.Missed, want.Last = 2, 200
	pass(205, want)
	if p.d.saver.record.Skipped != want || want.Sum() != 6 {
		t.Errorf("status says %+v", p.d.saver.record.Skipped)
	}
	p.count(saveDue{at: 1000, last: 1000, every: 20}, now)
	if p.record.Skipped != want {
		t.Error("the last step is saved whatever was")
	}
}

// giveUpMissed gives a save of step 200 up whose step had passed.
func (p *publisher) giveUpMissed(t *testing.T, now time.Time) {
	t.Helper()
	p.d.state.Spec = &phalanx.JobSpec{LastStep: 1000}
	x := &saving{begun: now}
	x.attempt.Step = 200
	p.saves, p.passed = append(p.saves, x), 200
	p.giveUp(x, "")
	if len(p.saves) != 1 || p.newest != 200 {
		t.Errorf("%d saves are under way, the newest given up is %d", len(p.saves), p.newest)
	}
}
