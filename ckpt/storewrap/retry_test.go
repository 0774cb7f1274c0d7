// SPDX-License-Identifier: Apache-2.0

package storewrap_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/storetest"
	"phalanx/ckpt/storewrap"
)

// quick tries for seconds, without waiting long.
var quick = storewrap.Budget{Total: 10 * time.Second, Base: time.Millisecond, Cap: 4 * time.Millisecond}

func TestConformance(t *testing.T) {
	storetest.Promises(t, func(*testing.T) ckpt.Store {
		inner := storewrap.NewMeter(mem.New(), &storewrap.Counters{})
		return storewrap.NewRetry(storewrap.NewLimit(inner, storewrap.Limits{Concurrency: 3, BytesPerSecond: 1 << 40}), quick)
	})
}

// TestConformanceUnderFaults: the first write of each key fails, before or after it took effect, and so does its first read.
func TestConformanceUnderFaults(t *testing.T) {
	for name, fault := range map[string]storewrap.Fault{
		"unavailable":          {Err: ckpt.ErrUnavailable},
		"outcome-unknown":      {Err: ckpt.ErrConflict},
		"acknowledgement-lost": {Err: ckpt.ErrConflict, After: true},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Promises(t, func(*testing.T) ckpt.Store {
				seen := map[string]bool{}
				return storewrap.NewRetry(storewrap.NewFaulty(mem.New(), func(op storewrap.Op) storewrap.Fault {
					place := fmt.Sprint(op.Key, op.Verb.Writes())
					if seen[place] || ckpt.ValidKey(op.Key) != nil {
						return storewrap.Fault{}
					}
					seen[place] = true
					if !op.Verb.Writes() {
						return storewrap.Fault{Err: ckpt.ErrUnavailable}
					}
					return fault
				}), quick)
			})
		})
	}
}

// scripted fails the n-th operation as told.
func scripted(inner ckpt.Store, faults ...storewrap.Fault) *storewrap.Faulty {
	return storewrap.NewFaulty(inner, func(op storewrap.Op) storewrap.Fault {
		if op.Seq < len(faults) {
			return faults[op.Seq]
		}
		return storewrap.Fault{}
	})
}

func TestUnknownOutcomes(t *testing.T) {
	ctx := t.Context()
	ours, theirs := ckpt.Bytes([]byte("ours")), ckpt.Bytes([]byte("them"))
	unknown, happened := storewrap.Fault{Err: ckpt.ErrConflict}, storewrap.Fault{Err: ckpt.ErrConflict, After: true}
	busy, refused := storewrap.Fault{Err: ckpt.ErrUnavailable}, storewrap.Fault{Err: ckpt.ErrAuth}
	for _, c := range []struct {
		name    string
		present *ckpt.Body // under the key before
		faults  []storewrap.Fault
		want    error
		holds   string
	}{
		{"it did not happen", nil, []storewrap.Fault{unknown}, nil, "ours"},
		{"it happened", nil, []storewrap.Fault{happened}, nil, "ours"},
		{"it happened, and reading fails too", nil, []storewrap.Fault{happened, busy, busy}, nil, "ours"},
		{"twice unknown, the second happened", nil, []storewrap.Fault{unknown, {}, happened}, nil, "ours"},
		{"somebody else was first", &theirs, []storewrap.Fault{unknown}, ckpt.ErrExists, "them"},
		{"the same was there", &ours, []storewrap.Fault{unknown}, nil, "ours"},
		{"known to exist", &theirs, nil, ckpt.ErrExists, "them"},
		{"refused for good", nil, []storewrap.Fault{refused}, ckpt.ErrAuth, ""},
		{"unknown, then refused: still unknown", nil, []storewrap.Fault{unknown, refused}, ckpt.ErrConflict, ""},
	} {
		inner := mem.New()
		if c.present != nil {
			if err := inner.Put(ctx, "k", *c.present); err != nil {
				t.Fatal(err)
			}
		}
		err := storewrap.NewRetry(scripted(inner, c.faults...), quick).PutIfAbsent(ctx, "k", ours)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		p, err := inner.Get(ctx, "k", 0, -1)
		if string(p) != c.holds || c.holds == "" && !errors.Is(err, ckpt.ErrNotFound) {
			t.Errorf("%s: it holds %q, %v, want %q", c.name, p, err, c.holds)
		}
	}
}

