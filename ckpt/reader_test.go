// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// series saves steps 1…n, each another state.
func series(t *testing.T, s ckpt.Store, n int) []*state {
	t.Helper()
	var states []*state
	for step := 1; step <= n; step++ {
		st := newState(smallLayout(), uint64(step))
		if _, err := save(t, s, attempt(step, 1, uint64(step)), st, 2); err != nil {
			t.Fatal(err)
		}
		states = append(states, st)
	}
	return states
}

func TestReadRange(t *testing.T) {
	s := mem.New()
	st := series(t, s, 1)[0]
	cp, err := ckpt.OpenLatest(t.Context(), s, "job")
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		i := random.IntN(len(st.layout))
		size := int(st.layout[i].Bytes())
		off := random.IntN(size + 1)
		p := make([]byte, random.IntN(size-off+1))
		if err := cp.State(0).ReadRange(t.Context(), i, int64(off), p); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, st.content[i][off:off+len(p)]) {
			t.Fatalf("tensor %d at %d: %d bytes differ", i, off, len(p))
		}
	}
	for _, bad := range []struct {
		tensor int
		off    int64
		n      int
	}{{-1, 0, 1}, {9, 0, 1}, {0, -1, 1}, {0, 13200, 1}, {0, 1 << 62, 1}} {
		if err := cp.State(0).ReadRange(t.Context(), bad.tensor, bad.off, make([]byte, bad.n)); err == nil {
			t.Errorf("%+v was read", bad)
		}
	}
	if cp.State(1) != nil || cp.State(-1) != nil || len(cp.States()) != 1 {
		t.Error("coordinates that do not exist")
	}
}

func TestEveryFlippedBitIsFoundAndNamed(t *testing.T) {
	s := mem.New()
	st := series(t, s, 1)[0]
	objects, err := ckpt.ListAll(t.Context(), s, "job/step-1-g1-a2.1/")
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	hit, inside := 0, 0
	for _, o := range objects {
		if strings.HasSuffix(o.Key, ".json") || strings.HasSuffix(o.Key, ckpt.MetadataName) {
			continue
		}
		for range 8 {
			damaged := s.Clone()
			if err := damaged.Flip(o.Key, random.Int64N(8*o.Size)); err != nil {
				t.Fatal(err)
			}
			cp, err := ckpt.OpenLatest(t.Context(), damaged, "job")
			if err != nil {
				t.Fatal(err)
			}
			report, err := cp.VerifyAll(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			hit++
			if len(report.Damage) != 1 || report.Damage[0].Object != o.Key || len(report.Tensors) != 1 || !errors.Is(report.Err(), ckpt.ErrCorrupt) {
				t.Fatalf("%s: %v", o.Key, report.Err())
			}
			d := report.Damage[0]
			for _, part := range []string{o.Key, d.Tensor, "phalanx ckpt verify"} {
				if !strings.Contains(d.Error(), part) {
					t.Fatalf("%q does not name %s", d, part)
				}
			}
			if d.Want == d.Got {
				continue // around the chunk: PyTorch would stumble, what we read is whole
			}
			inside++
			if !strings.Contains(d.Error(), d.Want.String()) || !strings.Contains(d.Error(), d.Got.String()) {
				t.Fatalf("%q does not name the checksums", d)
			}
			// The damaged byte is never returned.
			for i, info := range st.layout {
				err := cp.State(0).ReadRange(t.Context(), i, 0, make([]byte, info.Bytes()))
				if damagedHere := info.Name == d.Tensor; damagedHere != errors.Is(err, ckpt.ErrCorrupt) {
					t.Fatalf("reading %s: %v", info.Name, err)
				}
			}
		}
	}
	if inside < 10 || inside == hit {
		t.Fatalf("%d of %d flips hit a chunk", inside, hit)
	}
}

func TestVerifyNamesEverything(t *testing.T) {
	s := mem.New()
	series(t, s, 1)
	if err := s.Delete(t.Context(), "job/step-1-g1-a2.1/__0_0.distcp"); err != nil {
		t.Fatal(err)
	}
	r, problems, err := ckpt.List(t.Context(), s, "job")
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	cp, err := ckpt.Open(t.Context(), s, r[0].Commit)
	if err != nil {
		t.Fatal(err)
	}
	var last ckpt.Progress
	calls := 0
	report, err := cp.VerifyAll(t.Context(), func(p ckpt.Progress) { last, calls = p, calls+1 })
	if err != nil || len(report.Damage) < 2 || !errors.Is(report.Damage[0], ckpt.ErrNotFound) {
		t.Fatal(err, report.Err())
	}
	if last.Chunks != last.ChunksTotal || last.Bytes != last.BytesTotal || calls != last.Chunks || last.Damaged != len(report.Damage) {
		t.Fatalf("progress %+v after %d calls", last, calls)
	}
	// A store that cannot be reached is an error, not damage.
	down := mem.NewFaulty(s, func(op mem.Op) mem.Fault {
		if strings.HasSuffix(op.Key, ".distcp") {
			return mem.Fault{Err: errors.New("connection refused")}
		}
		return mem.Fault{}
	})
	cp, err = ckpt.Open(t.Context(), down, r[0].Commit)
	if err != nil {
		t.Fatal(err)
	}
	if report, err := cp.VerifyAll(t.Context(), nil); err == nil || len(report.Damage) > 0 {
		t.Fatal(err, report)
	}
}

func TestFlippedReadIsNotCached(t *testing.T) {
	s := mem.New()
	st := series(t, s, 1)[0]
	once := true
	flaky := mem.NewFaulty(s, func(op mem.Op) mem.Fault {
		if once && op.Verb == mem.Get && strings.HasSuffix(op.Key, ".distcp") {
			once = false
			return mem.Fault{FlipRead: true}
		}
		return mem.Fault{}
	})
	cp, err := ckpt.OpenLatest(t.Context(), flaky, "job")
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 8)
	if err := cp.State(0).ReadRange(t.Context(), 0, 0, p); !errors.Is(err, ckpt.ErrCorrupt) {
		t.Fatalf("a flipped read: %v", err)
	}
	if err := cp.State(0).ReadRange(t.Context(), 0, 0, p); err != nil || !bytes.Equal(p, st.content[0][:8]) {
		t.Fatalf("the next read: %v", err)
	}
}

