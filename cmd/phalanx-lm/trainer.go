// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"phalanx"
	"phalanx/cmd/phalanx-lm/lm"
	"phalanx/internal/planted"
	"phalanx/kernels"
)

// job is what a run is made of.
type job struct {
	spec      phalanx.JobSpec
	shape     lm.Shape
	optimizer lm.Optimizer
	corpus    *lm.Corpus
	floor     time.Duration // the least time that the compute of a step takes
	every     phalanx.Step  // steps between two lines of output
	faults    faults
	record    *record
}

// newJob fills in what the spec says about data and settings.
func newJob(spec phalanx.JobSpec, shape lm.Shape, optimizer lm.Optimizer, corpus *lm.Corpus) (*job, error) {
	spec.GroupSize, spec.Threads = 1, 1
	spec.DataLength, spec.DataHash = int64(len(corpus.Data)), corpus.Hash
	spec.Settings = "phalanx-lm " + shape.String() + " " + optimizer.String()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if shape.Samples(len(corpus.Data)) == 0 {
		return nil, fmt.Errorf("corpus has %d bytes; one sample needs %d", len(corpus.Data), shape.Context+1)
	}
	return &job{spec: spec, shape: shape, optimizer: optimizer, corpus: corpus, every: 50}, nil
}

// coordinateStride is how far apart the samples of two coordinates of a group are.
const coordinateStride = 7919

// trainer runs the steps of a job against a session. All that lasts from one step to the next is in state; the rest is
// computed again when a step is repeated.
type trainer struct {
	*job
	session session
	out     io.Writer
	sampler lm.Sampler
	layout  *lm.Layout
	model   *lm.Model
	state   *lm.State
	samples []int64

	held held
}

// held is the gradient that the trainer voted for last. It is applied when its step is committed, at once or, when others
// heard of it first, later and in another world. The session owns the numbers.
type held struct {
	step       phalanx.Step
	generation phalanx.Generation
	gradient   []float32
	digest     phalanx.Digest
	stats      kernels.Stats
	loss       float64 // mean over this trainer's slots
}

func newTrainer(j *job, s session, out io.Writer) *trainer {
	layout := lm.NewLayout(j.shape)
	return &trainer{
		job: j, session: s, out: out,
		sampler: lm.Sampler{
			Seed: j.spec.Seed, Count: j.shape.Samples(len(j.corpus.Data)),
			GlobalBatch: j.spec.GlobalBatch, Slots: j.spec.Slots,
		},
		layout: layout,
		model:  lm.NewModel(j.shape, j.spec.Seed),
		state:  lm.NewState(layout, j.spec.Seed),
	}
}

