// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// kinds are the bells of shared memory and of a simulation, which must behave alike.
func kinds(t *testing.T) map[string]Bell {
	t.Helper()
	b, err := CreateBells(filepath.Join(t.TempDir(), "bells"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Unmap() })
	return map[string]Bell{"futex": b.Bell(1), "local": NewLocalBell()}
}

const long = 20 * time.Second

// TestTellLeavesTheCalmAsleep: what is told wakes a waiter unless it is calm, and is seen by whoever looks.
func TestTellLeavesTheCalmAsleep(t *testing.T) {
	for name, b := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			wait := func(wake func()) time.Duration {
				began, seen := time.Now(), b.Count()
				woken := make(chan uint32)
				go func() { woken <- b.Hold(seen, 300*time.Millisecond) }()
				time.Sleep(20 * time.Millisecond) // it sleeps, most probably; it may also find the count changed
				wake()
				if now := <-woken; now == seen {
					t.Error("a wait ended without having seen what was told")
				}
				return time.Since(began)
			}
			b.SetCalm(true)
			before := b.Count()
			b.Tell()
			if got := b.Wait(before, long); got != before+1 {
				t.Errorf("count %d after it was told, want %d at once", got, before+1)
			}
			if took := wait(b.Ring); took > 250*time.Millisecond {
				t.Errorf("a calm waiter was rung and slept on for %s", took)
			}
			b.SetCalm(false)
			if took := wait(b.Tell); took > 250*time.Millisecond {
				t.Errorf("a waiter that is not calm was told and slept on for %s", took)
			}
			b.SetCalm(true)
			seen := b.Count()
			woken := make(chan struct{})
			go func() { b.Wait(seen, 400*time.Millisecond); close(woken) }()
			time.Sleep(50 * time.Millisecond) // until it sleeps: there is no sign of that outside of the kernel
			b.Tell()
			select {
			case <-woken:
				t.Error("a calm waiter was woken by what it was told")
			case <-time.After(100 * time.Millisecond):
			}
			<-woken
		})
	}
}

// TestNoRingIsLost: two that ring each other, one of them calm and told now and then, never wait for a timeout.
func TestNoRingIsLost(t *testing.T) {
	for name, mine := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			theirs := kinds(t)[name]
			const rounds = 20000
			done := make(chan struct{})
			turn := make(chan bool, 1) // 1: one says when it gave up
			go func() {
				defer close(done)
				for range rounds {
					seen := theirs.Count()
					mine.Tell() // calm: lies there until the ring
					mine.Ring()
					if theirs.Hold(seen, long) == seen {
						turn <- false
						return
					}
				}
			}()
			mine.SetCalm(true)
			for seen := uint32(0); ; {
				now := mine.Hold(seen, time.Second)
				select {
				case <-done:
					return
				case <-turn:
					t.Fatal("a ring was lost")
				default:
				}
				if now != seen && now%2 == 0 {
					theirs.Ring()
				}
				seen = now
			}
		})
	}
}

// TestHoldLetsTheCollectorStopTheWorld: a goroutine that sleeps with its processor gives it up when it is asked to.
func TestHoldLetsTheCollectorStopTheWorld(t *testing.T) {
	for name, b := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			woken := make(chan struct{})
			seen := b.Count()
			go func() { b.Hold(seen, long); close(woken) }()
			time.Sleep(20 * time.Millisecond)
			began := time.Now()
			for range 5 {
				runtime.GC()
			}
			if took := time.Since(began); took > long/2 {
				t.Errorf("5 collections took %s beside a held bell", took)
			}
			select {
			case <-woken:
				t.Error("a collection ended the wait")
			default:
			}
			b.Ring()
			<-woken
		})
	}
}