func TestLatestSkipsWhatCannotBeRestored(t *testing.T) {
	s := mem.New()
	states := series(t, s, 4)
	ctx := t.Context()
	expect := func(number uint64, problems int) {
		t.Helper()
		f, err := ckpt.Latest(ctx, s, "job")
		if err != nil || f.Record.Number != number || len(f.Problems) != problems {
			t.Fatalf("found %d with %v (%v), want %d", f.Record.Number, f.Problems, err, number)
		}
		mustRestore(t, s, f.Record.Commit, states[number-1])
	}
	expect(4, 0)
	if err := s.Delete(ctx, "job/step-4-g1-a2.4/__1_0.distcp"); err != nil { // an object is gone
		t.Fatal(err)
	}
	expect(3, 1)
	if err := s.Flip("job/step-3-g1-a2.3/part-0.json", 800); err != nil { // a part is damaged
		t.Fatal(err)
	}
	expect(2, 2)
	if err := s.Put(ctx, ckpt.CommitKey("job", 2), ckpt.Bytes([]byte("{"))); err != nil { // a commit object is damaged
		t.Fatal(err)
	}
	expect(1, 3)
	if err := s.Delete(ctx, "job/step-1-g1-a2.1/part-1.json"); err != nil {
		t.Fatal(err)
	}
	f, err := ckpt.Latest(ctx, s, "job")
	if !errors.Is(err, ckpt.ErrNoCheckpoint) || len(f.Problems) != 4 {
		t.Fatal(f, err)
	}
	if _, err := ckpt.Latest(ctx, s, "other"); !errors.Is(err, ckpt.ErrNoCheckpoint) {
		t.Fatal(err)
	}
}

func TestChainIsChecked(t *testing.T) {
	s := mem.New()
	series(t, s, 3)
	ctx := t.Context()
	// Somebody rewrites commit 2 in place: it still parses, and 3 does not name it any more.
	key := ckpt.CommitKey("job", 2)
	p, err := s.Get(ctx, key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(ctx, key, ckpt.Bytes(summed(strings.Replace(string(p), `"unix_ns": 1`, `"unix_ns": 2`, 1)))); err != nil {
		t.Fatal(err)
	}
	records, problems, err := ckpt.List(ctx, s, "job")
	if err != nil || len(records) != 3 || len(problems) != 1 || problems[0].Number != 3 || !errors.Is(problems[0], ckpt.ErrCorrupt) {
		t.Fatal(records, problems, err)
	}
	f, err := ckpt.Latest(ctx, s, "job")
	if err != nil || f.Record.Number != 3 || len(f.Problems) != 1 {
		t.Fatal(f, err)
	}
}

func TestNewestOfMany(t *testing.T) {
	// The newest number is found in few requests, whatever the number is, and foreign names do not mislead it.
	for _, n := range []int{1, 2, 3, 999, 1000, 1001, 1002, 5003} {
		s := mem.New()
		for i := 1; i <= n; i++ {
			if err := s.Put(t.Context(), ckpt.CommitKey("job", uint64(i)), ckpt.Bytes([]byte(`{"format":9}`))); err != nil {
				t.Fatal(err)
			}
		}
		for _, foreign := range []string{fmt.Sprintf("job/commits/%012d.json.bak", n/2), "job/commits/zzz"} {
			if err := s.Put(t.Context(), foreign, ckpt.Bytes(nil)); err != nil {
				t.Fatal(err)
			}
		}
		counting := mem.NewFaulty(s, func(mem.Op) mem.Fault { return mem.Fault{} })
		_, err := ckpt.Publish(t.Context(), counting, publication(attempt(1, 1, 1), 1), nil)
		if err == nil || !strings.Contains(err.Error(), ckpt.CommitKey("job", uint64(n))) {
			t.Errorf("newest of %d: %v", n, err)
		}
		if counting.Count() > 40 {
			t.Errorf("newest of %d took %d requests", n, counting.Count())
		}
	}
}
