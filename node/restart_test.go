// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"
)

// The first start and the first restart are immediate, then the wait doubles up to half a minute.
func TestRestartWaitsDouble(t *testing.T) {
	p := RestartPolicy{Max: 100}
	want := []time.Duration{0, 0, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
		16 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second}
	for i, w := range want {
		next, wait, err := p.Next()
		if err != nil || wait != w {
			t.Fatalf("start %d waits %s, %v; want %s", i+1, wait, err, w)
		}
		p = next
	}
	for range 60 { // a shift far beyond the width
		next, wait, err := p.Next()
		if err != nil || wait != 30*time.Second {
			t.Fatalf("waits %s, %v", wait, err)
		}
		p = next
	}
}

func TestRestartBudget(t *testing.T) {
	for _, most := range []int{0, 1, 3} {
		p := RestartPolicy{Max: most}
		starts := 0
		for {
			next, _, err := p.Next()
			if err != nil {
				if !strings.Contains(err.Error(), "--max-restarts") {
					t.Errorf("says %q", err)
				}
				if next != p {
					t.Error("a refused start is counted")
				}
				break
			}
			p, starts = next, starts+1
		}
		if starts != most+1 {
			t.Errorf("%d restarts allow %d starts", most, starts)
		}
	}
}

func TestRestartBudgetBeginsAnewWithProgress(t *testing.T) {
	p := RestartPolicy{Max: 1}
	spend := func() {
		t.Helper()
		for range 2 {
			next, _, err := p.Next()
			if err != nil {
				t.Fatal(err)
			}
			p = next
		}
		if _, _, err := p.Next(); err == nil {
			t.Fatal("the budget does not end")
		}
	}
	spend()
	p = p.Committed(5)
	spend()
	p = p.Committed(5).Committed(4) // nothing new
	if _, _, err := p.Next(); err == nil {
		t.Error("an old step is taken for progress")
	}
	p = p.Committed(6)
	if next, wait, err := p.Next(); err != nil || wait != 0 || next.starts != 1 {
		t.Errorf("after progress: %s, %v", wait, err)
	}
}
