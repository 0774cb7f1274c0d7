// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/mem"
)

func TestSaveAndRestoreAtEveryWorldSize(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 7} {
		for name, s := range stores(t) {
			st := newState(smallLayout(), uint64(ranks))
			if _, err := save(t, s, attempt(10, 1, 1), st, ranks); err != nil {
				t.Fatalf("%s, %d ranks: %v", name, ranks, err)
			}
			found, err := ckpt.Latest(t.Context(), s, "job")
			if err != nil || len(found.Problems) > 0 {
				t.Fatalf("%s, %d ranks: %v %v", name, ranks, err, found.Problems)
			}
			mustRestore(t, s, found.Record.Commit, st)
		}
	}
}

func stores(t *testing.T) map[string]ckpt.Store {
	t.Helper()
	dir, err := fs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]ckpt.Store{"mem": mem.New(), "fs": dir}
}

func TestTwoCoordinates(t *testing.T) {
	s := mem.New()
	a := attempt(3, 1, 1)
	states := []*state{newState(smallLayout(), 1), newState(smallLayout()[:2], 2)}
	for c, st := range states { // each holds half of the rows of larger tensors
		for i := range st.layout[:2] {
			t := &st.layout[i]
			whole := append([]int{2 * t.Shape[0]}, t.Shape[1:]...)
			offset := append([]int{c * t.Shape[0]}, make([]int, len(t.Shape)-1)...)
			t.Global = &phalanx.Global{Shape: whole, Offset: offset}
		}
	}
	var refs []ckpt.PartRef
	for c, st := range states {
		// rank = group × 2 + coordinate
		ranks := []phalanx.Rank{phalanx.Rank(c), phalanx.Rank(c + 2)}
		plan, err := ckpt.NewPlan(c, st.layout, ranks, ckpt.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range ranks {
			ref, err := ckpt.WriteShard(t.Context(), s, a, r, plan, st)
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, ref)
		}
	}
	if _, err := ckpt.Publish(t.Context(), s, publication(a, 1), refs); !errors.Is(err, ckpt.ErrIncomplete) {
		t.Fatalf("one label for two coordinates: %v", err)
	}
	if _, err := ckpt.Publish(t.Context(), s, publication(a, 2), refs[:2]); !errors.Is(err, ckpt.ErrIncomplete) {
		t.Fatalf("parts of one coordinate: %v", err)
	}
	r, err := ckpt.Publish(t.Context(), s, publication(a, 2), refs)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := ckpt.Open(t.Context(), s, r.Commit)
	if err != nil {
		t.Fatal(err)
	}
	for c, st := range states {
		if cp.State(c).Manifest.StateDigest != st.digest() || cp.State(c).Label.Coordinate != c {
			t.Fatalf("coordinate %d", c)
		}
	}
	report, err := cp.VerifyAll(t.Context(), nil)
	if err != nil || report.Err() != nil {
		t.Fatal(err, report.Err())
	}
}