func TestUnknownReplacements(t *testing.T) {
	ctx := t.Context()
	ours := ckpt.Bytes([]byte("ours"))
	for _, c := range []struct {
		name   string
		faults []storewrap.Fault
		meddle func(*mem.Store)
		want   error
	}{
		{"it happened", []storewrap.Fault{{Err: ckpt.ErrConflict, After: true}}, nil, nil},
		{"it did not", []storewrap.Fault{{Err: ckpt.ErrConflict}}, nil, nil},
		{"somebody else replaced it", []storewrap.Fault{{Err: ckpt.ErrConflict}}, func(s *mem.Store) { _ = s.Put(ctx, "k", ckpt.Bytes([]byte("them"))) }, ckpt.ErrExists},
		{"somebody deleted it", []storewrap.Fault{{Err: ckpt.ErrConflict}}, func(s *mem.Store) { _ = s.Delete(ctx, "k") }, ckpt.ErrNotFound},
	} {
		inner := mem.New()
		if err := inner.Put(ctx, "k", ckpt.Bytes([]byte("one"))); err != nil {
			t.Fatal(err)
		}
		info, err := inner.Stat(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		faulty := storewrap.NewFaulty(inner, func(op storewrap.Op) storewrap.Fault {
			if op.Seq == 1 && c.meddle != nil {
				c.meddle(inner)
			}
			if op.Seq < len(c.faults) {
				return c.faults[op.Seq]
			}
			return storewrap.Fault{}
		})
		if err := storewrap.NewRetry(faulty, quick).PutIfMatch(ctx, "k", info.ETag, ours); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestRetryEnds(t *testing.T) {
	down := storewrap.NewFaulty(mem.New(), func(storewrap.Op) storewrap.Fault { return storewrap.Fault{Err: ckpt.ErrUnavailable} })
	begun := time.Now()
	r := storewrap.NewRetry(down, storewrap.Budget{Total: 50 * time.Millisecond, Base: time.Millisecond, Cap: 5 * time.Millisecond})
	_, err := r.Stat(t.Context(), "k")
	if !errors.Is(err, ckpt.ErrUnavailable) || !strings.Contains(err.Error(), "tried ") || down.Count() < 3 {
		t.Errorf("after %d tries: %v", down.Count(), err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r = storewrap.NewRetry(down, storewrap.Budget{Total: time.Hour, Base: time.Hour, Cap: time.Hour})
	if err := r.Delete(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ckpt.ErrUnavailable) {
		t.Errorf("a wait that ctx ended: %v", err)
	}
	forever := storewrap.NewFaulty(mem.New(), func(storewrap.Op) storewrap.Fault { return storewrap.Fault{Err: ckpt.ErrCorrupt} })
	if err := storewrap.NewRetry(forever, quick).Put(t.Context(), "k", ckpt.Bytes(nil)); !errors.Is(err, ckpt.ErrCorrupt) || forever.Count() != 1 {
		t.Errorf("what does not heal was tried %d times: %v", forever.Count(), err)
	}
}

func TestPause(t *testing.T) {
	b := storewrap.Budget{Total: time.Minute, Base: 100 * time.Millisecond, Cap: time.Second}
	for failures, longest := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond, 5: time.Second, 1000: time.Second} {
		if got := b.Pause(failures, 0); got != longest/4 {
			t.Errorf("after %d failures at least %s, want %s", failures, got, longest/4)
		}
		if got := b.Pause(failures, 0.999999); got > longest || got < longest*9/10 {
			t.Errorf("after %d failures at most %s, want %s", failures, got, longest)
		}
	}
}

// slow is a store that counts how many operations run at a time.
type slow struct {
	*mem.Store
	enter func() func()
}

func (s slow) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	defer s.enter()()
	return s.Store.Get(ctx, key, off, n)
}

type slowDown struct{}

func (slowDown) Error() string   { return "slow down" }
func (slowDown) Throttled() bool { return true }
func (slowDown) Unwrap() error   { return ckpt.ErrUnavailable }

func TestLimitAdapts(t *testing.T) {
	ask := true
	faulty := storewrap.NewFaulty(mem.New(), func(storewrap.Op) storewrap.Fault {
		if ask {
			return storewrap.Fault{Err: fmt.Errorf("503: %w", slowDown{})}
		}
		return storewrap.Fault{}
	})
	l := storewrap.NewLimit(faulty, storewrap.Limits{Concurrency: 16})
	for range 3 { // within one pause: one reason to slow down
		_ = l.Delete(t.Context(), "k")
	}
	if w := l.Width(); w != 8 {
		t.Fatalf("after a storm it is %d wide, want 8", w)
	}
	ask = false
	for range 8 * 16 * 3 {
		if err := l.Delete(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if w := l.Width(); w != 16 {
		t.Fatalf("after successes it is %d wide, want 16", w)
	}
}

func TestLimitBoundsBytes(t *testing.T) {
	inner := mem.New()
	l := storewrap.NewLimit(inner, storewrap.Limits{BytesPerSecond: 10 << 20})
	begun := time.Now()
	for i := range 5 {
		if err := l.Put(t.Context(), fmt.Sprint("k", i), ckpt.Bytes(make([]byte, 1<<20))); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begun); took < 350*time.Millisecond {
		t.Errorf("5 MiB at 10 MiB/s took %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	// Seconds of bytes: no pause of this machine makes them free in the meantime.
	if err := l.Put(ctx, "late", ckpt.Bytes(make([]byte, 64<<20))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait for bytes that ctx ended: %v", err)
	}
}
