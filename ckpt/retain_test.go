// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

func TestRetain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var records []ckpt.Record
		var live []uint64
		for i := range rapid.IntRange(0, 12).Draw(t, "records") {
			r := ckpt.Record{Number: uint64(i + 1), Commit: &ckpt.Commit{}}
			if rapid.Bool().Draw(t, "stub") {
				r.Commit, r.Stub = nil, &ckpt.Stub{}
			} else {
				live = append(live, r.Number)
			}
			records = append(records, r)
		}
		keep := rapid.IntRange(-1, 5).Draw(t, "keep")
		verified := rapid.Uint64Range(0, 13).Draw(t, "verified")
		drop := ckpt.Retain(records, keep, verified)
		if !slices.IsSorted(drop) || slices.Contains(drop, verified) && verified != 0 {
			t.Fatalf("drop %v", drop)
		}
		for i, n := range live {
			isNewest := i >= len(live)-max(keep, 1)
			want := !isNewest && (verified == 0 || n < verified)
			if slices.Contains(drop, n) != want {
				t.Fatalf("of %v keep %d with %d verified: drop %v", live, keep, verified, drop)
			}
		}
	})
}

func TestPrune(t *testing.T) {
	s := mem.New()
	states := series(t, s, 4)
	ctx := t.Context()
	// An attempt that died before it was published, and one that may still be.
	if _, err := shards(t, s, attempt(3, 1, 77), states[0], 1, ckpt.PlanOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := shards(t, s, attempt(5, 1, 5), states[0], 1, ckpt.PlanOptions{}); err != nil {
		t.Fatal(err)
	}
	records, _, err := ckpt.List(ctx, s, "job")
	if err != nil {
		t.Fatal(err)
	}
	done, err := ckpt.Prune(ctx, s, "job", ckpt.Retain(records, 2, 2))
	if err != nil || !slices.Equal(done.Stubbed, []uint64{1}) || len(done.Swept) != 2 || done.Bytes == 0 {
		t.Fatal(done, err)
	}
	folders := map[string]bool{}
	all, err := ckpt.ListAll(ctx, s, "job/step-")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		folders[strings.Split(o.Key, "/")[1]] = true
	}
	if fmt.Sprint(folders) != "map[step-2-g1-a2.2:true step-3-g1-a2.3:true step-4-g1-a2.4:true step-5-g1-a2.5:true]" {
		t.Fatal(folders)
	}
	records, problems, err := ckpt.List(ctx, s, "job")
	if err != nil || len(problems) > 0 || len(records) != 4 || records[0].Stub == nil || !records[0].Stub.Swept {
		t.Fatal(records, problems, err)
	}
	if again, err := ckpt.Prune(ctx, s, "job", []uint64{1}); err != nil || again.Objects != 0 || len(again.Stubbed) != 0 {
		t.Fatal(again, err)
	}
	for _, n := range []uint64{0, 4, 5} {
		if _, err := ckpt.Prune(ctx, s, "job", []uint64{n}); err == nil {
			t.Fatalf("commit %d was dropped", n)
		}
	}
	if r, err := save(t, s, attempt(6, 1, 6), states[0], 2); err != nil || r.Number != 5 {
		t.Fatal(r, err)
	}
}

func TestCrashAtEveryOperationOfPrune(t *testing.T) {
	before := mem.New()
	states := series(t, before, 3)
	for _, fault := range []mem.Fault{{Kill: true}, {Kill: true, After: true}, {Err: ckpt.ErrConflict, After: true}} {
		for k := 0; ; k++ {
			inner := before.Clone()
			s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
				if op.Seq == k {
					return fault
				}
				return mem.Fault{}
			})
			_, err := ckpt.Prune(t.Context(), s, "job", []uint64{1, 2})
			if s.Count() <= k {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			records, problems, err := ckpt.List(t.Context(), inner, "job")
			if err != nil || len(problems) > 0 || len(records) != 3 {
				t.Fatal(records, problems, err)
			}
			for i, r := range records {
				if r.Commit != nil { // what is not a stub is whole
					mustRestore(t, inner, r.Commit, states[i])
				}
			}
			if _, err := ckpt.Prune(t.Context(), inner, "job", []uint64{1, 2}); err != nil {
				t.Fatalf("finish after %d: %v", k, err)
			}
			rest, err := ckpt.ListAll(t.Context(), inner, "job/step-")
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range rest {
				if !strings.HasPrefix(o.Key, "job/step-3-") {
					t.Fatalf("after %d: %s is left", k, o.Key)
				}
			}
		}
	}
}

// stepsLeft are the steps of the folders that have objects.
func stepsLeft(t *testing.T, s ckpt.Store) string {
	t.Helper()
	all, err := ckpt.ListAll(t.Context(), s, "job/step-")
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, o := range all {
		if step := strings.Split(o.Key, "-")[1]; !slices.Contains(steps, step) {
			steps = append(steps, step)
		}
	}
	return strings.Join(steps, " ")
}

func TestPruneGoesOnBesideDamage(t *testing.T) {
	for name, c := range map[string]struct {
		number   uint64
		from, to string // what changes in the commit object
		left     string
	}{
		"not JSON":       {3, "{", "[", "3 5"},
		"another number": {3, `"number": 3`, `"number": 7`, "3 5"},
		// It reads well and names a folder that is not the one that it published.
		"another attempt": {3, "-a2.3", "-a2.9", "3 4 5"},
		"the newest":      {5, "{", "[", "4 5"},
	} {
		s := mem.New()
		states := series(t, s, 5)
		flip(t, s, c.number, c.from, c.to)
		records, _, err := ckpt.List(t.Context(), s, "job")
		if err != nil {
			t.Fatal(err)
		}
		_, err = ckpt.Prune(t.Context(), s, "job", ckpt.Retain(records, 1, 0))
		var problem ckpt.Problem
		if !errors.As(err, &problem) {
			t.Fatalf("%s: the damage is not told: %v", name, err)
		}
		if left := stepsLeft(t, s); left != c.left {
			t.Errorf("%s: the folders of steps %s are left, want %s: %v", name, left, c.left, err)
		}
		if r, err := save(t, s, attempt(6, 1, 6), states[0], 1); err != nil || r.Number != 6 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestPruneStopsWhenTheStoreCannotBeRead(t *testing.T) {
	inner := mem.New()
	series(t, inner, 3)
	s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
		if op.Verb == mem.Get && op.Key == ckpt.CommitKey("job", 2) {
			return mem.Fault{Err: errors.New("timeout")}
		}
		return mem.Fault{}
	})
	if done, err := ckpt.Prune(t.Context(), s, "job", []uint64{1}); err == nil || done.Objects != 0 || len(done.Stubbed) != 0 {
		t.Fatal(done, err)
	}
}

// A checkpoint that was published again, because its commit object was damaged, and whose old object was put back.
func TestPruneKeepsDataThatTwoNumbersName(t *testing.T) {
	s := mem.New()
	states := series(t, s, 1)
	before := flip(t, s, 1, "{", "[")
	r, err := save(t, s, attempt(1, 1, 1), states[0], 2)
	if err != nil || r.Number != 2 {
		t.Fatal(r, err)
	}
	if err := s.Put(t.Context(), ckpt.CommitKey("job", 1), ckpt.Bytes(before)); err != nil {
		t.Fatal(err)
	}
	_, _ = ckpt.Prune(t.Context(), s, "job", []uint64{1}) // the broken link is its error
	mustRestore(t, s, r.Commit, states[0])
}