func TestPublishIsIdempotentAndFences(t *testing.T) {
	s := mem.New()
	st := newState(smallLayout(), 1)
	first, err := save(t, s, attempt(10, 2, 1), st, 2)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := save(t, s, attempt(10, 2, 1), st, 2); err != nil || again.SHA256 != first.SHA256 || again.Number != 1 {
		t.Fatalf("again: %+v, %v", again, err)
	}
	for name, a := range map[string]ckpt.Attempt{
		"older generation": attempt(11, 1, 1),
		"same step":        attempt(10, 2, 2),
		"older step":       attempt(9, 3, 1),
	} {
		_, err := save(t, s, a, st, 2)
		var fenced *ckpt.FencedError
		if !errors.Is(err, ckpt.ErrFenced) || !errors.As(err, &fenced) || fenced.By.Number != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	second, err := save(t, s, attempt(11, 2, 3), st, 2)
	if err != nil || second.Number != 2 || second.Commit.Predecessor != first.SHA256 {
		t.Fatalf("%+v, %v", second, err)
	}
	// A leader that lost the answer asks again after others have published.
	if again, err := save(t, s, attempt(10, 2, 1), st, 2); err != nil || again.Number != 1 {
		t.Fatalf("after a later save: %+v, %v", again, err)
	}
	// A rewind: a new branch may publish an older step, the old branch may not go on.
	a := attempt(5, 3, 1)
	refs, err := shards(t, s, a, st, 1, ckpt.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := publication(a, 1)
	p.Branch = 1
	unknown := strings.Repeat("ab", 32)
	p.Follows = &unknown
	if _, err := ckpt.Publish(t.Context(), s, p, refs); !errors.Is(err, ckpt.ErrFenced) {
		t.Fatalf("another lineage: %v", err)
	}
	p.Follows = &second.SHA256
	if r, err := ckpt.Publish(t.Context(), s, p, refs); err != nil || r.Number != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := save(t, s, attempt(12, 3, 9), st, 2); !errors.Is(err, ckpt.ErrFenced) {
		t.Fatalf("the old branch went on: %v", err)
	}
	if _, err := ckpt.Publish(t.Context(), mem.New(), p, refs); !errors.Is(err, ckpt.ErrNotFound) {
		t.Fatalf("an empty store: %v", err)
	}
}

func TestTwoLineagesMeetAtOneNumber(t *testing.T) {
	// Both publishers see the same newest commit; the rival writes between the list and the create.
	inner := mem.New()
	st := newState(smallLayout(), 1)
	rival := attempt(20, 1, 7)
	var rivalErr error
	s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
		if op.Verb == mem.PutIfAbsent && strings.Contains(op.Key, "/commits/") {
			_, rivalErr = save(t, inner, rival, st, 2)
		}
		return mem.Fault{}
	})
	_, err := save(t, s, attempt(21, 1, 1), st, 2)
	var fenced *ckpt.FencedError
	if rivalErr != nil || !errors.As(err, &fenced) || fenced.By.Attempt() != rival {
		t.Fatalf("rival %v, loser %v", rivalErr, err)
	}
	if records, problems, err := ckpt.List(t.Context(), inner, "job"); err != nil || len(records) != 1 || len(problems) > 0 {
		t.Fatal(records, problems, err)
	}
}

