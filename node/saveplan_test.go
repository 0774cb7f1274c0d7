// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"phalanx"
)

// shares4 is a save of four ranks of one coordinate, a/0 to a/3, of which those in took are stored after that many seconds.
func shares4(took ...float64) ([]share, []keeper) {
	var shares []share
	var keepers []keeper
	for r := range 4 {
		id := phalanx.NewMemberID("a", r)
		x := share{rank: phalanx.Rank(r), writers: []shareWriter{{member: id}}}
		if r < len(took) {
			x.written, x.took = true, time.Duration(took[r]*float64(time.Second))
		}
		shares, keepers = append(shares, x), append(keepers, keeper{id, 0})
	}
	return shares, keepers
}

func said(all []takeover) string {
	var words []string
	for _, t := range all {
		words = append(words, fmt.Sprintf("%d to %s: %s", t.rank, t.by, t.why))
	}
	return strings.Join(words, "; ")
}

func TestTakeovers(t *testing.T) {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for _, c := range []struct {
		name    string
		took    []float64
		change  func(s []share, k []keeper) []keeper
		elapsed float64
		want    string
	}{
		{"in time", []float64{1, 1, 1}, nil, 3, ""},
		{"late by the floor", []float64{1, 1, 1}, nil, 3.1, "3 to a/0: a/3 is late"},
		{"in time beside slow ones", []float64{10, 10, 11}, nil, 30, ""},
		{"late beside slow ones", []float64{10, 10, 11}, nil, 30.1, "3 to a/0: a/3 is late"},
		{"half are there", []float64{1, 1}, nil, 3.1, "2 to a/0: a/2 is late; 3 to a/1: a/3 is late"},
		{"the store is slow for most", []float64{1}, nil, 1000, ""},
		{"failed", []float64{1, 1, 1}, func(s []share, k []keeper) []keeper {
			s[3].writers[0].failed, s[3].writers[0].why = true, "no space left on device"
			return k
		}, 1, "3 to a/0: a/3 failed: no space left on device"},
		{"missed", nil, func(s []share, k []keeper) []keeper { s[3].writers[0].failed = true; return k[:1] }, 0,
			"3 to a/0: a/3 does not have the state"},
		{"absent", []float64{1}, func(s []share, k []keeper) []keeper { s[3].writers[0].absent = true; return k[:3] }, 1,
			"3 to a/0: no connection to a/3"},
		{"rather one that is done", []float64{1, 1, 1}, func(s []share, k []keeper) []keeper {
			s[1], s[2] = s[2], s[1] // of rank 1 and 2, in any order
			s[0].written = false
			s[3].writers[0].failed = true
			return k
		}, 1, "3 to a/1: a/3 does not have the state"},
		{"the second one gets as long", []float64{1, 1, 1}, func(s []share, k []keeper) []keeper {
			s[3].writers = append(s[3].writers, shareWriter{member: "a/0", asked: seconds(3.1)})
			return k
		}, 6, ""},
		{"and then a third is asked", []float64{1, 1, 1}, func(s []share, k []keeper) []keeper {
			s[3].writers = append(s[3].writers, shareWriter{member: "a/0", asked: seconds(3.1)})
			return k
		}, 6.2, "3 to a/1: a/0 is late"},
		{"another coordinate helps nobody", []float64{1, 1, 1}, func(s []share, k []keeper) []keeper {
			s[3].coordinate, s[3].writers[0].failed = 1, true
			return k[:3]
		}, 1, ""},
		{"a spare that has the state", []float64{1, 1, 1}, func(s []share, _ []keeper) []keeper {
			s[3].coordinate, s[3].writers[0].failed = 1, true
			return []keeper{{"b/0", 1}}
		}, 1, "3 to b/0: a/3 does not have the state"},
	} {
		shares, keepers := shares4(c.took...)
		if c.change != nil {
			keepers = c.change(shares, keepers)
		}
		if got := said(takeovers(shares, keepers, seconds(c.elapsed))); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestHopeless(t *testing.T) {
	shares, keepers := shares4(1, 1)
	fail := func(r int, by phalanx.MemberID, why string) {
		k := slices.IndexFunc(shares[r].writers, func(w shareWriter) bool { return w.member == by })
		if k < 0 {
			k = len(shares[r].writers)
			shares[r].writers = append(shares[r].writers, shareWriter{member: by})
		}
		shares[r].writers[k].failed, shares[r].writers[k].why = true, why
	}
	check := func(wantWhy string, want bool) {
		t.Helper()
		if why, lost := hopeless(shares, keepers); lost != want || why != wantWhy {
			t.Errorf("%q, %v, want %q, %v", why, lost, wantWhy, want)
		}
	}
	check("", false)
	fail(3, "a/3", "")
	check("", false) // others have it
	keepers = nil
	check("", false) // a/2 may be about to
	fail(2, "a/2", "disk full")
	check("disk full", true)
	shares[2].written = true
	check("", true) // nobody has the state of rank 3
	fail(3, "a/0", "disk full")
	check("disk full", true)
}

// TestTakeoversEnd: whatever fails, a save is either stored or given up, and nobody is asked twice for one share or for a state
// that it does not have.
func TestTakeoversEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, groupSize := rapid.IntRange(1, 6).Draw(t, "ranks"), 1
		if n%2 == 0 {
			groupSize = rapid.IntRange(1, 2).Draw(t, "group size")
		}
		var shares []share
		var keepers []keeper
		for r := range n {
			id := phalanx.NewMemberID("a", r)
			shares = append(shares, share{rank: phalanx.Rank(r), coordinate: r % groupSize, writers: []shareWriter{{member: id}}})
			if rapid.Bool().Draw(t, "has it") {
				keepers = append(keepers, keeper{id, r % groupSize})
			}
		}
		for turn := 0; ; turn++ {
			if turn > n*n+n {
				t.Fatalf("no end: %+v", shares)
			}
			for _, x := range takeovers(shares, keepers, time.Duration(turn)*time.Second) {
				s := &shares[x.rank]
				if s.written || s.askedOf(x.by) || !slices.Contains(keepers, keeper{x.by, s.coordinate}) {
					t.Fatalf("rank %d given to %s: %+v", x.rank, x.by, s)
				}
				s.writers = append(s.writers, shareWriter{member: x.by, asked: time.Duration(turn) * time.Second})
			}
			if _, lost := hopeless(shares, keepers); lost {
				return
			}
			open := slices.IndexFunc(shares, func(s share) bool { return !s.written })
			if open < 0 {
				return
			}
			working := func(w shareWriter) bool { return !w.failed }
			open = slices.IndexFunc(shares, func(s share) bool { return !s.written && slices.ContainsFunc(s.writers, working) })
			if open < 0 {
				t.Fatalf("nobody is asked for anything and nothing is given up: %+v, %v", shares, keepers)
			}
			s := &shares[open] // one writer of the first share that anybody works on answers
			k := slices.IndexFunc(s.writers, working)
			if slices.Contains(keepers, keeper{s.writers[k].member, s.coordinate}) && rapid.Bool().Draw(t, "well") {
				s.written, s.took = true, time.Duration(turn)*time.Second
			} else {
				s.writers[k].failed, s.writers[k].why = true, "failed"
			}
		}
	})
}

