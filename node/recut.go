// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/fit"
	"phalanx/ckpt/view"
	"phalanx/elastic"
)

// A checkpoint that was written with another number of coordinates, or by another cut of the model, is restored tensor by tensor:
// each rank reads the boxes that it holds now, whoever wrote them.

// recutTensors is how many tensors are read at a time.
const recutTensors = 2

// recut reads the state of the own coordinate out of a checkpoint that is cut in another way.
func (h *healing) recut(ctx context.Context, cp *ckpt.Checkpoint, rank phalanx.Rank) ([]phalanx.Digest, error) {
	v, err := view.FromCheckpoint(h.d.store, cp)
	if err != nil {
		return nil, err
	}
	plan, diff := fit.New(v, fit.All(v), h.life.layout, fit.Options{Rank: rank})
	if len(diff.Missing)+len(diff.Changed) > 0 {
		diff.Unexpected = nil // others have a use for them
		return nil, fmt.Errorf("checkpoint %d does not fit the trainer's state: %s", h.do.Source.Commit, diff)
	}
	h.d.log.Info("cuts a checkpoint anew", "commit", h.do.Source.Commit, "coordinates", len(cp.States()), "coordinate", h.do.Label.Coordinate)
	return h.fill(ctx, plan)
}

// fill passes the tensors of a plan into the trainer, and returns their digests.
func (h *healing) fill(ctx context.Context, plan *fit.Plan) ([]phalanx.Digest, error) {
	digests := make([]phalanx.Digest, len(plan.Wanted))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(recutTensors)
	for i := range plan.Wanted {
		group.Go(func() (err error) {
			digests[i], err = plan.Read(ctx, i, func(off int64, b []byte) error { return h.write(ctx, i, off, b) })
			return err
		})
	}
	return digests, group.Wait()
}

// sameTensors reports whether two layouts have the same tensors, cut alike, in any order.
func sameTensors(a, b []phalanx.TensorInfo) bool {
	if len(a) != len(b) {
		return false
	}
	byName := make(map[string]phalanx.TensorInfo, len(a))
	for _, t := range a {
		byName[t.Name] = t
	}
	return !slices.ContainsFunc(b, func(t phalanx.TensorInfo) bool { return !byName[t.Name].Equal(t) })
}

// misfit says why the tensors of a checkpoint are not those of the job, "" when they are, in whatever cut. A job of which not all
// coordinates are known yet is compared as far as they are.
func misfit(store ckpt.Store, cp *ckpt.Checkpoint, s *elastic.State) string {
	v, err := view.FromCheckpoint(store, cp)
	if err != nil {
		return err.Error()
	}
	diff := misfits(v, fit.All(v), s, false)
	if diff.Empty() {
		return ""
	}
	return fmt.Sprintf("the store holds another training as job %s: its tensors are not those of this one: %s", cp.Commit.Job, inBrief(diff))
}

// misfits is how the items of a checkpoint differ from what the coordinates of a job have registered.
func misfits(v *view.View, items []convert.Item, s *elastic.State, cast bool) (diff ckpt.LayoutDiff) {
	var unexpected [][]string
	for c := range s.GroupSize() {
		layout, known := s.LayoutOf(c)
		if !known {
			continue
		}
		_, d := fit.New(v, items, layout, fit.Options{Rank: phalanx.Rank(c), Cast: cast})
		unexpected = append(unexpected, d.Unexpected)
		diff.Missing, diff.Changed = append(diff.Missing, d.Missing...), append(diff.Changed, d.Changed...)
	}
	if len(unexpected) == s.GroupSize() {
		diff.Unexpected = fit.Unexpected(unexpected)
	}
	for _, names := range []*[]string{&diff.Missing, &diff.Changed} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return diff
}

// briefly is how many tensors of each kind are named.
const briefly = 8

// inBrief is a difference in one line.
func inBrief(d ckpt.LayoutDiff) string {
	text, list := "", func(what string, names []string) string {
		if len(names) == 0 {
			return ""
		}
		more := ""
		if n := len(names) - briefly; n > 0 {
			names, more = names[:briefly], fmt.Sprintf(" and %d more", n)
		}
		return fmt.Sprintf("; %s: %q%s", what, names, more)
	}
	text = list("missing in the checkpoint", d.Missing) + list("unexpected there", d.Unexpected) + list("different", d.Changed)
	return text[2:]
}

// recutLabels are the labels of a published state in groups of another size, which no step of this job has made: their digests say
// from which state they are, at which coordinate.
func recutLabels(stored []phalanx.Label, groupSize int) []phalanx.Label {
	if len(stored) == groupSize || len(stored) == 0 {
		return stored
	}
	out := make([]phalanx.Label, groupSize)
	for c := range out {
		h := sha256.New()
		fmt.Fprintln(h, "recut", c, groupSize, stored) // a hash never fails
		sum := h.Sum(nil)
		out[c] = phalanx.Label{Step: stored[0].Step, Generation: stored[0].Generation, Coordinate: c,
			Digest: phalanx.Digest{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])}}
	}
	return out
}
