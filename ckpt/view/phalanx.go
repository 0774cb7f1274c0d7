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
		Format: Phalanx, Container: cp.Commit.Container, Published: cp.Commit, Store: &can,
		files: NewPrefix(s, cp.Commit.Job+"/"+cp.Commit.Attempt),
	}
	v.Place = v.files.Place()
	for _, st := range cp.States() {
		manifests = append(manifests, st.Manifest)
		v.States = append(v.States, State{Label: st.Label, Digest: st.Manifest.StateDigest})
	}
	tensors, err := assemble(manifests)
	if err != nil {
		return nil, fmt.Errorf("checkpoint of step %d of %s: %w", cp.Commit.Step, cp.Commit.Job, err)
	}
	v.Tensors = tensors
	return v, nil
}

// assemble makes the tensors that users see of those of the coordinates: boxes of one tensor are put together, and of tensors
// that all coordinates hold alike one is taken.
func assemble(manifests []*ckpt.Manifest) ([]Tensor, error) {
	var out []Tensor
	place := map[string]int{}
	for _, m := range manifests {
		for i := range m.Tensors {
			mt := &m.Tensors[i]
			t := fromManifest(m.Coordinate, mt)
			at, seen := place[mt.Name]
			switch {
			case !seen:
				place[mt.Name] = len(out)
				out = append(out, t)
			case out[at].DType != t.DType || !slices.Equal(out[at].Shape, t.Shape):
				return nil, fmt.Errorf("tensor %.80q is %s%v in one coordinate and %s%v in coordinate %d: %w", t.Name, out[at].DType, out[at].Shape,
					t.DType, t.Shape, m.Coordinate, ckpt.ErrCorrupt)
			case mt.Global != nil:
				out[at].Shards = append(out[at].Shards, t.Shards...)
				out[at].Digests = append(out[at].Digests, t.Digests...)
			case out[at].Digest() != mt.D1:
				return nil, fmt.Errorf("tensor %.80q: coordinate %d holds digest %s, an earlier one %s: %w", t.Name, m.Coordinate, mt.D1, out[at].Digest(), ckpt.ErrCorrupt)
			}
		}
	}
	for i := range out {
		sortShards(out[i].Shards)
	}
	return out, nil
}

// fromManifest is one coordinate's part of a tensor, in the coordinates of the whole tensor.
func fromManifest(coordinate int, mt *ckpt.ManifestTensor) Tensor {
	t := Tensor{Name: mt.Name, DType: mt.DType, DTypeName: mt.DType, Shape: mt.Shape}
	own := Whole(mt.Shape)
	if mt.Global != nil {
		t.Shape, own.Offset = mt.Global.Shape, mt.Global.Offset
	}
	t.Digests = []BoxDigest{{own, mt.D1}}
	for _, c := range mt.Chunks {
		box := Box{Offset: slices.Clone(c.Box.Offset), Shape: c.Box.Size}
		for d, o := range own.Offset {
			box.Offset[d] += o
		}
		t.Shards = append(t.Shards, Shard{
			Box: box, Object: c.Object, At: c.At, Length: c.Length, Coordinate: coordinate, Sum: Sum{CRC64NVME, uint64(c.CRC64NVME)},
		})
	}
	return t
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
				return fmt.Errorf("tensor %.80q: %w: %w", t.Name, err, ckpt.ErrCorrupt)
			}
			held += s.Elements()
			for _, o := range touching(t.Shards, s.Box) {
				if o != k {
					return fmt.Errorf("tensor %.80q: the shards at %v and %v share elements: %w", t.Name, s.Offset, t.Shards[o].Offset, ckpt.ErrCorrupt)
				}
			}
		}
		if want := Whole(t.Shape); held != want.Elements() {
			return fmt.Errorf("tensor %.80q: its shards hold %d of %d elements: %w", t.Name, held, want.Elements(), ckpt.ErrIncomplete)
		}
	}
	return nil
}

// byName orders tensors by name.
func byName(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) }
