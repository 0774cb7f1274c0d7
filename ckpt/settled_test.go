// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// old is a job that has published and swept a lot.
func old(t *testing.T, n int) (*mem.Store, []*state) {
	t.Helper()
	s := mem.New()
	states := tinySeries(t, s, n)
	if _, err := ckpt.Pin(t.Context(), s, "job", 3, "ada", "", noon); err != nil {
		t.Fatal(err)
	}
	if _, _, err := prune(t, s, 2); err != nil {
		t.Fatal(err)
	}
	if _, _, err := prune(t, s, 2); err != nil { // finds them swept, and settles them
		t.Fatal(err)
	}
	return s, states
}

func TestStockOfAnOldJobIsTakenCheaply(t *testing.T) {
	counts := map[int]int{}
	for _, n := range []int{50, 100} {
		inner, states := old(t, n)
		s := mem.NewFaulty(inner, func(mem.Op) mem.Fault { return mem.Fault{} })
		inv, err := ckpt.TakeInventory(t.Context(), s, "job", nil)
		if err != nil || inv.Settled == nil || inv.Settled.Number != uint64(n-2) || !slices.Equal(inv.Settled.Left, []uint64{3}) {
			t.Fatalf("%+v, %v", inv.Settled, err)
		}
		counts[n] = s.Count()
		// What is decided is the same as by all records.
		all, _, err := ckpt.List(t.Context(), inner, "job")
		if err != nil {
			t.Fatal(err)
		}
		whole := *inv
		whole.Records, whole.Settled = all, nil
		policy := ckpt.Policy{KeepLast: 1}
		a, b := policy.Decide(inv, noon), policy.Decide(&whole, noon)
		if len(a) != 3 || len(a) != len(b) || a[0].Number != 3 {
			t.Fatal(a, b)
		}
		mustBeSound(t, inner, states, "settled")
	}
	if counts[100] > counts[50]+8 { // a binary search is a little longer
		t.Fatalf("requests by age: %v", counts)
	}
}

// What the mark says is not believed against the store, and an attempt that no record names is looked for among all of them.
func TestSettledIsNotBelievedBlindly(t *testing.T) {
	for name, change := range map[string]func(*mem.Store){
		"damaged": func(s *mem.Store) {
			if err := s.Flip("job/settled.json", 100); err != nil {
				t.Fatal(err)
			}
		},
		"of a longer life of the store": func(s *mem.Store) {
			for _, n := range []uint64{48, 49, 50} {
				if err := s.Delete(t.Context(), ckpt.CommitKey("job", n)); err != nil {
					t.Fatal(err)
				}
			}
		},
		"an abandoned attempt": func(s *mem.Store) {
			if _, err := shards(t, s, attempt(7, 1, 777), newState(smallLayout()[1:4], 1), 1, ckpt.PlanOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s, _ := old(t, 50)
		change(s)
		inv, err := ckpt.TakeInventory(t.Context(), s, "job", nil)
		if err != nil || inv.Settled != nil || len(inv.Records) < 47 {
			t.Errorf("%s: %d records, %+v, %v", name, len(inv.Records), inv.Settled, err)
		}
	}
	// A checkpoint that was put back by hand, commit object and data, is not taken for an abandoned attempt.
	s, _ := old(t, 50)
	saved := mem.New()
	states := tinySeries(t, saved, 9)
	for key, content := range objects(t, saved, "job/") {
		if strings.HasPrefix(key, "job/step-9-") || key == ckpt.CommitKey("job", 9) {
			if err := s.Put(t.Context(), key, ckpt.Bytes([]byte(content))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := collect(t.Context(), s, noon.Add(1000*time.Hour), nil); err != nil {
		t.Fatal(err)
	}
	r, err := ckpt.ReadRecord(t.Context(), s, "job", 9)
	if err != nil || r.Commit == nil {
		t.Fatal(r, err)
	}
	mustRestore(t, s, r.Commit, states[8])
}
