// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"

	"phalanx"
	"phalanx/ckpt"
)

// FromCheckpoint views a published checkpoint that is open.
func FromCheckpoint(s ckpt.Store, cp *ckpt.Checkpoint) (*View, error) {
	var manifests []*ckpt.Manifest
	can := s.Capabilities()
	v := &View{
		Format: Phalanx, Container: cp.Commit.Container, Published: cp.Commit, Checkpoint: cp, Store: &can,
		files: NewPrefix(s, cp.Commit.Job+"/"+cp.Commit.Attempt),
	}
	v.Place = v.files.Place()
	for _, st := range cp.States() {
		manifests = append(manifests, st.Manifest)
		v.States = append(v.States, State{Label: st.Label, Digest: st.Manifest.StateDigest})
	}
	v.hold(cp.Globals(), manifests)
	return v, nil
}

// hold takes up what a checkpoint holds.
func (v *View) hold(globals []ckpt.GlobalTensor, manifests []*ckpt.Manifest) {
	tensors := make([]ckpt.GlobalTensor, 0, len(globals))
	for _, g := range globals {
		if g.Path != nil && v.Paths == nil {
			v.Paths = map[string][]any{}
		}
		if !g.Value {
			tensors = append(tensors, g)
			continue
		}
		c := g.Pieces[0].Chunk
		v.Objects = append(v.Objects, Object{Name: g.Name, Object: c.Object, At: c.At, Length: c.Length, Sum: Sum{CRC64NVME, uint64(c.CRC64NVME)},
			Coordinate: g.Pieces[0].Coordinate})
	}
	if v.Paths != nil {
		for _, g := range globals {
			if v.Paths[g.Name] = g.Path; g.Path == nil {
				v.Paths[g.Name] = []any{g.Name}
			}
		}
	}
	v.Tensors = assemble(tensors, manifests)
}

// assemble makes the tensors that users see of those of the coordinates.
func assemble(globals []ckpt.GlobalTensor, manifests []*ckpt.Manifest) []Tensor {
	byCoordinate := make(map[int]*ckpt.Manifest, len(manifests))
	for _, m := range manifests {
		byCoordinate[m.Coordinate] = m
	}
	out := make([]Tensor, len(globals))
	for i, g := range globals {
		t := Tensor{Name: g.Name, DType: g.DType, DTypeName: g.DType, Shape: nonNil(g.Shape), RequiresGrad: g.RequiresGrad}
		boxes := map[[2]int]bool{} // parts of coordinates whose digest is listed
		for _, p := range g.Pieces {
			t.Shards = append(t.Shards, Shard{Box: Box{nonNil(p.Offset), nonNil(p.Size)}, Object: p.Chunk.Object, At: p.Chunk.At, Length: p.Chunk.Length,
				Coordinate: p.Coordinate, Sum: Sum{CRC64NVME, uint64(p.Chunk.CRC64NVME)}})
			if own := &byCoordinate[p.Coordinate].Tensors[p.Tensor]; !g.Digested && own.Global != nil && !boxes[[2]int{p.Coordinate, p.Tensor}] {
				boxes[[2]int{p.Coordinate, p.Tensor}] = true
				t.Digests = append(t.Digests, BoxDigest{Box{own.Global.Offset, own.Shape}, own.D1})
			}
		}
		if g.Digested {
			t.Digests = []BoxDigest{{Whole(t.Shape), g.D1}}
		}
		slices.SortFunc(t.Digests, func(a, b BoxDigest) int { return slices.Compare(a.Offset, b.Offset) })
		sortShards(t.Shards)
		out[i] = t
	}
	return out
}

// sortShards orders shards by their first element.
func sortShards(shards []Shard) {
	slices.SortStableFunc(shards, func(a, b Shard) int { return slices.Compare(a.Offset, b.Offset) })
}

// Step is the step of a Phalanx checkpoint; false for others, whose formats do not say it.
func (v *View) Step() (phalanx.Step, phalanx.Generation, bool) {
	if v.Published == nil {
		return 0, phalanx.Generation{}, false
	}
	return v.Published.Step, v.Published.Generation, true
}

// CheckCover reports the first tensor whose shards do not hold each of its elements exactly once.
func (v *View) CheckCover() error {
	for i := range v.Tensors {
		t := &v.Tensors[i]
		var held int64
		for k := range t.Shards {
			s := &t.Shards[k]
			if err := s.Check(t.Shape); err != nil {
				return fmt.Errorf("tensor %.80q: %w: %w", t.Name, err, ckpt.ErrDamaged)
			}
			held += s.Elements()
		}
		if a, b, found := sharing(t.Shards); found {
			return fmt.Errorf("tensor %.80q: the shards at %v and %v share elements: %w", t.Name, a.Offset, b.Offset, ckpt.ErrDamaged)
		}
		if want := Whole(t.Shape); held != want.Elements() {
			return fmt.Errorf("tensor %.80q: its shards hold %d of %d elements: %w", t.Name, held, want.Elements(), ckpt.ErrIncomplete)
		}
	}
	return nil
}

// sharing finds two shards with a common element.
func sharing(shards []Shard) (a, b *Shard, found bool) {
	tree := newBoxTree(len(shards), func(i int) *Box { return &shards[i].Box })
	for _, k := range tree.order {
		other := -1
		tree.each(&shards[k].Box, func(i int) bool {
			if i != k {
				other = i
			}
			return other < 0
		})
		if other >= 0 {
			return &shards[k], &shards[other], true
		}
	}
	return nil, nil, false
}

// byName orders tensors by name.
func byName(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) }