// run trains until the last step is committed and prints the final line. It returns errPreempted when it was told to leave.
func (t *trainer) run(ctx context.Context) error {
	perRank := map[string]bool{}
	for _, x := range t.state.Tensors() {
		perRank[x.Name] = t.spec.GroupSize > 1 // the models of a group have nothing in common
	}
	err := t.session.hello(ctx, registration{
		spec: t.spec, state: t.state.Tensors(), perRank: perRank, elements: t.layout.Elements(), apply: t.apply,
	})
	if err != nil {
		return err
	}
	for {
		b, err := t.session.begin(ctx)
		if errors.Is(err, errDone) {
			err = t.finish(ctx)
			if errors.Is(err, errRepeat) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		// A revoked step is no failure: begin tells what is computed next, maybe the same step in another world.
		if err := t.step(ctx, b); err != nil && !errors.Is(err, phalanx.ErrRevoked) {
			return err
		}
	}
}

// step computes one step, votes, and applies it when it is committed.
func (t *trainer) step(ctx context.Context, b turn) error {
	t.faults.onStep(b.step)
	begun := time.Now()
	loss := t.compute(b)
	sleepUntil(ctx, begun.Add(t.floor))
	computed := time.Now()
	t.held = held{} // the reduction overwrites what was held
	gradient, err := t.session.reduce(ctx)
	if err != nil {
		return fmt.Errorf("reduce step %d: %w", b.step, err)
	}
	reduced := time.Now()
	digest, stats := t.digest(b.step, gradient)
	t.held = held{b.step, b.generation, gradient, digest, stats, loss}
	committed, err := t.session.vote(ctx, vote{
		digest: t.faults.onDigest(b.step, digest), compute: computed.Sub(begun), reduce: reduced.Sub(computed), digesting: time.Since(reduced),
	})
	if err != nil {
		return fmt.Errorf("vote step %d: %w", b.step, err)
	}
	if !committed {
		return nil
	}
	return t.session.apply()
}

// compute folds the gradients of the trainer's slots, each by itself from a cleared block, and returns their mean loss.
func (t *trainer) compute(b turn) float64 {
	sums := t.session.fold()
	var loss float64
	for slot := b.slots.First; slot < b.slots.End; slot++ {
		t.session.working(b.step, slot)
		t.faults.onSlot(b.step, slot)
		t.samples = t.sampler.Samples(t.samples[:0], b.step, slot)
		for i := range t.samples { // a model of its own for each coordinate
			t.samples[i] = (t.samples[i] + int64(b.coordinate)*coordinateStride) % t.sampler.Count
		}
		if planted.On(planted.SlotsMerged) {
			loss += t.mergeSlots(sums, b, slot)
			continue
		}
		loss += t.model.Gradient(sums.Slot(slot), t.state.Parameters, t.corpus.Data, t.samples, b.step, slot)
		sums.Done(slot)
	}
	return loss / float64(max(1, b.slots.Len()))
}

// mergeSlots is a planted bug: it computes a slot and the one after it in one pass and leaves nothing for the second.
func (t *trainer) mergeSlots(sums fold, b turn, slot phalanx.Slot) float64 {
	block, loss := sums.Slot(slot), 0.0
	if (slot-b.slots.First)%2 == 0 {
		if slot+1 < b.slots.End {
			t.samples = append(t.samples, t.sampler.Samples(nil, b.step, slot+1)...)
		}
		loss = t.model.Gradient(block, t.state.Parameters, t.corpus.Data, t.samples, b.step, slot)
	}
	sums.Done(slot)
	return loss
}

// digest is the vote's digest of a gradient, under keys that change with the step, and the statistics for clipping.
func (t *trainer) digest(step phalanx.Step, gradient []float32) (phalanx.Digest, kernels.Stats) {
	return kernels.DigestStats(kernels.VoteSeed(t.spec.Seed, step), t.layout.Tensors("", gradient))
}

// apply makes the step that the held gradient is for. The gradient is digested again: it lies in memory that others map, and
// nobody can take back a step that was made from other bits than those voted for.
func (t *trainer) apply(step phalanx.Step) error {
	h := t.held
	if h.gradient == nil || h.step != step {
		return fmt.Errorf("apply step %d: no gradient of it is held", step)
	}
	if digest, _ := t.digest(step, h.gradient); digest != h.digest {
		return fmt.Errorf("apply step %d: the gradient is %s, voted for was %s; memory of this host is not to be trusted", step, digest, h.digest)
	}
	t.faults.onApply()
	if err := t.optimizer.Apply(t.state, step, h.gradient, h.stats); err != nil {
		return err
	}
	if t.record != nil {
		if err := t.record.applied(step, h.generation, h.digest, t.state.Digest()); err != nil {
			return err
		}
	}
	if step%t.every == 0 {
		fmt.Fprintf(t.out, "step=%d loss=%.4f\n", step, h.loss)
	}
	return nil
}

// finish prints the final line and stays for the others. The line comes first: the digest does not depend on how the
// process ends.
func (t *trainer) finish(ctx context.Context) error {
	step, digest := t.state.Applied(), t.state.Digest()
	if _, err := fmt.Fprintf(t.out, "final step=%d digest=%s\n", step, digest); err != nil {
		return fmt.Errorf("print the final line: %w", err)
	}
	if err := t.session.finish(ctx, digest); err != nil {
		return fmt.Errorf("finish step %d: %w", step, err)
	}
	return nil
}

// sleepUntil returns at the time, or when the context ends: the step is then finished without delay.
func sleepUntil(ctx context.Context, at time.Time) {
	wait := time.Until(at)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
