// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"phalanx"
	"phalanx/client"
	"phalanx/client/wire"
)

// remote is the session of a trainer that phalanx run has started: one client.
//
// Signals do not end its waits. The client tells the daemon of them, which brings the member out of the world in order and
// then ends the wait itself; a wait that is cut off would cost the others a step.
type remote struct {
	client *client.Client
	log    *slog.Logger
}

func dial(ctx context.Context, log *slog.Logger) (session, error) {
	c, err := client.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &remote{c, log}, nil
}

// hello is the one call that a signal ends: nobody waits for this member yet.
func (r *remote) hello(ctx context.Context, reg registration) error {
	err := r.client.Hello(ctx, client.Config{
		Spec: reg.spec, State: reg.state, PerRank: reg.perRank, GradientElements: reg.elements, Apply: reg.apply, Logger: r.log,
	})
	var refusal *wire.Error
	switch {
	case err == nil:
		if ctx.Err() != nil { // the signal came before the client listened
			r.client.Preempt()
		}
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errPreempted, err)
	case errors.As(err, &refusal) && (refusal.Code == wire.CodeSpecDiffers || refusal.Code == wire.CodeProtocol):
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

func (r *remote) begin(ctx context.Context) (turn, error) {
	b, err := r.client.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return turn{}, translate(err)
	}
	return turn{step: b.Step, slots: b.Slots, generation: b.Generation, coordinate: b.Coordinate}, nil
}

func (r *remote) working(step phalanx.Step, slot phalanx.Slot) { r.client.Working(step, slot) }

func (r *remote) fold() fold { return r.client.Fold() }

func (r *remote) reduce(ctx context.Context) ([]float32, error) {
	ctx = context.WithoutCancel(ctx)
	gradient, err := r.client.AllReduce(ctx, true)
	if errors.Is(err, client.ErrCollective) {
		// The generation lives and waits for this vote: say that the gradient is not held, so that it ends.
		if _, voteErr := r.client.Vote(ctx, client.Vote{}); voteErr != nil {
			return nil, errors.Join(err, translate(voteErr))
		}
		r.log.Warn("reduction failed, step is computed again", "error", err)
		return nil, fmt.Errorf("%w: %w", phalanx.ErrRevoked, err)
	}
	return gradient, translate(err)
}

func (r *remote) vote(ctx context.Context, v vote) (bool, error) {
	committed, err := r.client.Vote(context.WithoutCancel(ctx), client.Vote{
		OK: true, Digest: v.digest, Compute: v.compute, Reduce: v.reduce, Digesting: v.digesting,
	})
	return committed, translate(err)
}

func (r *remote) apply() error {
	err := r.client.Apply()
	if errors.Is(err, client.ErrIllegal) {
		// Between vote and now the job was wound back; nothing was applied.
		return fmt.Errorf("%w: %w", phalanx.ErrRevoked, err)
	}
	return err
}

func (r *remote) finish(ctx context.Context, digest phalanx.Digest) error {
	return translate(r.client.Finish(context.WithoutCancel(ctx), digest))
}

func (r *remote) close() error { return r.client.Close() }

// translate says in the trainer's words how a job goes on or ends.
func translate(err error) error {
	switch {
	case errors.Is(err, client.ErrDone):
		return errDone
	case errors.Is(err, client.ErrRepeat):
		return errRepeat
	case errors.Is(err, client.ErrPreempted), errors.Is(err, client.ErrOrphaned):
		return fmt.Errorf("%w: %w", errPreempted, err)
	}
	return err
}
