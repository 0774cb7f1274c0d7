// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"phalanx"
	"phalanx/kernels"
)

// alone is a session of one process without a daemon: it holds every slot, and what it voted for is committed. It is what
// the digests of every other world are compared with.
type alone struct {
	coordinate int // whose model it trains
	job        registration
	sums       treeFold
	mean       []float32
	current    phalanx.Step // begun and not applied, or the last one applied
	applied    phalanx.Step
}

func (a *alone) hello(_ context.Context, r registration) error {
	a.job = r
	a.sums = treeFold{tree: phalanx.SlotTree{Slots: r.spec.Slots}, elements: r.elements}
	a.mean = make([]float32, r.elements)
	return nil
}

func (a *alone) begin(ctx context.Context) (turn, error) {
	if a.applied == a.job.spec.LastStep {
		return turn{}, errDone
	}
	if ctx.Err() != nil {
		return turn{}, errPreempted
	}
	a.current = a.applied + 1
	slots := a.job.spec.Slots
	return turn{step: a.current, slots: phalanx.SlotTree{Slots: slots}.Root(), coordinate: a.coordinate}, nil
}

func (a *alone) working(phalanx.Step, phalanx.Slot) {}

func (a *alone) fold() fold {
	a.sums.reset()
	return &a.sums
}

func (a *alone) reduce(context.Context) ([]float32, error) {
	sum := a.sums.whole()
	if sum == nil {
		return nil, errors.New("reduce: slots are missing")
	}
	kernels.ScaleF32(a.mean, sum, 1/float32(a.job.spec.Slots))
	return a.mean, nil
}

func (a *alone) vote(context.Context, vote) (bool, error) { return true, nil }

func (a *alone) apply() error {
	if err := a.job.apply(a.current); err != nil {
		return err
	}
	a.applied = a.current
	return nil
}

func (a *alone) finish(context.Context, phalanx.Digest) error { return nil }

func (a *alone) close() error { return nil }
