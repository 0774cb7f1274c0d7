// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/binary"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/internal/failpoint"
	"phalanx/kernels"
)

// heal is the state of a heal. It is on from before the first byte until every byte is verified.
type heal struct {
	on         bool
	generation phalanx.Generation
	seat       uint64 // count of the seat that was healed, 0 for none: that seat heals once
	news       bool   // the owner was not told yet that the state was replaced
}

// healStep carries a heal on as far as the page allows. It returns again = true when the label changed.
func (c *Client) healStep(seat wire.Seat, sequence uint64) (again bool, err error) {
	if c.heal.seat == sequence {
		return false, nil // done; the next seat says what follows
	}
	if !c.heal.on || c.heal.generation != seat.Generation {
		if err := c.tellCoordinate(seat.Coordinate); err != nil {
			return false, err
		}
		c.startHeal(seat)
	}
	for i := range wire.FillCount {
		c.fill(i)
	}
	end, n := c.page.ReadHealEnd()
	result, _ := c.page.ReadHealResult()
	if n == 0 || end.Sequence <= result.Sequence || end.Generation != c.heal.generation {
		return false, nil
	}
	why, tensor := c.verify(end)
	if why == wire.WhyNone {
		c.endHeal(end, sequence)
	} else {
		c.log.Error("healed state does not verify", "generation", end.Generation.String(), "why", why.String(), "tensor", tensor, "label", end.Label().String())
	}
	c.page.WriteHealResult(wire.HealResult{Generation: end.Generation, Sequence: end.Sequence, OK: why == wire.WhyNone, Why: why, Tensor: tensor})
	c.m.Daemon.Ring()
	return why == wire.WhyNone, nil
}

// startHeal voids what the trainer possesses before the first byte is written.
func (c *Client) startHeal(seat wire.Seat) {
	c.abortStaging()
	c.log.Info("healing", "generation", seat.Generation.String(), "from", c.applied.Label().String(), "to", seat.Resume().String())
	c.page.WriteHealing(wire.Healing{On: true, Generation: seat.Generation, TrainerStart: c.m.TrainerStart})
	void := c.applied
	void.Valid = false
	c.setApplied(void)
	c.writeGradient(wire.Gradient{})
	failpoint.Here("client-heal-begun")
	c.heal = heal{on: true, generation: seat.Generation, news: true}
	c.digests = digestCache{}
	c.m.Daemon.Ring()
}

// fill copies the bytes of one place of D_FILL into a registered tensor.
func (c *Client) fill(i int) {
	f, n := c.page.ReadFill(i)
	if done, _ := wire.ParseAnswer(c.page.Filled(i)); n == 0 || f.Sequence <= done {
		return
	}
	status := wire.StatusFailed
	switch {
	case f.Generation != c.heal.generation:
		status = wire.StatusRevoked
	case c.inTensor(f.Tensor, f.Offset, f.Length) && within(f.SegmentOffset, f.Length, len(c.m.Segment)):
		copy(c.cfg.State[f.Tensor].Data[f.Offset:], c.m.Segment[f.SegmentOffset:][:f.Length])
		failpoint.Here("client-heal-filling")
		status = wire.StatusOK
	default:
		c.log.Error("heal bytes refused", "tensor", f.Tensor, "offset", f.Offset, "length", f.Length, "segment_offset", f.SegmentOffset)
	}
	c.page.SetFilled(i, wire.Answer(f.Sequence, status))
	c.m.Daemon.Ring()
}

// verify compares every tensor with its expected digest and returns the first that differs.
func (c *Client) verify(end wire.HealEnd) (why wire.Why, tensor int) {
	if end.DigestsCount != len(c.cfg.State) {
		return wire.WhyCountWrong, -1
	}
	if !within(end.DigestsOffset, int64(16*len(c.cfg.State)), len(c.m.Segment)) {
		return wire.WhyRangeWrong, -1
	}
	for i, t := range c.cfg.State {
		at := c.m.Segment[end.DigestsOffset+int64(16*i):]
		want := phalanx.Digest{binary.LittleEndian.Uint64(at), binary.LittleEndian.Uint64(at[8:])}
		if !want.IsZero() && kernels.TensorDigest(0, t) != want { // zero: nothing was written, it stays as it was made
			return wire.WhyStateUnequal, i
		}
	}
	return wire.WhyNone, -1
}

// endHeal takes the label of the source. A kill before the last store leaves healing on: the trainer possesses nothing.
func (c *Client) endHeal(end wire.HealEnd, seat uint64) {
	failpoint.Here("client-heal-verified")
	l := end.Label()
	c.page.WriteApplying(wire.Applying{Step: l.Step, Generation: l.Generation, TrainerStart: c.m.TrainerStart})
	c.setApplied(wire.Applied{Step: l.Step, Generation: l.Generation, Digest: l.Digest, Coordinate: l.Coordinate, Valid: true})
	failpoint.Here("client-heal-labelled")
	c.page.WriteHealing(wire.Healing{Generation: c.heal.generation, TrainerStart: c.m.TrainerStart})
	failpoint.Here("client-healed")
	c.heal.on, c.heal.seat = false, seat
	c.log.Info("healed", "generation", c.heal.generation.String(), "label", l.String())
}
