// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/internal/failpoint"
)

// Begin is a place in a world and the step to compute there.
type Begin struct {
	Step       phalanx.Step
	Generation phalanx.Generation
	Rank       phalanx.Rank
	World      int // ranks
	GroupSize  int
	Coordinate int
	Slots      phalanx.SlotRange // to compute, in order
	SlotCount  int               // S
	LocalRank  int               // index on the host
	LocalWorld int               // ranks on the host
	Healed     bool              // the registered state was replaced since the last Begin returned: rebuild what derives from it
}

// Begin waits for a seat that says run and returns the next step. Inside it the member serves heals, stages saves, heals
// itself and rolls forward, the last with Config.Apply. Errors: ErrDone, ErrPreempted, ErrFenced, ErrOrphaned, ErrTorn, ErrSeat,
// the context's.
func (c *Client) Begin(ctx context.Context) (Begin, error) {
	if c.torn {
		return Begin{}, fmt.Errorf("begin: %w", ErrTorn)
	}
	c.begun = Begin{}
	c.announce()
	err := c.wait(ctx, c.obey)
	if err != nil {
		return Begin{}, fmt.Errorf("begin: %w", err)
	}
	return c.begun, nil
}

// announce says that the owner waits in Begin, for which step, and which seat it has seen there.
func (c *Client) announce() {
	c.enter(wire.PhaseBegin, c.applied.Step+1)
	c.page.WriteBegin(wire.Begin{Waiting: true, Step: c.applied.Step + 1, SeatSequence: c.obeyed, TrainerStart: c.m.TrainerStart})
	c.m.Daemon.Tell()
}

// obey does what the seat says. The daemon writes a commit before the seat that rests on it, so the seat is read first.
func (c *Client) obey() (over, again bool, err error) {
	seat, sequence := c.page.ReadSeat()
	if sequence == 0 {
		return false, false, nil
	}
	if seat.Action == wire.ActionFenced {
		return false, false, fmt.Errorf("generation %s: %w", seat.Generation, ErrFenced)
	}
	if c.committed(seat) {
		if err := c.apply(); err != nil {
			return false, false, err
		}
		c.announce()
		return false, true, nil
	}
	if c.obeyed != sequence {
		c.obeyed = sequence
		c.announce()
	}
	switch seat.Action {
	case wire.ActionStop:
		return false, false, c.leave(seat)
	case wire.ActionHeal:
		again, err := c.healStep(seat, sequence)
		if again {
			c.announce()
		}
		return false, again, err
	case wire.ActionPark:
		if c.finished(seat) {
			return false, false, ErrDone
		}
		return false, false, nil
	case wire.ActionRun:
		over, err := c.take(seat, sequence)
		return over, false, err
	default:
		return false, false, fmt.Errorf("seat with %s; run daemon and client of one release: %w", seat.Action, wire.ErrVersion)
	}
}

// committed reports whether the step after the applied one is decided with the gradient that is held. A commit may be acted
// on late, but never once a seat of another branch was read, unless that branch begins with this very step.
func (c *Client) committed(seat wire.Seat) bool {
	commit, n := c.page.ReadCommit()
	g := c.gradient
	floor := seat.ResumeStep == g.Step && seat.ResumeGeneration == g.Generation && seat.ResumeDigest == g.Digest && seat.Coordinate == g.Coordinate
	return n > 0 && g.Step != 0 && commit.Step == g.Step && commit.Generation == g.Generation &&
		c.applied.Valid && g.Step == c.applied.Step+1 && (seat.Branch == c.branch || floor)
}

// leave ends the trainer's part: what the daemon asked to save is staged first. It may have asked after the last look.
func (c *Client) leave(seat wire.Seat) error {
	c.serve()
	c.enter(wire.PhaseSave, c.applied.Step)
	c.joinStaging()
	if c.finished(seat) {
		return ErrDone
	}
	return ErrPreempted
}

