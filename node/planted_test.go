// SPDX-License-Identifier: Apache-2.0

//go:build planted

package node

import (
	"testing"
	"time"

	"phalanx/internal/planted"
)

// TestPlantedVoteElsewhere: a vote that another goroutine writes while the loop sleeps is seen.
func TestPlantedVoteElsewhere(t *testing.T) {
	breaches := func() string {
		d := lone(t)
		said := make(chan string, 1) // 1: one vote is written
		d.turn.breach = func(what string) { said <- what }
		d.turn.take()
		request(d, 1)
		d.scan()
		d.turn.give()
		select {
		case what := <-said:
			return what
		case <-time.After(200 * time.Millisecond):
			return ""
		}
	}
	if what := breaches(); what != "" {
		t.Fatalf("the loop's own vote is taken for somebody else's: %s", what)
	}
	remove := planted.Plant(planted.VoteElsewhere)
	what := breaches()
	if n := remove(); n == 0 {
		t.Error("no vote was written")
	}
	if what == "" {
		t.Error("a vote from another goroutine was not noticed")
	}
}
