// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"sync"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
)

// fromStore reads a published checkpoint. What members hold of it in slabs is read from them, and the rest from the store: of a
// heal some tensors may come from here and some from there.
func (h *healing) fromStore(ctx context.Context, world phalanx.World) ([]phalanx.Digest, error) {
	record, err := recordOf(ctx, h.d.store, h.d.cfg.Job, h.do.Source.Commit)
	if err != nil {
		return nil, err
	}
	cp, err := ckpt.Open(ctx, h.d.store, record.Commit)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %d: %w", h.do.Source.Commit, err)
	}
	if seat := world.SeatOf(h.life.who.Member); seat != nil && seat.Rank == 0 { // one for all
		h.d.holdForRestore(ctx, h.do.Source.Commit)
	}
	var rank phalanx.Rank
	if seat := world.SeatOf(h.life.who.Member); seat != nil {
		rank = seat.Rank
	}
	st := cp.State(h.do.Label.Coordinate)
	if st == nil || len(cp.States()) != world.GroupSize || !sameTensors(st.Layout(), h.life.layout) {
		return h.recut(ctx, cp, rank)
	}
	st = st.ForRank(rank)
	index, digests, err := byName(st.Layout(), st.Digests(), h.life.layout)
	if err != nil {
		return nil, err
	}
	have := h.fromSlabs(ctx, world, digests)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tensors := []int{} // of the checkpoint, that are still to be read; nil would mean all of them
	for i := range index {
		if !have[index[i]] {
			tensors = append(tensors, i)
		}
	}
	reads, err := ckpt.PlanReads(st.Manifest, tensors)
	if err != nil {
		return nil, err
	}
	if n := len(index) - len(tensors); n > 0 && len(tensors) > 0 {
		h.d.log.Info("heals the rest from the store", "generation", h.do.Generation.String(), "tensors", len(tensors), "from_slabs", n)
	}
	return digests, st.Restore(ctx, reads, 0, renamed{h, index, ctx})
}

// fromSlabs reads what it can from the slabs of the source's holders, if they hold what the checkpoint says. It returns which
// tensors have arrived whole. The trainer digests all of them at the end, wherever they came from.
func (h *healing) fromSlabs(ctx context.Context, world phalanx.World, want []phalanx.Digest) []bool {
	w := &counted{live: live{h, ctx}, got: make([]int64, len(h.life.layout))}
	if len(h.do.Source.Holders) > 0 {
		_, err := h.fetch(ctx, world, elastic.FromSlab, w, func(have []phalanx.Digest) error {
			if differ(have, want) {
				return fmt.Errorf("slabs of %s are not what checkpoint %d says", h.do.Label, h.do.Source.Commit)
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			h.d.log.Info("heals from the store", "generation", h.do.Generation.String(), "error", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	whole := make([]bool, len(w.got))
	for i, t := range h.life.layout {
		whole[i] = w.got[i] == t.Bytes() && t.Bytes() > 0
	}
	return whole
}

// counted is a sink that knows how much of each tensor has arrived.
type counted struct {
	live
	mu  sync.Mutex
	got []int64
}

func (w *counted) Write(tensor int, off int64, p []byte) error {
	if err := w.live.Write(tensor, off, p); err != nil {
		return err
	}
	w.mu.Lock()
	w.got[tensor] += int64(len(p))
	w.mu.Unlock()
	return nil
}

// differ reports whether digests that are known are others than those that are wanted.
func differ(have, want []phalanx.Digest) bool {
	for i, x := range have {
		if !x.IsZero() && x != want[i] {
			return true
		}
	}
	return false
}
