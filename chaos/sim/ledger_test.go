// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"
	"testing"

	"phalanx"
	"phalanx/client"
	"phalanx/client/wire"
)

// Each promise that the ledger watches is noticed when it is broken, and a run that keeps them is not accused.
func TestLedgerNotices(t *testing.T) {
	spec := phalanx.JobSpec{LastStep: 3, Slots: 2, GlobalBatch: 2, GroupSize: 1}
	want := undisturbed(spec)
	first, second := phalanx.Generation{Number: 1}, phalanx.Generation{Number: 2}
	seat := func(g phalanx.Generation, branch uint64) wire.Seat { return wire.Seat{Generation: g, Branch: branch} }
	begin := func(g phalanx.Generation, step phalanx.Step, rank phalanx.Rank, from, end phalanx.Slot) client.Begin {
		return client.Begin{Generation: g, Step: step, Rank: rank, World: 2, Slots: phalanx.SlotRange{First: from, End: end}}
	}
	// both has two members make a step in a generation.
	both := func(l *ledger, g phalanx.Generation, step phalanx.Step) {
		for i, m := range []phalanx.MemberID{"a/0", "b/0"} {
			b := begin(g, step, phalanx.Rank(i), phalanx.Slot(i), phalanx.Slot(i+1))
			l.began(m, b, seat(g, 0))
			l.computed(m, b, phalanx.Slot(i))
		}
	}
	one, other := phalanx.Digest{1}, phalanx.Digest{2}
	for name, c := range map[string]struct {
		do   func(l *ledger)
		says string // "" when all is well
	}{
		"steps in two generations": {func(l *ledger) {
			both(l, first, 1)
			l.applied("a/0", 1, first, one, want[1])
			both(l, second, 2)
			l.applied("b/0", 1, first, one, want[1]) // rolls forward late
			l.applied("b/0", 2, second, one, want[2])
		}, ""},
		"begun again": {func(l *ledger) { both(l, first, 1); both(l, first, 1) }, ""},
		"another state": {func(l *ledger) {
			both(l, first, 1)
			l.applied("a/0", 1, first, one, want[2])
		}, "P3: the state of a/0"},
		"a slot is missing": {func(l *ledger) {
			l.began("a/0", begin(first, 1, 0, 0, 1), seat(first, 0))
			l.computed("a/0", begin(first, 1, 0, 0, 1), 0)
			l.applied("a/0", 1, first, one, want[1])
		}, "P3: step 1 in generation 1 was committed with 1 of 2 slots"},
		"a slot is computed twice": {func(l *ledger) {
			both(l, first, 1)
			l.computed("b/0", begin(first, 1, 1, 1, 2), 0)
		}, "P3: slot 0 of step 1"},
		"two worlds commit a step": {func(l *ledger) {
			both(l, first, 1)
			both(l, second, 1)
			l.applied("a/0", 1, first, one, want[1])
			l.applied("b/0", 1, second, one, want[1])
		}, "P2: step 1 of branch 0 is committed as"},
		"two gradients for a step": {func(l *ledger) {
			both(l, first, 1)
			l.applied("a/0", 1, first, one, want[1])
			l.applied("b/0", 1, first, other, want[1])
		}, "P2: step 1 of branch 0 is committed as"},
		"an old world goes on": {func(l *ledger) {
			both(l, second, 1)
			both(l, first, 2)
			l.applied("a/0", 1, second, one, want[1])
			l.applied("b/0", 2, first, one, want[2])
		}, "P2: step 2 is committed in generation 1"},
		"a generation is used twice": {func(l *ledger) {
			both(l, first, 1)
			l.began("c/0", begin(first, 1, 0, 0, 1), seat(first, 0))
		}, "P2: generation 1 was used twice"},
		"a generation on two branches": {func(l *ledger) {
			both(l, first, 1)
			l.began("a/0", begin(first, 1, 0, 0, 1), seat(first, 1))
		}, "P2: generation 1 is on branch 0"},
		"a commit out of nowhere": {func(l *ledger) { l.applied("a/0", 1, first, one, want[1]) }, "in which nobody has begun"},
	} {
		t.Run(name, func(t *testing.T) {
			var said []string
			l := newLedger(spec, want, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
			c.do(l)
			if all := strings.Join(said, "\n"); c.says == "" && all != "" || !strings.Contains(all, c.says) {
				t.Errorf("said %q, want %q", all, c.says)
			}
		})
	}
}

// A schedule has enough faults of enough classes, and leaves a majority.
func TestSchedule(t *testing.T) {
	for seed := range uint64(500) {
		kinds := map[Class]int{}
		for _, f := range schedule(seed) {
			kinds[f.Class]++
		}
		if len(kinds) < 5 || kinds[HostLost]+kinds[StoreTorn] > 1 {
			t.Fatalf("seed %d: %v", seed, kinds)
		}
	}
}
