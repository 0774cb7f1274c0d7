// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"phalanx"
	"phalanx/kernels"
)

// turn is what the trainer is told at the beginning of a step.
type turn struct {
	step       phalanx.Step
	slots      phalanx.SlotRange  // to compute
	generation phalanx.Generation // the step is voted for in it; zero alone
	coordinate int                // in the replica group
}

// vote says that the trainer holds the whole reduced gradient of the step, and how long it took to get there.
type vote struct {
	digest                     phalanx.Digest
	compute, reduce, digesting time.Duration
}

// registration is what the trainer says of itself before the first step.
type registration struct {
	spec     phalanx.JobSpec
	state    []kernels.Tensor
	perRank  map[string]bool // of state: what each rank has of its own
	elements int             // of a gradient, in float32
	// apply applies the gradient that was last voted for. It runs inside session.apply, and inside session.begin when the
	// others committed a step that this trainer had voted for.
	apply func(phalanx.Step) error
}

// The ends of a job.
var (
	errDone = errors.New("the last step is committed")
	// errPreempted: the trainer was told to leave before the last step, or nobody is left to tell it anything.
	errPreempted = errors.New("preempted")
	// errRefused: the daemon trains another job than the one that the flags describe.
	errRefused = errors.New("refused by the daemon")
	// errRepeat is returned by finish: the job was wound back or extended, train on.
	errRepeat = errors.New("not the last step any more")
)

// session is what the trainer needs of the rest of the job. It is served by the daemon (remote), or by the trainer itself
// when it runs alone; both give the same bits. Calls come from one goroutine. Contexts end when the process gets a signal to leave.
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
	// vote waits for what becomes of the step. The gradient must stay as it is.
	vote(context.Context, vote) (committed bool, err error)
	// apply applies the committed step. An error that wraps phalanx.ErrRevoked has applied nothing.
	apply() error
	// finish tells the digest of the last state's parameters and serves others until the job needs this trainer no more.
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
