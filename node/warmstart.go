// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/fit"
	"phalanx/ckpt/open"
	"phalanx/ckpt/view"
	"phalanx/elastic"
)

// OpenWarmStart opens the checkpoint that a job is to begin with, and lists what is taken of it, under the names that it gets. It reads
// no elements.
func OpenWarmStart(ctx context.Context, w *elastic.WarmStart) (*view.View, []convert.Item, error) {
	selection := convert.Selection{Only: w.Only, Strip: w.Strip}
	for _, text := range w.Renames {
		rename, err := convert.ParseRename(text)
		if err != nil {
			return nil, nil, err
		}
		selection.Renames = append(selection.Renames, rename)
	}
	reading := func(ctx context.Context, place string) (ckpt.Store, error) {
		return open.Store(ctx, place, open.Read, open.Options{})
	}
	v, err := view.Open(ctx, w.Place, reading, view.Options{Sound: true})
	if err != nil {
		return nil, nil, err
	}
	items, err := convert.Select(v, selection)
	return v, items, err
}

// lookAtWarmStart compares the checkpoint that the job is to begin with with what all coordinates have registered. known is false when
// it may be readable the next time.
func lookAtWarmStart(ctx context.Context, s *elastic.State) (fact elastic.WarmFact, known bool) {
	v, items, err := OpenWarmStart(ctx, s.WarmStart)
	if err != nil {
		return elastic.WarmFact{Problem: fmt.Sprintf("--warm-start %s: %v", s.WarmStart.Place, err)}, unfit(err)
	}
	diff := misfits(v, items, s, s.WarmStart.Cast)
	if s.WarmStart.Partial {
		diff.Missing, diff.Unexpected = nil, nil
	}
	if !diff.Empty() {
		fact.Problem = fmt.Sprintf("the checkpoint of --warm-start %s does not fit the trainers' state: %s", s.WarmStart.Place, inBrief(diff))
	}
	fact.Digest = warmDigest(s.WarmStart, v, items)
	return fact, true
}

// unfit reports whether an error proves that no job can begin with the checkpoint.
func unfit(err error) bool {
	var unknown *view.UnknownError
	for _, proof := range []error{convert.ErrClash, convert.ErrName, convert.ErrFormat, view.ErrUnpublished, ckpt.ErrNoCheckpoint, fs.ErrNotExist, fs.ErrPermission, open.ErrURL, ckpt.ErrAuth} {
		if errors.Is(err, proof) {
			return true
		}
	}
	return damaged(err) || errors.As(err, &unknown)
}

// warmDigest names a checkpoint, by where its bytes lie and their checksums, and what is taken of it.
func warmDigest(w *elastic.WarmStart, v *view.View, items []convert.Item) phalanx.Digest {
	h := sha256.New()
	said := json.NewEncoder(h)
	_ = said.Encode(w) // a hash never fails, and these can be encoded
	_ = said.Encode(v.Format)
	if v.Published != nil {
		_ = said.Encode([]any{v.Published.Job, v.Published.Attempt, v.Published.Number})
	}
	for _, it := range items {
		_ = said.Encode([]any{it.TensorInfo, v.Tensors[it.Tensor].Shards, v.Tensors[it.Tensor].Digests})
	}
	sum := h.Sum(nil)
	return phalanx.Digest{binary.LittleEndian.Uint64(sum) | 1, binary.LittleEndian.Uint64(sum[8:])} // never zero, which is the seed
}

// fromWarmStart reads the initial state of the own coordinate.
func (h *healing) fromWarmStart(ctx context.Context, world phalanx.World, w *elastic.WarmStart) ([]phalanx.Digest, error) {
	if w == nil {
		return nil, errors.New("the job has no warm start")
	}
	v, items, err := OpenWarmStart(ctx, w)
	if err != nil {
		return nil, err
	}
	if warmDigest(w, v, items) != h.do.Label.Digest {
		return nil, fmt.Errorf("%s is another checkpoint on this host than where the job was begun; give all hosts the same", w.Place)
	}
	var rank phalanx.Rank
	if seat := world.SeatOf(h.life.who.Member); seat != nil {
		rank = seat.Rank
	}
	plan, diff := fit.New(v, items, h.life.layout, fit.Options{Rank: rank, Cast: w.Cast})
	if len(diff.Changed) > 0 || len(diff.Missing) > 0 && !w.Partial {
		return nil, fmt.Errorf("%s does not fit the trainer's state: %s", w.Place, inBrief(ckpt.LayoutDiff{Missing: diff.Missing, Changed: diff.Changed}))
	}
	if len(diff.Missing) > 0 {
		if !h.made { // the member's next life has a trainer that has them
			return nil, fmt.Errorf("%s lacks tensors that are to be as the trainer made them, and it has trained or healed since: %s", w.Place, inBrief(ckpt.LayoutDiff{Missing: diff.Missing}))
		}
		h.d.log.Warn("tensors that the checkpoint lacks stay as the trainer made them", "tensors", inBrief(ckpt.LayoutDiff{Missing: diff.Missing}))
	}
	return h.fill(ctx, plan)
}
