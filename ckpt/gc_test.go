// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// faults are the ends that an operation of a store may come to.
var faults = []mem.Fault{{Kill: true}, {Kill: true, After: true}, {Err: errors.New("disk")}, {Err: ckpt.ErrConflict, After: true}}

// tinySeries publishes so many small checkpoints.
func tinySeries(t *testing.T, s ckpt.Store, n int) []*state {
	t.Helper()
	var states []*state
	for step := 1; step <= n; step++ {
		st := newState(smallLayout()[1:4], uint64(step))
		if _, err := save(t, s, attempt(step, 1, uint64(step)), st, 2); err != nil {
			t.Fatal(err)
		}
		states = append(states, st)
	}
	return states
}

// atEveryOperation runs an action again and again, each time with one more operation before the fault, until it runs through.
func atEveryOperation(t *testing.T, begin func() *mem.Store, run func(s ckpt.Store) error, check func(inner *mem.Store, at string, err error)) {
	t.Helper()
	for _, fault := range faults {
		for k := 0; ; k++ {
			inner := begin()
			s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
				if op.Seq == k {
					return fault
				}
				return mem.Fault{}
			})
			err := run(s)
			if s.Count() <= k {
				if err != nil {
					t.Fatalf("without a fault: %v", err)
				}
				if k < 3 {
					t.Fatalf("only %d operations", k)
				}
				break
			}
			check(inner, fmt.Sprintf("%+v at %d", fault, k), err)
		}
	}
}

// mustBeSound checks what holds at any time: the chain is whole, what is published restores bit for bit, and what is forgotten
// and not being swept can be put back and does.
func mustBeSound(t *testing.T, s *mem.Store, states []*state, at string) {
	t.Helper()
	records, problems, err := ckpt.List(t.Context(), s, "job")
	if err != nil || len(problems) > 0 || len(records) != len(states) {
		t.Fatalf("%s: %d records, problems %v, %v", at, len(records), problems, err)
	}
	for i, r := range records {
		if r.Stub != nil && r.Stub.At() == ckpt.Forgotten {
			copied := s.Clone()
			r, err = ckpt.Undelete(t.Context(), copied, "job", r.Number)
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			mustRestore(t, copied, r.Commit, states[i])
		} else if r.Commit != nil {
			mustRestore(t, s, r.Commit, states[i])
		}
	}
}

// objects are the keys and contents of a store.
func objects(t *testing.T, s ckpt.Store, prefix string) map[string]string {
	t.Helper()
	all, err := ckpt.ListAll(t.Context(), s, prefix)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, o := range all {
		b, err := s.Get(t.Context(), o.Key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		m[o.Key] = string(b)
	}
	return m
}

func TestUndeleteIsBitForBit(t *testing.T) {
	s := mem.New()
	states := tinySeries(t, s, 4)
	before := objects(t, s, "")
	if done, err := forget(t, s, time.Hour, 1, 2); err != nil || !slices.Equal(done.Numbers, []uint64{1, 2}) {
		t.Fatal(done, err)
	}
	if f, err := ckpt.Latest(t.Context(), s, "job"); err != nil || f.Record.Number != 4 || len(f.Problems) > 0 {
		t.Fatal(f, err)
	}
	r, err := ckpt.ReadRecord(t.Context(), s, "job", 2)
	if err != nil || r.Commit != nil || r.Stub.At() != ckpt.Forgotten || !r.Stub.Until().Equal(noon.Add(time.Hour)) || r.Stub.By != "tester" || r.Stub.Why != "test" {
		t.Fatalf("%+v, %v", r.Stub, err)
	}
	gone := &ckpt.RemovedError{Stub: r.Stub}
	if !errors.Is(gone, ckpt.ErrNotFound) || !strings.Contains(gone.Error(), "removed by retention (test) and can be undeleted until 2023-11-14T23:13:20Z") {
		t.Fatal(gone)
	}
	// Nothing goes before the grace is over, and the chain goes on.
	if c, err := ckpt.GC(t.Context(), s, inventory(t, s), ckpt.GCOptions{Now: noon.Add(time.Hour - 1)}); err != nil || c.Objects != 0 {
		t.Fatal(c, err)
	}
	mustBeSound(t, s, states, "forgotten")
	for _, n := range []uint64{1, 2, 2} {
		if r, err := ckpt.Undelete(t.Context(), s, "job", n); err != nil || r.Commit == nil {
			t.Fatal(r, err)
		}
	}
	if after := objects(t, s, ""); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatal("the store is not what it was before")
	}
	if r, err := save(t, s, attempt(5, 1, 5), states[0], 1); err != nil || r.Number != 5 {
		t.Fatal(r, err)
	}
}

