// SPDX-License-Identifier: Apache-2.0

package storewrap_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/storewrap"
)

func TestLimitBoundsOperations(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	s := slow{mem.New(), func() func() {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		return func() { mu.Lock(); running--; mu.Unlock() }
	}}
	if err := s.Put(t.Context(), "k", ckpt.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	l := storewrap.NewLimit(s, storewrap.Limits{Concurrency: 4})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%4 == 0 { // some give up while they wait; their slots must not be lost
				time.AfterFunc(time.Millisecond, cancel)
			}
			if _, err := l.Get(ctx, "k", 0, -1); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most != 4 {
		t.Errorf("%d ran at a time, want 4", most)
	}
	for range 8 { // all slots are free again
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := l.Get(ctx, "k", 0, -1); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

func TestMeterCounts(t *testing.T) {
	var c storewrap.Counters
	m := storewrap.NewMeter(mem.New(), &c)
	ctx := t.Context()
	for range 2 {
		_ = m.PutIfAbsent(ctx, "k", ckpt.Bytes([]byte("abc")))
	}
	if _, err := m.Get(ctx, "k", 1, -1); err != nil {
		t.Fatal(err)
	}
	got := c.Of(storewrap.PutIfAbsent)
	if got.Operations != 2 || got.Failures != 1 || got.Bytes != 3 {
		t.Errorf("puts: %+v", got)
	}
	if got := c.Of(storewrap.Get); got.Operations != 1 || got.Failures != 0 || got.Bytes != 2 {
		t.Errorf("gets: %+v", got)
	}
	if got := c.Of(storewrap.List); got.Operations != 0 {
		t.Errorf("lists: %+v", got)
	}
}
