// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// Collective posts a descriptor in the begun generation and waits for its completion. Generation and sequence are filled
// in. phalanx.ErrRevoked: the generation ended, call Begin. ErrCollective: it failed; vote not ok or call Begin.
func (c *Client) Collective(ctx context.Context, d wire.Descriptor) error {
	if err := c.mustHaveBegun(d.Op.String()); err != nil {
		return err
	}
	c.enter(wire.PhaseReduce, c.begun.Step)
	d.Generation = c.begun.Generation
	sequence := c.page.Post(d)
	c.m.Daemon.Ring()
	var newer time.Time // when the generation was seen to be over
	err := c.wait(ctx, func() (over, again bool, err error) {
		switch status := c.page.Completion(sequence); status {
		case wire.StatusNone:
		case wire.StatusOK:
			return true, false, nil
		case wire.StatusRevoked:
			return false, false, phalanx.ErrRevoked
		default:
			return false, false, fmt.Errorf("ended as %s; see the daemon's log: %w", status, ErrCollective)
		}
		if seat, _ := c.page.ReadSeat(); !c.superseded(seat) {
			return false, false, nil
		}
		if newer.IsZero() {
			newer = time.Now()
		}
		if time.Since(newer) >= RevokeGrace {
			return false, false, phalanx.ErrRevoked
		}
		return false, false, nil
	})
	if err != nil {
		return fmt.Errorf("%s of step %d: %w", d.Op, c.begun.Step, err)
	}
	return nil
}

// AllReduce sums the folded gradients of all replica groups over the slot tree and, with mean, multiplies once by
// float32(1/S). The result lies in the segment until the next reduction and must not be written.
func (c *Client) AllReduce(ctx context.Context, mean bool) ([]float32, error) {
	d, err := c.gradientDescriptor(wire.OpAllReduce, mean)
	if err != nil {
		return nil, err
	}
	if err := c.Collective(ctx, d); err != nil {
		return nil, err
	}
	return c.reduced(), nil
}

// ReduceScatter is AllReduce of which this rank gets its shard only: for q = ⌈elements/n⌉ and the i-th of the n ranks with
// this coordinate, the elements from i·q up to (i+1)·q or the end.
func (c *Client) ReduceScatter(ctx context.Context, mean bool) ([]float32, error) {
	d, err := c.gradientDescriptor(wire.OpReduceScatter, mean)
	if err != nil {
		return nil, err
	}
	if err := c.Collective(ctx, d); err != nil {
		return nil, err
	}
	size := max(1, c.begun.GroupSize)
	groups := max(1, c.begun.World/size)
	q := (c.cfg.GradientElements + groups - 1) / groups
	first := min(int(c.begun.Rank)/size*q, c.cfg.GradientElements)
	return c.reduced()[:min(q, c.cfg.GradientElements-first)], nil
}

func (c *Client) reduced() []float32 {
	return kernels.F32s(c.memory(c.plan.out, 4*int64(c.cfg.GradientElements)))
}

func (c *Client) gradientDescriptor(op wire.Op, mean bool) (wire.Descriptor, error) {
	if err := c.mustHaveBegun(op.String()); err != nil {
		return wire.Descriptor{}, err
	}
	if c.gradient.Step != 0 {
		return wire.Descriptor{}, fmt.Errorf("%s of step %d: its gradient was voted for and must stay: %w", op, c.begun.Step, ErrIllegal)
	}
	if !c.fold.complete() {
		return wire.Descriptor{}, fmt.Errorf("%s of step %d: slots %v are folded up to %d; fold all of them: %w", op, c.begun.Step, c.begun.Slots, c.fold.next, ErrIllegal)
	}
	return wire.Descriptor{
		Op: op, DType: wire.DTypeF32, Group: uint64(c.begun.Coordinate), Root: phalanx.NoRank, Count: int64(c.cfg.GradientElements),
		InStride: c.plan.stride, InNodes: len(c.fold.stack), OutOffset: c.plan.out, Scale: scale(mean),
	}, nil
}

func scale(mean bool) wire.Scale {
	if mean {
		return wire.ScaleMean
	}
	return wire.ScaleSum
}

