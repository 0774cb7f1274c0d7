// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// digestTagged is a store whose ETags are digests of the content, as on S3: what is put back has the ETag that it had.
type digestTagged struct{ *mem.Store }

func (d digestTagged) tag(ctx context.Context, info ckpt.Info) (ckpt.Info, error) {
	b, err := d.Store.Get(ctx, info.Key, 0, -1)
	info.ETag = fmt.Sprintf("%x", sha256.Sum256(b))
	return info, err
}

func (d digestTagged) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	info, err := d.Store.Stat(ctx, key)
	if err != nil {
		return info, err
	}
	return d.tag(ctx, info)
}

func (d digestTagged) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	inside, err := d.Store.Stat(ctx, key)
	if err != nil {
		return err
	}
	if info, err := d.tag(ctx, inside); err != nil || info.ETag != etag {
		return errors.Join(err, ckpt.ErrExists)
	}
	return d.Store.PutIfMatch(ctx, key, inside.ETag, body)
}

// others are what the rest of the world does while somebody is stopped.
var others = map[string]func(t *testing.T, s *mem.Store, states []*state) []*state{
	"nothing": func(_ *testing.T, _ *mem.Store, states []*state) []*state { return states },
	"undelete": func(t *testing.T, s *mem.Store, states []*state) []*state {
		_, _ = ckpt.Undelete(t.Context(), s, "job", 1)
		return states
	},
	"pin": func(t *testing.T, s *mem.Store, states []*state) []*state {
		_, _ = ckpt.Pin(t.Context(), s, "job", 1, "ada", "", noon)
		return states
	},
	"undelete, then forget again": func(t *testing.T, s *mem.Store, states []*state) []*state {
		if _, err := ckpt.Undelete(t.Context(), s, "job", 1); err == nil {
			// At the same time as before, with the same words: the stubs must differ all the same.
			if _, err := forget(t, s, time.Hour, 1); err != nil {
				t.Fatal(err)
			}
		}
		return states
	},
	// The stub looks as it did, and there is a pin now: who looked for pins before must not take it for the one that was there.
	"undelete, then forget, killed before it sees the pin": func(t *testing.T, s *mem.Store, states []*state) []*state {
		if _, err := ckpt.Undelete(t.Context(), s, "job", 1); err != nil {
			return states
		}
		killed := mem.NewFaulty(s, func(op mem.Op) mem.Fault {
			if op.Verb != mem.PutIfMatch {
				return mem.Fault{}
			}
			if _, err := ckpt.Pin(t.Context(), s, "job", 1, "ada", "", noon); err != nil {
				t.Fatal(err)
			}
			return mem.Fault{Kill: true, After: true}
		})
		_, err := ckpt.Forget(t.Context(), killed, inventory(t, s), []ckpt.Drop{{Number: 1, Why: "test"}},
			ckpt.ForgetOptions{Now: noon, Grace: time.Hour, By: "tester"})
		if !errors.Is(err, mem.ErrKilled) {
			t.Fatal(err)
		}
		return states
	},
	"pin, then unpin": func(t *testing.T, s *mem.Store, states []*state) []*state {
		if _, err := ckpt.Pin(t.Context(), s, "job", 1, "ada", "", noon); err == nil {
			if err := ckpt.Unpin(t.Context(), s, "job", 1); err != nil {
				t.Fatal(err)
			}
		}
		return states
	},
	"the next generation saves, forgets and collects": func(t *testing.T, s *mem.Store, states []*state) []*state {
		return nextGeneration(t, s, states)
	},
	"undelete, then the next generation": func(t *testing.T, s *mem.Store, states []*state) []*state {
		_, _ = ckpt.Pin(t.Context(), s, "job", 1, "ada", "", noon)
		return nextGeneration(t, s, states)
	},
}

// nextGeneration is a new leader at work: it publishes, one attempt of the old generation stays behind, and it runs retention.
func nextGeneration(t *testing.T, s *mem.Store, states []*state) []*state {
	t.Helper()
	for i := range 2 {
		st := newState(smallLayout()[1:4], uint64(90+i))
		r, err := save(t, s, attempt(7+i, 2, uint64(i)), st, 2)
		if err != nil || r.Number != uint64(len(states))+1 {
			t.Fatal(r, err)
		}
		states = append(slices.Clone(states), st)
	}
	later := noon.Add(2 * time.Hour)
	inv := inventory(t, s)
	if _, err := ckpt.Forget(t.Context(), s, inv, ckpt.Drops(ckpt.Policy{KeepLast: 3}.Decide(inv, later)), ckpt.ForgetOptions{Now: later, Grace: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), s, later, nil); err != nil {
		t.Fatal(err)
	}
	return states
}

