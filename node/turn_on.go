// SPDX-License-Identifier: Apache-2.0

//go:build race || planted || failpoints

package node

import "sync/atomic"

// turn says whether the loop is at work. Promises (votes, seals, refusals) are written in its turns alone: checking a seal and
// writing a vote are one critical section only because nobody else does either. In builds for tests a write at another time
// is a fault of the program.
type turn struct {
	begun, on atomic.Bool
	breach    func(what string) // nil: panic
}

func (t *turn) take() { t.begun.Store(true); t.on.Store(true) }
func (t *turn) give() { t.on.Store(false) }

// must fails when the loop sleeps: then somebody else is writing. A loop that has not begun has nobody beside it.
func (t *turn) must(what string) {
	switch {
	case !t.begun.Load() || t.on.Load():
	case t.breach != nil:
		t.breach(what)
	default:
		panic("node: " + what + " is written while the loop sleeps: only the loop writes promises")
	}
}
