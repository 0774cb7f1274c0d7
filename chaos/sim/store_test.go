// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// published are the steps of the checkpoints that the store offers.
func published(t *testing.T, s ckpt.Store) []phalanx.Step {
	t.Helper()
	records, problems, err := ckpt.List(context.Background(), s, "sim")
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	var steps []phalanx.Step
	for _, r := range records {
		if r.Commit != nil { // retention leaves a stub
			steps = append(steps, r.Commit.Step)
		}
	}
	return steps
}

// TestSharesAreTakenOver: the store fails for one member, or takes a minute for each of its objects. Its shares are written by the
// others within the same saves, and nobody waits for it.
func TestSharesAreTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		slow  time.Duration
		saves int // a share is late after two seconds, in which steps pass that would be saved too
	}{"failing": {0, 5}, "throttled": {time.Minute, 3}} {
		t.Run(name, func(t *testing.T) {
			objects := mem.New()
			o := Options{Seed: 3, Calm: true, Shape: []int{1, 1, 1}, Steps: 120, Slabs: 1, Objects: objects}
			o.Store = func(member phalanx.MemberID, s ckpt.Store) ckpt.Store {
				if member != "b/0" {
					return s
				}
				return throttled{s, c.slow}
			}
			r := run(t, o)
			if got := published(t, objects); len(got) != 2 || got[1] != 120 { // two are kept
				t.Errorf("published %v", got)
			}
			if n := strings.Count(r.Trace, "checkpoint published"); n != c.saves {
				t.Errorf("%d saves were published, want %d", n, c.saves)
			}
			if n := strings.Count(r.Trace, "a share of a save is taken over"); n != c.saves {
				t.Errorf("%d shares were taken over, want %d", n, c.saves)
			}
			if strings.Contains(r.Trace, "save given up") {
				t.Error("a save was given up")
			}
		})
	}
}

// throttled is a store that refuses data objects, or takes long for each.
type throttled struct {
	ckpt.Store
	delay time.Duration
}

var errRefused = errors.New("the bucket is not for you")

func (s throttled) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	if strings.Contains(key, "/commits/") {
		return s.Store.PutIfAbsent(ctx, key, body)
	}
	if s.delay == 0 {
		return errRefused
	}
	select {
	case <-time.After(s.delay):
		return s.Store.PutIfAbsent(ctx, key, body)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestTwoSavesAtOnce: the store takes longer for a save than the next one is away. With two slabs every save is begun at its step and
// published, in order; with one those are skipped for which there is no slab, and said so.
func TestTwoSavesAtOnce(t *testing.T) {
	for slabs, saves := range map[int]int{1: 3, 2: 5} {
		t.Run(strconv.Itoa(slabs), func(t *testing.T) {
			objects := mem.New()
			o := Options{Seed: 3, Calm: true, Shape: []int{1, 1, 1}, Steps: 120, Slabs: slabs, Objects: objects}
			o.Store = func(_ phalanx.MemberID, s ckpt.Store) ckpt.Store { return throttled{s, 600 * time.Millisecond} }
			r := run(t, o)
			if n := strings.Count(r.Trace, "checkpoint published"); n != saves {
				t.Errorf("%d saves were published, want %d", n, saves)
			}
			if n := strings.Count(r.Trace, "a save is skipped"); n != 5-saves || strings.Count(r.Trace, "reason=busy") != n {
				t.Errorf("%d saves were skipped, want %d for want of a slab", n, 5-saves)
			}
		})
	}
}
