// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/internal/failpoint"
	"phalanx/internal/planted"
	"phalanx/kernels"
)

// Vote is what the trainer says about the begun step.
type Vote struct {
	// OK says that the trainer holds the whole reduced gradient, final: divided, clipped, on its device. Numbers that are
	// not finite are no reason against it.
	OK     bool
	Digest phalanx.Digest // of the reduced gradient
	// Times of the step, for the straggler detector.
	Compute, Reduce, Digesting time.Duration
}

// GradientDigest is the D1 digest of a reduced gradient for Vote, with the seed of the begun step.
func (c *Client) GradientDigest(gradient []float32) phalanx.Digest {
	seed := kernels.VoteSeed(c.cfg.Spec.Seed, c.begun.Step)
	return kernels.TensorDigest(seed, kernels.Tensor{Name: "gradient", DType: "f32", Shape: []int{len(gradient)}, Data: kernels.Bytes(gradient)})
}

// Vote votes for the begun step and waits for the decision. true: call Apply. false: the step is not decided here, call
// Begin. The vote is final; the gradient must stay as it is until Begin or Apply returns.
func (c *Client) Vote(ctx context.Context, v Vote) (committed bool, err error) {
	if err := c.mustHaveBegun("vote"); err != nil {
		return false, err
	}
	b := c.begun
	if c.voted.Step == b.Step && c.voted.Generation == b.Generation {
		return false, fmt.Errorf("vote: step %d was voted for in generation %s: %w", b.Step, b.Generation, ErrIllegal)
	}
	c.enter(wire.PhaseVote, b.Step)
	if v.OK {
		c.branch = c.begunSeat.Branch
		c.writeGradient(wire.Gradient{Generation: b.Generation, Step: b.Step, Digest: v.Digest, Coordinate: b.Coordinate})
		failpoint.Here("client-gradient-written")
	}
	c.voted = wire.VoteRequest{
		Generation: b.Generation, Step: b.Step, OK: v.OK, Digest: v.Digest, TrainerStart: c.m.TrainerStart,
		ComputeNS: v.Compute.Nanoseconds(), ReduceNS: v.Reduce.Nanoseconds(), DigestNS: v.Digesting.Nanoseconds(),
	}
	c.page.WriteVoteRequest(c.voted)
	failpoint.Here("client-vote-asked")
	c.m.Daemon.Ring()
	err = c.wait(ctx, func() (over, again bool, err error) {
		seat, _ := c.page.ReadSeat() // before the commit: the daemon writes them the other way round
		committed = c.committed(seat)
		return committed || c.superseded(seat), false, nil
	})
	if !committed {
		c.begun = Begin{} // only Begin knows how it goes on
	}
	if err != nil {
		return false, fmt.Errorf("vote: %w", err)
	}
	return committed, nil
}

// superseded reports whether the begun step is over because the seat says something else by now.
func (c *Client) superseded(seat wire.Seat) bool {
	return c.begun.Generation.Less(seat.Generation) || seat.Action != wire.ActionRun
}

func (c *Client) mustHaveBegun(call string) error {
	if c.torn {
		return fmt.Errorf("%s: %w", call, ErrTorn)
	}
	if c.begun.Step == 0 {
		return fmt.Errorf("%s: no step was begun; call Begin first: %w", call, ErrIllegal)
	}
	return nil
}

// Apply runs the optimizer for the committed step. After an error the state is torn and the process must exit.
func (c *Client) Apply() error {
	if err := c.mustHaveBegun("apply"); err != nil {
		return err
	}
	if seat, _ := c.page.ReadSeat(); !c.committed(seat) {
		return fmt.Errorf("apply: step %d is not committed; after a rewind call Begin: %w", c.begun.Step, ErrIllegal)
	}
	if planted.On(planted.AppliedTwice) {
		if err := c.apply(); err != nil {
			return err
		}
	}
	return c.apply()
}

// apply is the one operation behind commit and roll forward. The caller has checked committed, which refuses everything
// but the step after a whole state.
func (c *Client) apply() (err error) {
	g := c.gradient
	c.joinStaging()
	c.enter(wire.PhaseApply, g.Step)
	c.page.WriteApplying(wire.Applying{Step: g.Step, Generation: g.Generation, TrainerStart: c.m.TrainerStart})
	failpoint.Here("client-applying")
	c.torn, c.begun = true, Begin{} // until the optimizer has returned; a panic leaves it so
	if planted.On(planted.HealInsideApply) {
		over := c.serveBeside()
		defer over()
	}
	if err := c.cfg.Apply(g.Step); err != nil {
		c.m.Daemon.Ring()
		return fmt.Errorf("apply step %d: %w", g.Step, errors.Join(ErrTorn, err))
	}
	c.torn = false
	failpoint.Here("client-optimizer-returned")
	c.setApplied(wire.Applied{Step: g.Step, Generation: g.Generation, Digest: g.Digest, Coordinate: g.Coordinate, Valid: true})
	failpoint.Here("client-applied")
	c.m.Daemon.Tell()
	return nil
}

// Finish says that training ended well with a state of this digest, and goes on serving heals and saves until the daemon
// says stop, or for FinishGrace after the last state was staged. ErrRepeat: the job was rewound, call Begin.
func (c *Client) Finish(ctx context.Context, digest phalanx.Digest) error {
	if c.torn {
		return fmt.Errorf("finish: %w", ErrTorn)
	}
	c.begun = Begin{}
	c.enter(wire.PhaseSave, c.applied.Step)
	failpoint.Here("client-finishing")
	c.page.WriteDone(wire.Done{Step: c.applied.Step, Digest: digest, TrainerStart: c.m.TrainerStart})
	failpoint.Here("client-done")
	c.m.Daemon.Ring()
	var staged time.Time
	err := c.wait(ctx, func() (over, again bool, err error) {
		seat, _ := c.page.ReadSeat()
		switch {
		case seat.Action == wire.ActionFenced:
			return false, false, ErrFenced
		case seat.Action == wire.ActionHeal:
			c.page.WriteDone(wire.Done{TrainerStart: c.m.TrainerStart})
			return false, false, ErrRepeat
		case seat.Action == wire.ActionStop:
			c.serve() // a save that was asked for just before
			c.joinStaging()
			return true, false, nil
		}
		if s, n := c.page.ReadStaged(); staged.IsZero() && n > 0 && s.OK && s.Step == c.applied.Step {
			staged = time.Now()
		}
		return !staged.IsZero() && time.Since(staged) >= FinishGrace, false, nil
	})
	if err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return nil
}
