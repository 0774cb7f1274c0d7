// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"bytes"
	"slices"
	"testing"

	"phalanx/elastic"
)

// TestRanksAreKept: two ways lead to states of the log that differ in the ranks of b and c alone. A world that goes one way
// must never find itself with the ranks of the other: its members keep votes by rank, and what was heard would be another's.
func TestRanksAreKept(t *testing.T) {
	x, err := newExplorer(Config{Name: "ranks", Members: 3, Joiners: 1, Steps: 1, Generations: 3, Wishes: 2, Wish: Quarantines, Planned: true})
	if err != nil {
		t.Fatal(err)
	}
	play := func(way ...string) *world {
		t.Helper()
		x.Before = way
		w, err := x.begin()
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	// a leaves and c takes its rank.
	other := play("start c/0", "lead", "quarantine a/0", "lift a/0", "ask a/0; do leave a/0", "ask b/0; do leave b/0",
		"draft A a/0 b/0 c/0; commit A", "ask b/0; do leave b/0", "ask c/0; do leave c/0", "draft A a/0 b/0 c/0; commit A").state()
	// a leaves and c joins b. That a comes back, as all do without further faults, begins with the lift.
	w := play("ask a/0; do leave a/0", "ask b/0; do leave b/0", "quarantine a/0", "draft A a/0 b/0; commit A", "ask b/0; do leave b/0",
		"start c/0", "lead", "draft A a/0 b/0 c/0; commit A", "do read read c/0; do leave form c/0", "do compute c/0")
	lifted, err := w.state().Apply(elastic.Lift{Member: "a/0"})
	if err != nil {
		t.Fatal(err)
	}
	if lifted.Seq != other.Seq || !bytes.Equal(lifted.AppendKey(nil, x.names), other.AppendKey(nil, x.names)) || slices.Equal(lifted.World.Seats, other.World.Seats) {
		t.Fatalf("the states do not differ in ranks alone: entry %d with %v, entry %d with %v", lifted.Seq, lifted.World.Seats, other.Seq, other.World.Seats)
	}
	if got := x.intern(lifted).World.Seats; !slices.Equal(got, lifted.World.Seats) {
		t.Errorf("%v becomes %v", lifted.World.Seats, got)
	}
	if wrong, _ := (&keyed{x: x}).progress(w); wrong != "" {
		t.Error(wrong)
	}
}
