// SPDX-License-Identifier: Apache-2.0

package host

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"phalanx"
)

// inlined is a cluster of one host that runs everything up to limit inline.
func inlined(t *testing.T, n, bytes int, limit int64, timeout time.Duration) *cluster {
	t.Helper()
	c := newCluster(t, layout{hosts: make([]int, n), deal: evenDeal(t, n, n), slots: n, bytes: bytes, options: Options{Inline: limit, Timeout: timeout}})
	t.Cleanup(c.close)
	c.formAll(t)
	return c
}

// TestInlineEndsWithTheLastCall: nothing else runs an inline operation than the calls of its members.
func TestInlineEndsWithTheLastCall(t *testing.T) {
	c := inlined(t, 3, 64, 1<<10, 0)
	op := Op{Kind: Barrier, Group: GroupWorld}
	first, second := c.post(0, op), c.post(1, op)
	if w := c.engines[1].Waiting(); len(w) != 1 || len(w[0].Ranks) != 1 || w[0].Ranks[0] != 2 {
		t.Errorf("rank 1 waits for %+v, want rank 2 alone", w)
	}
	third := c.post(2, op)
	for rank, done := range []<-chan error{first, second, third} {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		default:
			t.Errorf("rank %d: not done when the last call has returned", rank)
		}
	}
}

// TestInlineLooksBeforeItIsLate: who is called after its deadline, by the one it waited for, is not late.
func TestInlineLooksBeforeItIsLate(t *testing.T) {
	const timeout = 20 * time.Millisecond
	c := inlined(t, 2, 64, 1<<10, timeout)
	op := Op{Kind: Barrier, Group: GroupWorld}
	first := c.post(0, op)
	time.Sleep(2 * timeout) // nobody calls, as in a daemon that is stopped
	second := c.post(1, op)
	for rank, done := range []<-chan error{first, second} {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("rank %d: not done", rank)
		}
	}
}

// TestInlineKeepsTheOrder: small and large operations of a group run one at a time, as they were posted.
func TestInlineKeepsTheOrder(t *testing.T) {
	const n, large = 3, 5000
	c := inlined(t, n, 2*sumBytes(F32, large, 4), 1<<10, 0)
	sums := newLeaves(rand.New(rand.NewPCG(3, 4)), F32, n, large)
	want := sums.sum(evenDeal(t, n, n), false)
	for range 20 {
		ops := make([]Op, n)
		for r := range ops {
			ops[r] = c.place(r, sums, AllReduce, false, false)
		}
		var mu sync.Mutex
		ended := make([][]uint64, n)
		var all sync.WaitGroup
		const each = 9
		for r := range n {
			all.Add(each)
			for i := range uint64(each) {
				op := Op{Seq: i, Kind: Barrier}
				if i%3 == 1 {
					op = ops[r]
					op.Seq = i
				}
				c.engines[r].Post(c.world.Generation, op, func(err error) {
					defer all.Done()
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("operation %d of rank %d: %v", i, r, err)
					}
					ended[r] = append(ended[r], i)
				})
			}
		}
		finished := make(chan error, 1) // 1: closed once
		go func() { all.Wait(); finished <- nil }()
		_ = await(t, "all operations", finished)
		for r := range ended {
			for i, seq := range ended[r] {
				if seq != uint64(i) {
					t.Fatalf("rank %d ended in the order %v", r, ended[r])
				}
			}
			differ(t, "sum", c.out(r, ops[r]), want)
		}
	}
}

// TestInlineIsRevoked: a revoke ends an operation that waits, what is queued behind it, and everything later.
func TestInlineIsRevoked(t *testing.T) {
	c := inlined(t, 2, 64, 1<<10, 0)
	op := Op{Kind: Barrier, Group: GroupWorld}
	waits, queued := c.post(0, op), c.post(0, op)
	left := c.engines[0].Revoke(c.world.Generation)
	wantErr(t, await(t, "the one that waits", waits), phalanx.ErrRevoked)
	wantErr(t, await(t, "the queued one", queued), phalanx.ErrRevoked)
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the worker has not left")
	}
	wantErr(t, await(t, "a later one", c.post(0, op)), phalanx.ErrRevoked)
	c.engines[0].Wake()
}

// TestInlineDeadline: an operation without progress ends by the first look after its deadline.
func TestInlineDeadline(t *testing.T) {
	const deadline = 30 * time.Millisecond
	c := inlined(t, 2, 64, 1<<10, deadline)
	done := c.post(0, Op{Kind: Barrier, Group: GroupWorld})
	select {
	case err := <-done:
		t.Fatalf("ended before anybody looked: %v", err)
	default:
	}
	for end := time.Now().Add(2 * deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.engines[0].Wake()
	}
	wantErr(t, await(t, "alone", done), ErrDeadline, "[1]")
}

// TestInlineFromEverywhere: calls from many goroutines at once are as good as from one.
func TestInlineFromEverywhere(t *testing.T) {
	const n, rounds = 4, 2000
	c := inlined(t, n, 64, 1<<10, 0)
	stop := make(chan struct{})
	var wakers sync.WaitGroup
	for _, e := range c.engines {
		wakers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					e.Wake()
					runtime.Gosched()
				}
			}
		})
	}
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			for range rounds {
				select {
				case err := <-c.post(r, Op{Kind: Barrier, Group: GroupWorld}):
					if err == nil {
						continue
					}
					t.Errorf("rank %d: %v", r, err)
				case <-time.After(patience):
					t.Errorf("rank %d: a barrier did not end", r)
				}
				return
			}
		})
	}
	all.Wait()
	close(stop)
	wakers.Wait()
}