// TestStoppedAnywhere stops gc before each of its operations on the store, lets everybody else go on, and wakes it up: in the
// present generation, and in a later one, whose leader has published, forgotten and collected meanwhile. What is published, or
// could still be put back, must be whole then.
func TestStoppedAnywhere(t *testing.T) {
	before, states := forgotten(t)
	won := map[string]map[bool]int{}
	for name, act := range others {
		won[name] = map[bool]int{}
		for k := 0; ; k++ {
			inner := before.Clone()
			now := states
			var kept bool
			s := mem.NewFaulty(digestTagged{inner}, func(op mem.Op) mem.Fault {
				if op.Seq == k {
					now = act(t, inner, states)
					r, err := ckpt.ReadRecord(t.Context(), inner, "job", 1)
					if err != nil {
						t.Fatal(err)
					}
					kept = r.Commit != nil
				}
				return mem.Fault{}
			})
			at := fmt.Sprintf("%s at %d", name, k)
			_, err := collect(t.Context(), s, noon.Add(2*time.Hour), nil)
			if s.Count() <= k {
				break
			}
			if err != nil && !errors.Is(err, ckpt.ErrConflict) && !errors.Is(err, ckpt.ErrNotFound) {
				t.Fatalf("%s: %v", at, err)
			}
			won[name][kept]++
			mustBeSound(t, inner, now, at)
			marks, err := ckpt.ReadMarks(t.Context(), inner, "job")
			if err != nil {
				t.Fatal(err)
			}
			r, err := ckpt.ReadRecord(t.Context(), inner, "job", 1)
			if err == nil && marks.Pins[1] != nil && r.Stub != nil && r.Stub.At() != ckpt.Forgotten {
				t.Fatalf("%s: pinned, and its data are gone", at)
			}
			if err != nil || kept != (r.Commit != nil) && name != "pin, then unpin" {
				t.Fatalf("%s: it was published %v when gc woke up and is %+v (%v)", at, kept, r, err)
			}
		}
	}
	for _, name := range []string{"undelete", "pin", "pin, then unpin", "undelete, then the next generation"} {
		if won[name][true] == 0 || won[name][false] == 0 {
			t.Fatalf("%s: won %v: the test did not see both", name, won[name])
		}
	}
}

// TestForgetStoppedAnywhere does the same with who forgets.
func TestForgetStoppedAnywhere(t *testing.T) {
	before := mem.New()
	states := tinySeries(t, before, 6)
	if _, err := forget(t, before, 0, 3); err != nil { // one that others collect meanwhile
		t.Fatal(err)
	}
	for name, act := range others {
		for k := 0; ; k++ {
			inner := before.Clone()
			now := states
			s := mem.NewFaulty(digestTagged{inner}, func(op mem.Op) mem.Fault {
				if op.Seq == k {
					now = act(t, inner, states)
				}
				return mem.Fault{}
			})
			at := fmt.Sprintf("%s at %d", name, k)
			inv, err := ckpt.TakeInventory(t.Context(), s, "job", nil)
			if err == nil {
				_, err = ckpt.Forget(t.Context(), s, inv, []ckpt.Drop{{Number: 1}}, ckpt.ForgetOptions{Now: noon, Grace: time.Hour})
			}
			if s.Count() <= k {
				break
			}
			if err != nil && !errors.Is(err, ckpt.ErrConflict) && !errors.Is(err, ckpt.ErrNotFound) && !errors.Is(err, ckpt.ErrProtected) {
				t.Fatalf("%s: %v", at, err)
			}
			mustBeSound(t, inner, now, at)
			marks, err := ckpt.ReadMarks(t.Context(), inner, "job")
			if err != nil {
				t.Fatal(err)
			}
			r, err := ckpt.ReadRecord(t.Context(), inner, "job", 1)
			if err != nil || marks.Pins[1] != nil && r.Commit == nil && !strings.Contains(name, "killed") {
				t.Fatalf("%s: pinned and not published: %+v, %v", at, r, err)
			}
		}
	}
}