func TestSaveDue(t *testing.T) {
	for _, c := range []struct {
		name string
		x    saveDue
		want phalanx.Step
	}{
		{"the next multiple", saveDue{at: 5, last: 100, every: 20}, 20},
		{"after one that was given up", saveDue{at: 20, last: 100, every: 20, newest: 20}, 40},
		{"no step beyond the last", saveDue{at: 81, last: 90, every: 20}, 90},
		{"the last", saveDue{at: 100, last: 100, every: 20, durable: 80, newest: 99}, 100},
		{"nothing after it", saveDue{at: 100, last: 100, every: 20, durable: 100, newest: 100}, 0},
		{"what is staged already", saveDue{at: 25, last: 100, every: 20, staged: 20}, 20},
		{"not what is published", saveDue{at: 25, last: 100, every: 20, staged: 20, durable: 20, newest: 20}, 40},
		{"not what was given up", saveDue{at: 25, last: 100, every: 20, staged: 20, newest: 20}, 40},
		{"the interval is not over", saveDue{at: 25, last: 100}, 0},
		{"the interval is over", saveDue{at: 25, last: 100, elapsed: true}, 28},
		{"a stop", saveDue{at: 25, last: 100, every: 20, wanted: 26}, 26},
		{"a stop whose step has passed", saveDue{at: 30, last: 100, wanted: 26}, 31},
		{"beside one under way", saveDue{at: 25, last: 100, every: 20, staged: 20}.after(20), 40},
		{"the last is under way", saveDue{at: 100, last: 100, every: 20, durable: 80, newest: 80}.after(100), 0},
		{"a stop beside one under way", saveDue{at: 25, last: 100, every: 20, wanted: 26}.after(20), 26},
		{"a stop that is under way", saveDue{at: 30, last: 100, every: 20, wanted: 26}.after(26), 0},
		{"a stop that is saved", saveDue{at: 30, last: 100, every: 20, wanted: 26, durable: 26, newest: 26}, 0},
	} {
		if got := c.x.step(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	interval := saveDue{at: 26, last: 100, elapsed: true}
	if interval.replaces(28, false, 0) {
		t.Error("a save that is announced moves on with training: it is never reached")
	}
	stop := saveDue{at: 25, last: 100, every: 20, wanted: 26}
	if !stop.replaces(40, false, 0) || stop.replaces(20, true, 0) {
		t.Error("a stop waits for a later save, or throws away one that is under way")
	}
	end := saveDue{at: 100, last: 100, every: 20}
	if !end.replaces(80, true, 0) || end.replaces(80, true, 1) || end.replaces(100, true, 0) {
		t.Error("at the end of the job")
	}
}

func TestStagedStep(t *testing.T) {
	g := phalanx.Generation{Number: 1}
	label := func(step phalanx.Step, c int) phalanx.Label {
		return phalanx.Label{Step: step, Generation: g, Coordinate: c}
	}
	of := func(l phalanx.Label) bool { return l.Step <= 30 }
	for _, c := range []struct {
		slabs []phalanx.Label
		want  phalanx.Step
	}{
		{nil, 0},
		{[]phalanx.Label{label(20, 0)}, 0},
		{[]phalanx.Label{label(20, 0), label(20, 1)}, 20},
		{[]phalanx.Label{label(20, 0), label(10, 1), label(10, 0), label(20, 1)}, 20},
		{[]phalanx.Label{label(20, 0), {Step: 20, Coordinate: 1}}, 0},
		{[]phalanx.Label{label(40, 0), label(40, 1), label(20, 1), label(20, 0)}, 20},
		{[]phalanx.Label{label(20, 0), label(20, 2), label(20, -1)}, 0},
	} {
		if got := stagedStep(c.slabs, 2, of); got != c.want {
			t.Errorf("%v: %d, want %d", c.slabs, got, c.want)
		}
	}
}
