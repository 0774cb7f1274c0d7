// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
)

// drawDeal cuts the slots at random; with shuffle the ranges go to the groups in any order.
func drawDeal(t *rapid.T, slots, n int) []phalanx.SlotRange {
	cuts := map[int]bool{}
	for len(cuts) < n-1 {
		cuts[rapid.IntRange(1, slots-1).Draw(t, "cut")] = true
	}
	at := []int{0, slots}
	for c := range cuts {
		at = append(at, c)
	}
	slices.Sort(at)
	var deal []phalanx.SlotRange
	for i := range n {
		deal = append(deal, phalanx.SlotRange{First: phalanx.Slot(at[i]), End: phalanx.Slot(at[i+1])})
	}
	if rapid.Bool().Draw(t, "shuffled deal") {
		deal = rapid.Permutation(deal).Draw(t, "deal")
	}
	return deal
}

// TestSumIsTheTree: whatever the membership, deal, hosts, order of arrival and algorithm, every rank gets the bits of the
// plain recursion, and for types that are not rounded by the trainer those do not depend on the deal either.
func TestSumIsTheTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 24).Draw(t, "slots")
		d := rapid.SampledFrom([]DType{F32, F64, I64, BF16, F16}).Draw(t, "type")
		count := rapid.SampledFrom([]int{0, 1, 2, 15, 16, 17, 31, 33, 257, 4097}).Draw(t, "count")
		scale := rapid.Bool().Draw(t, "scale")
		l := newLeaves(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), d, slots, count)
		alone := l.sum([]phalanx.SlotRange{{First: 0, End: phalanx.Slot(slots)}}, scale)
		for range 2 {
			deal := oneSum(t, l, scale)
			want := l.sum(deal, scale)
			if d == F32 || d == F64 || d == I64 {
				differ(t, "the oracle over another deal", want, alone)
			}
		}
	})
}

func oneSum(t *rapid.T, l *leaves, scale bool) []phalanx.SlotRange {
	n := rapid.IntRange(1, min(l.slots, 19)).Draw(t, "ranks")
	hosts, most := make([]int, n), rapid.SampledFrom([]int{0, 2}).Draw(t, "last host")
	inline := make([]int64, n)
	for i := range hosts {
		hosts[i] = rapid.IntRange(0, most).Draw(t, "host")
		inline[i] = rapid.SampledFrom([]int64{0, 64, 1 << 20}).Draw(t, "inline up to")
	}
	deal := drawDeal(t, l.slots, n)
	directMax := rapid.SampledFrom([]int{1, 16}).Draw(t, "direct up to")
	oneRoundMax := rapid.SampledFrom([]int{-1, 0, 0}).Draw(t, "one round up to")
	kind := rapid.SampledFrom([]Kind{AllReduce, AllReduce, ReduceScatter}).Draw(t, "kind")
	inPlace := rapid.Bool().Draw(t, "in place")
	order := rapid.Permutation(ranks(n)).Draw(t, "order")
	c := newCluster(t, layout{
		hosts: hosts, deal: deal, slots: l.slots, bytes: sumBytes(l.d, l.count, 2*l.slots), options: Options{DirectMax: directMax, OneRoundMax: oneRoundMax},
		inline: inline, pipe: rapid.Bool().Draw(t, "pipe"),
	})
	defer c.close()
	c.formAll(t)
	ops := make([]Op, n)
	want := l.sum(deal, scale)
	for range 2 {
		for r := range ops {
			ops[r] = c.place(r, l, kind, scale, inPlace)
		}
		c.mustAll(t, order, func(r int) Op { return ops[r] })
		for r := range ops {
			part := want
			if kind == ReduceScatter {
				first, end := Shard(int64(l.count), n, r)
				part = want[first*l.d.Size() : end*l.d.Size()]
			}
			differ(t, fmt.Sprintf("rank %d of %d", r, n), c.out(r, ops[r]), part)
		}
	}
	return deal
}

// TestFold: every set of disjoint nodes folds to its largest full subtrees, in slot order.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := phalanx.SlotTree{Slots: rapid.IntRange(1, 40).Draw(t, "slots")}
		have := make([]bool, tree.Slots)
		var nodes []phalanx.Node
		for s := range tree.Slots {
			if have[s] = rapid.Bool().Draw(t, "have"); have[s] {
				nodes = append(nodes, phalanx.Node{First: phalanx.Slot(s), End: phalanx.Slot(s + 1)})
			}
		}
		var want []phalanx.Node
		for s := 0; s < tree.Slots; {
			e := s
			for e < tree.Slots && have[e] {
				e++
			}
			want = append(want, tree.Cover(phalanx.SlotRange{First: phalanx.Slot(s), End: phalanx.Slot(e)})...)
			s = max(e, s+1)
		}
		f, err := newFold(tree, rapid.Permutation(nodes).Draw(t, "order"), false)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if !slices.Equal(f.results, want) {
			t.Fatalf("results %v, want %v", f.results, want)
		}
	})
}
