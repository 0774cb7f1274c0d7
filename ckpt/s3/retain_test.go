// SPDX-License-Identifier: Apache-2.0

package s3_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storewrap"
)

// eight is a state of one tensor that holds a number.
type eight uint64

func (e eight) Layout() []phalanx.TensorInfo {
	return []phalanx.TensorInfo{{Name: "w", DType: "i64", Shape: []int{1}}}
}

func (e eight) ReadAt(_ int, off int64, p []byte) error {
	copy(p, binary.LittleEndian.AppendUint64(nil, uint64(e))[off:])
	return nil
}

// retains forgets checkpoints on a server, and lets undelete and gc race for each of them: one of the two wins, and what
// undelete has put back is whole.
func retains(t *testing.T, s ckpt.Store) {
	const rounds = 6
	ctx := t.Context()
	for i := range rounds + 2 {
		a := ckpt.Attempt{Job: "job", Step: phalanx.Step(i + 1), Generation: phalanx.Generation{Number: 1}, Term: 1, Counter: uint64(i)}
		plan, err := ckpt.NewPlan(0, eight(i).Layout(), []phalanx.Rank{0}, ckpt.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ref, err := ckpt.WriteShard(ctx, s, a, 0, plan, eight(i))
		if err != nil {
			t.Fatal(err)
		}
		labels := []phalanx.Label{{Step: a.Step, Generation: a.Generation}}
		if _, err := ckpt.Publish(ctx, s, ckpt.Publication{Attempt: a, Labels: labels, UnixNS: 1}, []ckpt.PartRef{ref}); err != nil {
			t.Fatal(err)
		}
	}
	stock := func() *ckpt.Inventory {
		t.Helper()
		inv, err := ckpt.TakeInventory(ctx, s, "job", nil)
		if err != nil {
			t.Fatal(err)
		}
		return inv
	}
	now := time.Now()
	for n := range uint64(rounds) {
		number := n + 1
		if done, err := ckpt.Forget(ctx, s, stock(), []ckpt.Drop{{Number: number}}, ckpt.ForgetOptions{Now: now}); err != nil || len(done.Numbers) != 1 {
			t.Fatal(done, err)
		}
		inv := stock()
		var both sync.WaitGroup
		var undeleted, collected error
		both.Go(func() {
			time.Sleep(time.Duration(n) * time.Millisecond)
			_, undeleted = ckpt.Undelete(ctx, s, "job", number)
		})
		both.Go(func() { _, collected = ckpt.GC(ctx, s, inv, ckpt.GCOptions{Now: now}) })
		both.Wait()
		if collected != nil {
			t.Fatal(collected)
		}
		r, err := ckpt.ReadRecord(ctx, s, "job", number)
		switch {
		case err != nil:
			t.Fatal(err)
		case r.Commit != nil:
			cp, err := ckpt.Open(ctx, s, r.Commit)
			if err != nil {
				t.Fatalf("put back, and not whole: %v", err)
			}
			if report, err := cp.VerifyAll(ctx, nil); err != nil || report.Err() != nil {
				t.Fatalf("put back, and not whole: %v %v", err, report.Err())
			}
			if undeleted != nil {
				t.Fatalf("put back, and said otherwise: %v", undeleted)
			}
		case r.Stub.At() != ckpt.Swept || !errors.Is(undeleted, ckpt.ErrNotFound) && !errors.Is(undeleted, ckpt.ErrIncomplete):
			t.Fatalf("%s, and undelete said: %v", r.Stub.At(), undeleted)
		}
	}
	if _, problems, err := ckpt.List(ctx, s, "job"); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
}

func TestRetention(t *testing.T) {
	server := s3test.NewServer(t, false)
	t.Run("sound", func(t *testing.T) {
		retains(t, storewrap.NewRetry(open(t, server.StoreURL(fresh()), server.Env(t)), quick))
	})
	t.Run("answers get lost", func(t *testing.T) {
		s := storewrap.NewRetry(open(t, server.StoreURL(fresh()), server.Env(t)), quick)
		var mu sync.Mutex
		seen := map[string]int{}
		server.Hook(func(q s3test.Request) s3test.Fault {
			mu.Lock()
			defer mu.Unlock()
			if q.Op != "PUT" || !strings.Contains(q.Key, "/commits/") {
				return s3test.Fault{}
			}
			if seen[q.Key]++; seen[q.Key]%2 == 1 {
				return s3test.Fault{After: true, Drop: true}
			}
			return s3test.Fault{}
		})
		defer server.Hook(nil)
		retains(t, s)
		if len(seen) == 0 {
			t.Fatal("no answer was lost")
		}
	})
}