// A wrong bit in one rank's memory, in any tensor, is noticed: two ranks digest each.
func TestOneWrongRankIsNoticed(t *testing.T) {
	layout := []phalanx.TensorInfo{}
	for i := range 7 {
		layout = append(layout, phalanx.TensorInfo{Name: fmt.Sprint("w", i), DType: "f32", Shape: []int{50, 100}})
	}
	ranks := []phalanx.Rank{0, 1, 2}
	plan, err := ckpt.NewPlan(0, layout, ranks, ckpt.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range ranks {
		for _, b := range plan.Shard(wrong).Boxes { // what it writes
			s, a := mem.New(), attempt(1, 1, 1)
			var refs []ckpt.PartRef
			for _, r := range ranks {
				st := newState(layout, 1)
				if r == wrong {
					st.content[b.Tensor][77] ^= 4
				}
				ref, err := ckpt.WriteShard(t.Context(), s, a, r, plan, st)
				if err != nil {
					t.Fatal(err)
				}
				refs = append(refs, ref)
			}
			_, err := ckpt.Publish(t.Context(), s, publication(a, 1), refs)
			var diverged *ckpt.DivergedError
			if !errors.As(err, &diverged) || diverged.Tensor != layout[b.Tensor].Name || diverged.Digests[wrong] == (phalanx.Digest{}) {
				t.Fatalf("rank %d, tensor %d: %v", wrong, b.Tensor, err)
			}
		}
	}
}

func TestDivergedCopiesAreNotPublished(t *testing.T) {
	s := mem.New()
	a := attempt(1, 1, 1)
	layout := []phalanx.TensorInfo{{Name: "w", DType: "f32", Shape: []int{400, 1000}}}
	plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0, 1}, ckpt.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one, other := newState(layout, 1), newState(layout, 1)
	other.content[0][3] ^= 1 // in the share of rank 0
	var refs []ckpt.PartRef
	for r, st := range []*state{one, other} {
		ref, err := ckpt.WriteShard(t.Context(), s, a, phalanx.Rank(r), plan, st)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	_, err = ckpt.Publish(t.Context(), s, publication(a, 1), refs)
	var diverged *ckpt.DivergedError
	if !errors.As(err, &diverged) || !errors.Is(err, ckpt.ErrIncomplete) || diverged.Tensor != "w" || len(diverged.Digests) != 2 {
		t.Fatal(err)
	}
}

func TestPublishRefusesWhatIsNotWhole(t *testing.T) {
	good := mem.New()
	a := attempt(1, 1, 1)
	st := newState(smallLayout(), 1)
	refs, err := shards(t, good, a, st, 3, ckpt.PlanOptions{ObjectBytes: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(s ckpt.Store, refs []ckpt.PartRef) error {
		_, err := ckpt.Publish(t.Context(), s, publication(a, 1), refs)
		return err
	}
	for i := range refs {
		rest := append(append([]ckpt.PartRef{}, refs[:i]...), refs[i+1:]...)
		if err := publish(good, rest); !errors.Is(err, ckpt.ErrIncomplete) {
			t.Errorf("without part %d: %v", i, err)
		}
	}
	objects, err := ckpt.ListAll(t.Context(), good, a.Folder())
	if err != nil || len(objects) < 6 {
		t.Fatal(objects, err)
	}
	for _, o := range objects {
		s := good.Clone()
		if err := s.Delete(t.Context(), o.Key); err != nil {
			t.Fatal(err)
		}
		if err := publish(s, refs); !errors.Is(err, ckpt.ErrIncomplete) {
			t.Errorf("without %s: %v", o.Key, err)
		}
		s = good.Clone()
		p, _ := s.Get(t.Context(), o.Key, 0, -1)
		if err := s.Put(t.Context(), o.Key, ckpt.Bytes(p[:len(p)-1])); err != nil {
			t.Fatal(err)
		}
		if err := publish(s, refs); !errors.Is(err, ckpt.ErrCorrupt) {
			t.Errorf("with a short %s: %v", o.Key, err)
		}
	}
	if err := publish(good, refs); err != nil {
		t.Fatal(err)
	}
}

func TestTakeover(t *testing.T) {
	// Rank 1 dies half way; another holder of the same state finishes its share.
	inner := mem.New()
	a := attempt(1, 1, 1)
	st := newState(smallLayout(), 1)
	plan, err := ckpt.NewPlan(0, st.layout, []phalanx.Rank{0, 1}, ckpt.PlanOptions{ObjectBytes: 70_000})
	if err != nil {
		t.Fatal(err)
	}
	dying := mem.NewFaulty(inner, func(op mem.Op) mem.Fault { return mem.Fault{Kill: op.Seq == 1, After: true} })
	if _, err := ckpt.WriteShard(t.Context(), dying, a, 1, plan, st); !errors.Is(err, mem.ErrKilled) {
		t.Fatal(err)
	}
	var refs []ckpt.PartRef
	for r := range 2 {
		ref, err := ckpt.WriteShard(t.Context(), inner, a, phalanx.Rank(r), plan, st)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	r, err := ckpt.Publish(t.Context(), inner, publication(a, 1), refs)
	if err != nil {
		t.Fatal(err)
	}
	mustRestore(t, inner, r.Commit, st)

	other := newState(smallLayout(), 2)
	if _, err := ckpt.WriteShard(t.Context(), inner, a, 1, plan, other); !errors.Is(err, ckpt.ErrExists) {
		t.Fatalf("another state under the same attempt: %v", err)
	}
}

func TestUnknownOutcomes(t *testing.T) {
	// Every write's answer is lost once, whether or not it took effect; the save succeeds and is published once.
	for _, after := range []bool{false, true} {
		inner := mem.New()
		seen := map[string]bool{}
		s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
			if op.Verb != mem.PutIfAbsent || seen[op.Key] {
				return mem.Fault{}
			}
			seen[op.Key] = true
			return mem.Fault{Err: ckpt.ErrConflict, After: after}
		})
		st := newState(smallLayout()[:2], 1)
		r, err := save(t, s, attempt(1, 1, 1), st, 1)
		if err != nil || r.Number != 1 {
			t.Fatalf("after=%v: %+v, %v", after, r, err)
		}
		mustRestore(t, inner, r.Commit, st)
	}
}

// TestCrashAtEveryOperation is P4: whatever operation a save dies at, before it or after it, the newest checkpoint is the
// old one or the new one, and restores bit for bit; and the same attempt can be finished by somebody else.
func TestCrashAtEveryOperation(t *testing.T) {
	before := mem.New()
	old := newState(smallLayout(), 1)
	if _, err := save(t, before, attempt(1, 1, 1), old, 2); err != nil {
		t.Fatal(err)
	}
	next := newState(smallLayout(), 2)
	outcomes := map[bool]int{}
	for _, fault := range []mem.Fault{{Kill: true}, {Kill: true, After: true}, {Err: errors.New("disk")}, {Err: ckpt.ErrConflict, After: true}} {
		for k := 0; ; k++ {
			inner := before.Clone()
			s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
				if op.Seq == k {
					return fault
				}
				return mem.Fault{}
			})
			_, err := save(t, s, attempt(2, 1, 2), next, 2)
			if s.Count() <= k {
				if err != nil {
					t.Fatalf("without a fault: %v", err)
				}
				break
			}
			found, lerr := ckpt.Latest(t.Context(), inner, "job")
			if lerr != nil || len(found.Problems) > 0 {
				t.Fatalf("%+v at %d: %v %v", fault, k, lerr, found.Problems)
			}
			isNew := found.Record.Commit.Step == 2
			outcomes[isNew]++
			if isNew {
				mustRestore(t, inner, found.Record.Commit, next)
			} else {
				mustRestore(t, inner, found.Record.Commit, old)
				if err == nil {
					t.Fatalf("%+v at %d: reported as published and it is not", fault, k)
				}
			}
			if r, err := save(t, inner, attempt(2, 1, 2), next, 2); err != nil || r.Number != 2 {
				t.Fatalf("%+v at %d: finished by another: %+v, %v", fault, k, r, err)
			}
		}
	}
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Fatalf("outcomes %v: the test did not see both", outcomes)
	}
}

