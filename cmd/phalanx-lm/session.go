// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"phalanx"
	"phalanx/kernels"
)

// turn is what the trainer is told at the beginning of a step.
type turn struct {
	step      phalanx.Step
	slots     phalanx.SlotRange // to compute
	slotCount int               // of the whole job
}

// registration is what the trainer says of itself before the first step.
type registration struct {
	spec     phalanx.JobSpec
	state    []kernels.Tensor
	elements int // of a gradient, in float32
	// apply applies the gradient that was last voted for. It runs inside session.apply, and inside session.begin when the
	// others committed a step that this trainer had voted for.
	apply func(phalanx.Step) error
}

// The ends of a job, as begin returns them.
var (
	errDone      = errors.New("the last step is committed")
	errPreempted = errors.New("preempted")
)

// session is what the trainer needs of the rest of the job. It is served by the daemon (remote), or by the trainer itself
// when it runs alone; both give the same bits. Calls come from one goroutine.
type session interface {
	// hello registers the state. It may overwrite it later, in begin, from a member that is ahead.
	hello(context.Context, registration) error
	// begin waits for the next step to compute: errDone, errPreempted, or an error that ends the trainer.
	begin(context.Context) (turn, error)
	// working tells which slot is computed next, so that a death can be blamed on it.
	working(phalanx.Step, phalanx.Slot)
	// fold starts the gradient of a step.
	fold() fold
	// reduce returns the mean of all slots' gradients. It is not the trainer's to write, and holds until the next reduce.
	// An error that wraps phalanx.ErrRevoked sends the trainer back to begin.
	reduce(context.Context) ([]float32, error)
	// vote says that the trainer holds the gradient with this digest, and waits for what becomes of the step.
	vote(context.Context, phalanx.Digest) (committed bool, err error)
	// apply applies the committed step.
	apply() error
	// finish tells the digest of the last state's parameters and ends the session.
	finish(context.Context, phalanx.Digest) error
	close() error
}

// fold takes the gradients of a trainer's slots, in slot order.
type fold interface {
	// Slot returns a cleared block for the gradient of a slot.
	Slot(phalanx.Slot) []float32
	// Done adds the block of a slot to the sums.
	Done(phalanx.Slot)
}
