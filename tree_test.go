// SPDX-License-Identifier: Apache-2.0

package phalanx

import (
	"testing"

	"pgregory.net/rapid"
)

func TestCoverIsExactAndSmall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.IntRange(1, 200).Draw(t, "slots")
		a := rapid.IntRange(0, s-1).Draw(t, "first")
		b := rapid.IntRange(a+1, s).Draw(t, "end")
		tree := SlotTree{s}
		cover := tree.Cover(SlotRange{Slot(a), Slot(b)})
		at := Slot(a)
		for i, n := range cover {
			if n.First != at {
				t.Fatalf("cover %v of [%d,%d) has a gap", cover, a, b)
			}
			at = n.End
			if i > 0 {
				if m, ok := tree.Merge(cover[i-1], n); ok {
					t.Fatalf("cover %v of [%d,%d): %v could be merged", cover, a, b, m)
				}
			}
		}
		if at != Slot(b) {
			t.Fatalf("cover %v ends at %d, want %d", cover, at, b)
		}
		if len(cover) > tree.MaxCover() {
			t.Fatalf("cover of %d nodes, bound %d", len(cover), tree.MaxCover())
		}
	})
}

func TestMergeRebuildsTheRoot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.IntRange(1, 100).Draw(t, "slots")
		tree := SlotTree{s}
		var stack []Node
		for i := range s {
			stack = append(stack, Node{Slot(i), Slot(i + 1)})
			for len(stack) > 1 {
				m, ok := tree.Merge(stack[len(stack)-2], stack[len(stack)-1])
				if !ok {
					break
				}
				stack = append(stack[:len(stack)-2], m)
			}
		}
		if len(stack) != 1 || stack[0] != tree.Root() {
			t.Fatalf("folding %d leaves left %v", s, stack)
		}
	})
}

func TestDealSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.IntRange(1, 120).Draw(t, "slots")
		g := rapid.IntRange(1, s).Draw(t, "groups")
		ranges, err := DealSlots(s, g)
		if err != nil {
			t.Fatal(err)
		}
		at := Slot(0)
		for _, r := range ranges {
			if r.First != at || r.Len() < s/g || r.Len() > s/g+1 {
				t.Fatalf("deal of %d to %d: %v", s, g, ranges)
			}
			at = r.End
		}
		if at != Slot(s) {
			t.Fatalf("deal of %d to %d: %v", s, g, ranges)
		}
	})
	if _, err := DealSlots(3, 4); err == nil {
		t.Fatal("4 groups got 3 slots")
	}
}

func TestIdentities(t *testing.T) {
	id := NewMemberID("node-a", 3)
	if id.Host() != "node-a" || id.Index() != 3 || !id.Valid() || id.FileName() != "node-a.3" {
		t.Fatalf("%q: host %q index %d", id, id.Host(), id.Index())
	}
	for _, bad := range []MemberID{"", "a", "a/", "/1", "a b/1", "a/-1", "a/x"} {
		if bad.Valid() {
			t.Errorf("%q is valid", bad)
		}
	}
	g, err := ParseGeneration("2.7")
	if err != nil || g != (Generation{2, 7}) || g.String() != "2.7" || !(Generation{1, 9}).Less(g) {
		t.Fatalf("generation %v %v", g, err)
	}
	d := Digest{1, 0xabcdef}
	back, err := ParseDigest(d.String())
	if err != nil || back != d {
		t.Fatalf("digest %v %v", back, err)
	}
}
