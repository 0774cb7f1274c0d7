// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"sync"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/client/wire"
)

// ledger is what all trainers ever did. It checks the promises at each entry.
type ledger struct {
	spec     phalanx.JobSpec
	want     []string // the state after each step of an undisturbed run
	violated func(format string, args ...any)

	mu       sync.Mutex
	branches map[phalanx.Generation]uint64
	seats    map[seatKey]seatOf
	worlds   map[phalanx.Generation]int
	slots    map[stepKey]map[phalanx.Slot]phalanx.MemberID
	labels   map[branchStep]label
	newest   phalanx.Step
	newestAt time.Time
	applies  int
}

type seatKey struct {
	generation phalanx.Generation
	rank       phalanx.Rank
}

type seatOf struct {
	member phalanx.MemberID
	slots  phalanx.SlotRange
}

type stepKey struct {
	generation phalanx.Generation
	step       phalanx.Step
}

type branchStep struct {
	branch uint64
	step   phalanx.Step
}

type label struct {
	generation phalanx.Generation
	digest     phalanx.Digest
}

func newLedger(spec phalanx.JobSpec, want []string, violated func(string, ...any)) *ledger {
	return &ledger{spec: spec, want: want, violated: violated, branches: map[phalanx.Generation]uint64{}, seats: map[seatKey]seatOf{},
		worlds: map[phalanx.Generation]int{}, slots: map[stepKey]map[phalanx.Slot]phalanx.MemberID{}, labels: map[branchStep]label{}}
}

// began notes a seat: in one generation each rank is one member with one range, on one branch.
func (l *ledger) began(m phalanx.MemberID, b client.Begin, seat wire.Seat) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seat.Generation == b.Generation {
		if old, ok := l.branches[b.Generation]; ok && old != seat.Branch {
			l.violated("P2: generation %s is on branch %d and on branch %d", b.Generation, old, seat.Branch)
		}
		l.branches[b.Generation] = seat.Branch
	}
	key, now := seatKey{b.Generation, b.Rank}, seatOf{m, b.Slots}
	if old, ok := l.seats[key]; ok && old != now {
		l.violated("P2: generation %s was used twice: rank %d is %v and %v", b.Generation, b.Rank, old, now)
	}
	l.seats[key] = now
	if old, ok := l.worlds[b.Generation]; ok && old != b.World {
		l.violated("P2: generation %s has worlds of %d and %d ranks", b.Generation, old, b.World)
	}
	l.worlds[b.Generation] = b.World
}

// computed notes the gradient of a slot: within a generation nobody computes what another one does.
func (l *ledger) computed(m phalanx.MemberID, b client.Begin, slot phalanx.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := stepKey{b.Generation, b.Step}
	if l.slots[key] == nil {
		l.slots[key] = map[phalanx.Slot]phalanx.MemberID{}
	}
	if other, ok := l.slots[key][slot]; ok && other != m { // the same one begins anew when its reduction is revoked
		l.violated("P3: slot %d of step %d in generation %s was computed by %s and by %s", slot, b.Step, b.Generation, other, m)
	}
	l.slots[key][slot] = m
}

// applied notes an update of a trainer's state.
func (l *ledger) applied(m phalanx.MemberID, step phalanx.Step, g phalanx.Generation, digest phalanx.Digest, state string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applies++
	if step > l.newest {
		l.newest, l.newestAt = step, time.Now()
	}
	branch, known := l.branches[g]
	if !known {
		l.violated("P2: %s applies step %d of generation %s, in which nobody has begun a step", m, step, g)
	}
	if old, ok := l.labels[branchStep{branch, step}]; ok && old != (label{g, digest}) {
		l.violated("P2: step %d of branch %d is committed as %v and, by %s, as %v", step, branch, old, m, label{g, digest})
	}
	l.labels[branchStep{branch, step}] = label{g, digest}
	if before, ok := l.labels[branchStep{branch, step - 1}]; ok && g.Less(before.generation) {
		l.violated("P2: step %d is committed in generation %s, the step before in generation %s: two worlds went on", step, g, before.generation)
	}
	if got := len(l.slots[stepKey{g, step}]); got != l.spec.Slots {
		l.violated("P3: step %d in generation %s was committed with %d of %d slots", step, g, got, l.spec.Slots)
	}
	if int(step) >= len(l.want) || l.want[step] != state {
		l.violated("P3: the state of %s after step %d is not that of an undisturbed run", m, step)
	}
}

// progress is the newest step that anybody has applied.
func (l *ledger) progress() phalanx.Step {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d updates, step %d, %d generations", l.applies, l.newest, len(l.worlds))
}