func TestCrashAtEveryOperationOfForget(t *testing.T) {
	before := mem.New()
	states := tinySeries(t, before, 5)
	atEveryOperation(t, before.Clone, func(s ckpt.Store) error {
		inv, err := ckpt.TakeInventory(t.Context(), s, "job", nil)
		if err != nil {
			return err
		}
		_, err = ckpt.Forget(t.Context(), s, inv, []ckpt.Drop{{Number: 1}, {Number: 3}}, ckpt.ForgetOptions{Now: noon, Grace: time.Hour})
		return err
	}, func(inner *mem.Store, at string, err error) {
		mustBeSound(t, inner, states, at)
		for _, n := range []uint64{2, 4, 5} {
			if r, err := ckpt.ReadRecord(t.Context(), inner, "job", n); err != nil || r.Commit == nil {
				t.Fatalf("%s: %d was to stay: %v", at, n, err)
			}
		}
		if left := stepsLeft(t, inner); left != "1 2 3 4 5" {
			t.Fatalf("%s: data of %s are left", at, left)
		}
		// Who comes next finishes it: asking again for what is forgotten already is told so.
		for _, n := range []uint64{1, 3} {
			if _, err := forget(t, inner, time.Hour, n); err != nil && !errors.Is(err, ckpt.ErrNotFound) {
				t.Fatalf("%s: %v", at, err)
			}
		}
		mustBeSound(t, inner, states, at)
	})
}

func TestCrashAtEveryOperationOfUndeleteAndPin(t *testing.T) {
	before := mem.New()
	states := tinySeries(t, before, 4)
	whole := objects(t, before, "")
	if _, err := forget(t, before, time.Hour, 1); err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(s ckpt.Store) error{
		"undelete": func(s ckpt.Store) error {
			_, err := ckpt.Undelete(t.Context(), s, "job", 1)
			return err
		},
		"pin": func(s ckpt.Store) error {
			_, err := ckpt.Pin(t.Context(), s, "job", 1, "ada", "", noon)
			return err
		},
		"hold": func(s ckpt.Store) error {
			_, err := ckpt.Hold(t.Context(), s, "job", 1, "eval", "", noon, noon.Add(time.Hour))
			return err
		},
	} {
		atEveryOperation(t, before.Clone, run, func(inner *mem.Store, at string, err error) {
			mustBeSound(t, inner, states, name+" "+at)
			r, rerr := ckpt.ReadRecord(t.Context(), inner, "job", 1)
			if rerr != nil || err == nil && r.Commit == nil {
				t.Fatalf("%s %s: reported as done, and it is %+v (%v)", name, at, r, rerr)
			}
			if err := run(inner); err != nil {
				t.Fatalf("%s %s: again: %v", name, at, err)
			}
			for key, content := range whole {
				if b, err := inner.Get(t.Context(), key, 0, -1); err != nil || string(b) != content {
					t.Fatalf("%s %s: %s is not what it was: %v", name, at, key, err)
				}
			}
		})
	}
}