func TestWriteShardEndsWithItsContext(t *testing.T) {
	st := newState(smallLayout(), 1)
	_, err := save(t, mem.NewFaulty(mem.New(), func(mem.Op) mem.Fault { return mem.Fault{Err: bytes.ErrTooLarge} }), attempt(1, 1, 1), st, 1)
	if !errors.Is(err, bytes.ErrTooLarge) || !strings.Contains(err.Error(), "job/step-1-g1-a2.1") {
		t.Fatalf("the error does not name the object or wraps nothing: %v", err)
	}
}

func TestUnreachableStoreIsUnknown(t *testing.T) {
	// The create is answered with "exists" and nothing can be read afterwards: nobody may conclude that it lost.
	inner := mem.New()
	blind := false
	s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
		if op.Verb == mem.PutIfAbsent && strings.Contains(op.Key, "/commits/") {
			blind = true
			return mem.Fault{Err: ckpt.ErrExists, After: true}
		}
		if blind {
			return mem.Fault{Err: errors.New("timeout")}
		}
		return mem.Fault{}
	})
	st := newState(smallLayout()[:2], 1)
	if _, err := save(t, s, attempt(1, 1, 1), st, 1); !errors.Is(err, ckpt.ErrConflict) || errors.Is(err, ckpt.ErrFenced) {
		t.Fatal(err)
	}
	if r, err := save(t, inner, attempt(1, 1, 1), st, 1); err != nil || r.Number != 1 {
		t.Fatal(r, err)
	}
}
