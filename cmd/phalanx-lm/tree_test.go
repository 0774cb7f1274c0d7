// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"

	"phalanx"
)

// leafSum is the definition: recursion over the tree.
func leafSum(tree phalanx.SlotTree, n phalanx.Node, leaves []float32) float32 {
	if n.Len() == 1 {
		return leaves[n.First]
	}
	left, right := tree.Children(n)
	return leafSum(tree, left, leaves) + leafSum(tree, right, leaves)
}

func foldSlots(f *treeFold, slots phalanx.SlotRange, leaves []float32) {
	for s := slots.First; s < slots.End; s++ {
		block := f.Slot(s)
		for i := range block {
			block[i] = leaves[s]
		}
		f.Done(s)
	}
}

func TestFoldIsTheTreeForEveryDeal(t *testing.T) {
	for slots := 1; slots <= 20; slots++ {
		tree := phalanx.SlotTree{Slots: slots}
		leaves := make([]float32, slots)
		for i := range leaves {
			leaves[i] = float32(math.Pow(-3, float64(i%17))) / 7 // sums of these depend on their order
		}
		want := leafSum(tree, tree.Root(), leaves)
		for groups := 1; groups <= slots; groups++ {
			deal, err := phalanx.DealSlots(slots, groups)
			if err != nil {
				t.Fatal(err)
			}
			root := treeFold{tree: tree, elements: 2}
			for _, slots := range deal {
				rank := treeFold{tree: tree, elements: 2}
				foldSlots(&rank, slots, leaves)
				cover := tree.Cover(slots)
				if len(rank.parts) != len(cover) {
					t.Fatalf("%v left %d sums, its cover has %d", slots, len(rank.parts), len(cover))
				}
				for i, p := range rank.parts {
					if p.node != cover[i] {
						t.Fatalf("%v: sum %d is of %v, want %v", slots, i, p.node, cover[i])
					}
					root.add(p)
				}
			}
			got := root.whole()
			if got == nil || got[0] != want || got[1] != want {
				t.Fatalf("%d slots in %d groups: %v, want %v", slots, groups, got, want)
			}
		}
	}
}

// A sum of negative zeros is a negative zero; adding it to a cleared block, or a missing sibling as 0, would lose the sign.
func TestFoldKeepsNegativeZero(t *testing.T) {
	negative := float32(math.Copysign(0, -1))
	for slots := 1; slots <= 13; slots++ {
		f := treeFold{tree: phalanx.SlotTree{Slots: slots}, elements: 3}
		leaves := make([]float32, slots)
		for i := range leaves {
			leaves[i] = negative
		}
		for range 2 { // the second time with used memory
			f.reset()
			foldSlots(&f, f.tree.Root(), leaves)
			for _, x := range f.whole() {
				if math.Float32bits(x) != math.Float32bits(negative) {
					t.Fatalf("%d slots: sum of -0 is %v", slots, x)
				}
			}
		}
		leaves[slots/2] = 0
		f.reset()
		foldSlots(&f, f.tree.Root(), leaves)
		if x := f.whole()[0]; math.Float32bits(x) != 0 {
			t.Fatalf("%d slots: -0 and one 0 give %v", slots, x)
		}
	}
}

func TestFoldReusesItsBlocksCleared(t *testing.T) {
	f := treeFold{tree: phalanx.SlotTree{Slots: 12}, elements: 4}
	leaves := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	for range 5 {
		f.reset()
		if f.whole() != nil {
			t.Fatal("an empty fold has a whole sum")
		}
		for s := range phalanx.Slot(12) {
			block := f.Slot(s)
			for i := range block {
				if block[i] != 0 {
					t.Fatal("a block was not cleared")
				}
				block[i] += leaves[s]
			}
			f.Done(s)
		}
		if got := f.whole()[3]; got != 78 {
			t.Fatalf("sum %v", got)
		}
	}
	if n := len(f.parts) + len(f.free); n > f.tree.MaxCover() {
		t.Errorf("%d blocks in use for 12 slots", n)
	}
}