// forgotten is a job with four published checkpoints, two forgotten ones, and two attempts that were abandoned.
func forgotten(t *testing.T) (*mem.Store, []*state) {
	t.Helper()
	s := mem.New()
	states := tinySeries(t, s, 6)
	if _, err := forget(t, s, time.Hour, 1, 3); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := shards(t, s, attempt(2, 1, uint64(77+i)), states[0], 1, ckpt.PlanOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s, states
}

func collect(ctx context.Context, s ckpt.Store, now time.Time, confirm func(context.Context) error) (ckpt.Collected, error) {
	inv, err := ckpt.TakeInventory(ctx, s, "job", nil)
	if err != nil {
		return ckpt.Collected{}, err
	}
	return ckpt.GC(ctx, s, inv, ckpt.GCOptions{Now: now, Confirm: confirm})
}

func TestCrashAtEveryOperationOfGC(t *testing.T) {
	before, states := forgotten(t)
	later := noon.Add(2 * time.Hour)
	atEveryOperation(t, before.Clone, func(s ckpt.Store) error {
		_, err := collect(t.Context(), s, later, nil)
		return err
	}, func(inner *mem.Store, at string, err error) {
		mustBeSound(t, inner, states, at)
		for _, folder := range []string{"job/step-1-g1-a2.1/", "job/step-3-g1-a2.3/", "job/step-2-g1-a2.77/"} {
			was, is := objects(t, before, folder), objects(t, inner, folder)
			part := func(key string) bool {
				return strings.HasSuffix(key, ".json") || strings.HasSuffix(key, ckpt.MetadataName)
			}
			if slices.ContainsFunc(slices.Collect(maps.Keys(is)), part) {
				for key := range was {
					if _, left := is[key]; !left && !part(key) {
						t.Fatalf("%s: %s is gone before the parts of its folder", at, key)
					}
				}
			}
		}
		if _, err := collect(t.Context(), inner, later, nil); err != nil {
			t.Fatalf("%s: finish: %v", at, err)
		}
		if left := stepsLeft(t, inner); left != "2 4 5 6" {
			t.Fatalf("%s: the folders of steps %s are left", at, left)
		}
		for _, n := range []uint64{1, 3} {
			r, err := ckpt.ReadRecord(t.Context(), inner, "job", n)
			if err != nil || r.Stub == nil || r.Stub.At() != ckpt.Swept || r.Stub.Commit != nil {
				t.Fatalf("%s: %+v, %v", at, r, err)
			}
			if _, err := ckpt.Undelete(t.Context(), inner, "job", n); !errors.Is(err, ckpt.ErrNotFound) {
				t.Fatalf("%s: undeleted what is gone: %v", at, err)
			}
		}
		mustBeSound(t, inner, states, at)
	})
}

// TestDeposedLeaderStops: who does not lead any more changes and deletes nothing from then on.
func TestDeposedLeaderStops(t *testing.T) {
	before, _ := forgotten(t)
	deposed := errors.New("deposed")
	for allowed := 0; ; allowed++ {
		s := before.Clone()
		asked := 0
		var at map[string]string
		_, err := collect(t.Context(), s, noon.Add(2*time.Hour), func(context.Context) error {
			if asked++; asked > allowed {
				at = objects(t, s, "")
				return deposed
			}
			return nil
		})
		if err == nil {
			if allowed < 6 {
				t.Fatalf("it asked only %d times", asked)
			}
			break
		}
		if !errors.Is(err, deposed) || asked != allowed+1 || fmt.Sprint(objects(t, s, "")) != fmt.Sprint(at) {
			t.Fatalf("allowed %d, asked %d: %v", allowed, asked, err)
		}
	}
}

func TestAbandonedHaveAGrace(t *testing.T) {
	s := mem.New()
	states := tinySeries(t, s, 3)
	if _, err := shards(t, s, attempt(2, 1, 77), states[0], 1, ckpt.PlanOptions{}); err != nil {
		t.Fatal(err)
	}
	foreign := "job/step-2-g1-a2.77/notes.txt"
	if err := s.Put(t.Context(), foreign, ckpt.Bytes([]byte("mine"))); err != nil {
		t.Fatal(err)
	}
	collect := func(after time.Duration) ckpt.Collected {
		t.Helper()
		c, err := ckpt.GC(t.Context(), s, inventory(t, s), ckpt.GCOptions{Now: noon.Add(after), AbandonedGrace: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, after := range []time.Duration{0, time.Minute, time.Hour - 1} { // the first look begins the grace, others do not prolong it
		if c := collect(after); c.Objects != 0 {
			t.Fatal(after, c)
		}
	}
	c := collect(time.Hour)
	if c.Objects == 0 || len(c.Swept) != 1 || !slices.Equal(c.Foreign, []string{foreign}) {
		t.Fatal(c)
	}
	all := objects(t, s, "job/step-2-g1-a2.77/")
	if len(all) != 1 || all[foreign] != "mine" {
		t.Fatal("what is not ours was deleted, or ours was not", all)
	}
	if err := s.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	collect(2 * time.Hour)
	if all := objects(t, s, "job/abandoned/"); len(all) != 0 {
		t.Fatal(all)
	}
}

// A pin that came beside a stub, because who pinned or who forgot was killed on the way, keeps the data.
func TestCollectSeesPinsThatCameLate(t *testing.T) {
	s := mem.New()
	states := tinySeries(t, s, 4)
	if _, err := forget(t, s, 0, 1); err != nil {
		t.Fatal(err)
	}
	inv := inventory(t, s)
	pin := ckpt.Mark{Format: 2, Kind: ckpt.PinMark, Job: "job", Number: 1}
	b, err := pin.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), pin.Key(), ckpt.Bytes(b)); err != nil {
		t.Fatal(err)
	}
	for _, inv := range []*ckpt.Inventory{inv, inventory(t, s)} {
		if c, err := ckpt.GC(t.Context(), s, inv, ckpt.GCOptions{Now: noon.Add(time.Hour)}); err != nil || c.Objects != 0 {
			t.Fatal(c, err)
		}
	}
	mustBeSound(t, s, states, "pinned late")
}

func TestHoldsEnd(t *testing.T) {
	s := mem.New()
	tinySeries(t, s, 4)
	if _, err := ckpt.Hold(t.Context(), s, "job", 1, "eval", "restores", noon, noon.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := forget(t, s, 0, 1); !errors.Is(err, ckpt.ErrProtected) || !strings.Contains(err.Error(), "held for eval until") {
		t.Fatal(err)
	}
	if err := ckpt.Release(t.Context(), s, "job", 1, "other"); !errors.Is(err, ckpt.ErrNotFound) {
		t.Fatal(err)
	}
	if err := ckpt.Release(t.Context(), s, "job", 1, "eval"); err != nil {
		t.Fatal(err)
	}
	if _, err := ckpt.Hold(t.Context(), s, "job", 1, "eval", "", noon.Add(-2*time.Hour), noon.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := forget(t, s, 0, 1); err != nil {
		t.Fatal(err)
	}
}
