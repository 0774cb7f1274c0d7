// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"phalanx"
	"phalanx/kernels"
)

// world is a job of several members in one process, and what happens to them. Members fall from the highest rank down.
type world struct {
	size func(phalanx.Step) int // how many members compute a step; never grows
	// revoked says that an attempt at a step, counted from 0, ends in the reduction.
	revoked func(step phalanx.Step, attempt int) bool
	// unheard says that a rank does not hear of a commit from its vote, but in begin.
	unheard func(phalanx.Step, phalanx.Rank) bool

	mu       sync.Mutex
	meetings map[string]*meeting
}

// meeting is where ranks wait for each other.
type meeting struct {
	values  []any
	arrived int
	all     chan struct{} // closed by the last
}

// meet returns what every rank brought, in rank order.
func (w *world) meet(name string, rank phalanx.Rank, size int, value any) ([]any, error) {
	w.mu.Lock()
	if w.meetings == nil {
		w.meetings = map[string]*meeting{}
	}
	m := w.meetings[name]
	if m == nil {
		m = &meeting{values: make([]any, size), all: make(chan struct{})}
		w.meetings[name] = m
	}
	m.values[rank] = value
	if m.arrived++; m.arrived == size {
		close(m.all)
	}
	w.mu.Unlock()
	select {
	case <-m.all:
		return m.values, nil
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("rank %d waited a minute for %s", rank, name)
	}
}

// member is one trainer's session in a world.
type member struct {
	world   *world
	rank    phalanx.Rank
	job     registration
	sums    treeFold
	mean    []float32
	applied phalanx.Step
	attempt int  // at applied+1
	behind  bool // the step voted for is committed, but the trainer was not told
}

func (m *member) hello(_ context.Context, r registration) error {
	m.job = r
	m.sums = treeFold{tree: phalanx.SlotTree{Slots: r.spec.Slots}, elements: r.elements}
	m.mean = make([]float32, r.elements)
	return nil
}

func (m *member) begin(context.Context) (turn, error) {
	if m.behind {
		m.behind = false
		if err := m.apply(); err != nil {
			return turn{}, err
		}
	}
	step := m.applied + 1
	if step > m.job.spec.LastStep {
		return turn{}, errDone
	}
	size := m.world.size(step)
	if int(m.rank) >= size {
		return turn{}, errPreempted
	}
	deal, err := phalanx.DealSlots(m.job.spec.Slots, size)
	if err != nil {
		return turn{}, err
	}
	return turn{step: step, slots: deal[m.rank]}, nil
}

func (m *member) working(phalanx.Step, phalanx.Slot) {}

func (m *member) fold() fold {
	m.sums.reset()
	return &m.sums
}

func (m *member) reduce(context.Context) ([]float32, error) {
	step := m.applied + 1
	attempt := m.attempt
	m.attempt++
	if m.world.revoked != nil && m.world.revoked(step, attempt) {
		return nil, fmt.Errorf("attempt %d: %w", attempt, phalanx.ErrRevoked)
	}
	// Everyone sums for itself, from copies: sums of others are added in place.
	var mine []part
	for _, p := range m.sums.parts {
		mine = append(mine, part{p.node, slices.Clone(p.sum)})
	}
	all, err := m.world.meet(fmt.Sprintf("reduce %d.%d", step, attempt), m.rank, m.world.size(step), mine)
	if err != nil {
		return nil, err
	}
	root := treeFold{tree: m.sums.tree, elements: m.job.elements}
	for _, parts := range all {
		for _, p := range parts.([]part) {
			root.add(part{p.node, slices.Clone(p.sum)})
		}
	}
	kernels.ScaleF32(m.mean, root.whole(), 1/float32(m.job.spec.Slots))
	return m.mean, nil
}

func (m *member) vote(_ context.Context, own vote) (bool, error) {
	digest := own.digest
	step := m.applied + 1
	votes, err := m.world.meet(fmt.Sprintf("vote %d.%d", step, m.attempt), m.rank, m.world.size(step), digest)
	if err != nil {
		return false, err
	}
	for rank, v := range votes {
		if v != digest {
			return false, fmt.Errorf("step %d: rank %d votes for %v, rank %d for %v", step, rank, v, m.rank, digest)
		}
	}
	m.behind = m.world.unheard != nil && m.world.unheard(step, m.rank)
	return !m.behind, nil
}

func (m *member) apply() error {
	if err := m.job.apply(m.applied + 1); err != nil {
		return err
	}
	m.applied++
	m.attempt = 0
	return nil
}

func (m *member) finish(context.Context, phalanx.Digest) error { return nil }

func (m *member) close() error { return nil }