func (c *Client) finished(seat wire.Seat) bool {
	last := seat.LastStep
	if last == 0 {
		last = c.cfg.Spec.LastStep
	}
	return c.applied.Valid && c.applied.Step >= last
}

// take begins the next step if the state is one that the seat builds on.
func (c *Client) take(seat wire.Seat, sequence uint64) (over bool, err error) {
	if !c.fits(seat) {
		if c.complained != sequence {
			c.complained = sequence
			c.log.Warn("state does not fit the seat, waiting for a heal", "generation", seat.Generation.String(),
				"have", c.applied.Label().String(), "valid", c.applied.Valid, "want", seat.Resume().String())
		}
		return false, nil
	}
	if c.finished(seat) {
		return false, ErrDone
	}
	if err := c.checkSeat(seat); err != nil {
		return false, err
	}
	next := c.applied.Step + 1
	if c.voted.Step == next && c.voted.Generation == seat.Generation {
		return false, nil // a vote is final: only its commit or another generation goes on from here
	}
	if err := c.tellCoordinate(seat.Coordinate); err != nil {
		return false, err
	}
	failpoint.Here("client-seat-taken")
	if c.gradient.Step != 0 {
		c.writeGradient(wire.Gradient{}) // applied, or its step was not decided: its memory is free
	}
	if seat.Generation != c.begunSeat.Generation {
		c.log.Info("seat taken", "generation", seat.Generation.String(), "rank", int(seat.Rank), "world", seat.World, "step", uint64(next))
	}
	healed := c.heal.news
	c.heal.news = false
	c.begunSeat = seat
	c.begun = Begin{
		Step: next, Generation: seat.Generation, Rank: seat.Rank, World: seat.World, GroupSize: seat.GroupSize,
		Coordinate: seat.Coordinate, Slots: phalanx.SlotRange{First: seat.SlotFirst, End: seat.SlotEnd},
		SlotCount: seat.SlotCount, LocalRank: seat.LocalRank, LocalWorld: seat.LocalWorld, Healed: healed,
	}
	c.page.WriteBegin(wire.Begin{Step: next, SeatSequence: sequence, TrainerStart: c.m.TrainerStart})
	return true, nil
}

// checkSeat refuses a place for which the segment was not planned.
func (c *Client) checkSeat(s wire.Seat) error {
	if !c.cfg.Pin.Fits(s.Coordinate) {
		return fmt.Errorf("generation %s gives coordinate %d to a member at %s: %w", s.Generation, s.Coordinate, c.cfg.Pin, ErrSeat)
	}
	if s.SlotCount != c.cfg.Spec.Slots || s.SlotFirst < 0 || s.SlotFirst >= s.SlotEnd || int(s.SlotEnd) > s.SlotCount || s.World < 1 || s.GroupSize < 1 {
		return fmt.Errorf("generation %s gives slots %d to %d of %d in a world of %d, the job has %d slots: %w",
			s.Generation, s.SlotFirst, s.SlotEnd, s.SlotCount, s.World, c.cfg.Spec.Slots, ErrSeat)
	}
	return nil
}

// fits reports whether the state is the seat's floor, or was made in its generation, with its coordinate.
func (c *Client) fits(seat wire.Seat) bool {
	a := c.applied
	if !a.Valid || c.heal.on || a.Coordinate != wire.AnyCoordinate && a.Coordinate != seat.Coordinate {
		return false
	}
	floor := a.Step == seat.ResumeStep && a.Generation == seat.ResumeGeneration && a.Digest == seat.ResumeDigest
	return floor || a.Generation == seat.Generation && a.Step > seat.ResumeStep
}

func (c *Client) tellCoordinate(coordinate int) error {
	if c.cfg.Coordinate == nil || c.coordinate == coordinate {
		return nil
	}
	if err := c.cfg.Coordinate(coordinate); err != nil {
		return fmt.Errorf("take coordinate %d: %w", coordinate, err)
	}
	c.coordinate = coordinate
	return nil
}