// AllReduceI64 replaces counts, at most CountElements of them, by their sums over all replica groups, modulo 2^64. Each
// rank gives the sums over its own slots.
func (c *Client) AllReduceI64(ctx context.Context, counts []int64) error {
	if err := c.mustHaveBegun("all_reduce"); err != nil {
		return err
	}
	nodes := len(phalanx.SlotTree{Slots: c.begun.SlotCount}.Cover(c.begun.Slots))
	if len(counts) > c.cfg.CountElements || nodes > c.plan.countBuffers {
		return fmt.Errorf("all_reduce of %d counts, %d were registered: %w", len(counts), c.cfg.CountElements, ErrIllegal)
	}
	// Integer sums do not depend on their order, so the first node takes everything and the others are zero.
	size := 8 * int64(len(counts))
	for i := range nodes {
		clear(c.memory(c.plan.counts+int64(i)*c.plan.countStride, size))
	}
	copy(kernels.I64s(c.memory(c.plan.counts, size)), counts)
	err := c.Collective(ctx, wire.Descriptor{
		Op: wire.OpAllReduce, DType: wire.DTypeI64, Group: uint64(c.begun.Coordinate), Root: phalanx.NoRank, Count: int64(len(counts)),
		InOffset: c.plan.counts, InStride: c.plan.countStride, InNodes: nodes, OutOffset: c.plan.countOut,
	})
	if err != nil {
		return err
	}
	copy(counts, kernels.I64s(c.memory(c.plan.countOut, size)))
	return nil
}

// Broadcast gives the root's bytes to every rank of the world, in place. It goes through Extra and is cut into pieces that
// fit there; the length is a multiple of the element size.
func (c *Client) Broadcast(ctx context.Context, root phalanx.Rank, dtype wire.DType, data []byte) error {
	extra, offset := c.Extra()
	size := elementBytes(dtype)
	piece := len(extra) / 64 * 64
	if size == 0 || len(data)%size != 0 || piece == 0 && len(data) > 0 {
		return fmt.Errorf("broadcast of %d bytes as %s through %d extra bytes: %w", len(data), dtype, len(extra), ErrIllegal)
	}
	for len(data) > 0 {
		part := data[:min(piece, len(data))]
		if c.begun.Rank == root {
			copy(extra, part)
		}
		d := wire.Descriptor{Op: wire.OpBroadcast, DType: dtype, Group: GroupWorld, Root: root, Count: int64(len(part) / size), InOffset: offset, InNodes: 1, OutOffset: offset}
		if err := c.Collective(ctx, d); err != nil {
			return err
		}
		copy(part, extra)
		data = data[len(part):]
	}
	return nil
}

// AllGather returns the inputs of all ranks, which are equally long, in rank order. Input and output must fit in Extra
// together; the result lies there until Extra is used again.
func (c *Client) AllGather(ctx context.Context, dtype wire.DType, in []byte) ([]byte, error) {
	extra, offset := c.Extra()
	size := elementBytes(dtype)
	gap := align64(int64(len(in)))
	total := int64(len(in)) * int64(c.begun.World)
	if size == 0 || len(in)%size != 0 || gap+total > int64(len(extra)) {
		return nil, fmt.Errorf("all_gather of %d bytes as %s from %d ranks through %d extra bytes: %w", len(in), dtype, c.begun.World, len(extra), ErrIllegal)
	}
	copy(extra, in)
	d := wire.Descriptor{Op: wire.OpAllGather, DType: dtype, Group: GroupWorld, Root: phalanx.NoRank, Count: int64(len(in) / size), InOffset: offset, InNodes: 1, OutOffset: offset + gap}
	if err := c.Collective(ctx, d); err != nil {
		return nil, err
	}
	return extra[gap : gap+total], nil
}

// Barrier returns when every rank of the world has called it.
func (c *Client) Barrier(ctx context.Context) error {
	return c.Collective(ctx, wire.Descriptor{Op: wire.OpBarrier, Group: GroupWorld, Root: phalanx.NoRank})
}

// GroupWorld as a descriptor's group means all ranks; smaller numbers mean the ranks with that shard coordinate.
const GroupWorld = ^uint64(0)

func elementBytes(dtype wire.DType) int {
	if dtype == wire.DTypeNone {
		return 0
	}
	return phalanx.DTypeSize(dtype.String())
}
