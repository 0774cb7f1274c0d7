// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"phalanx"
	"phalanx/kernels"
)

// Manifest is the index of the stored state of one coordinate, merged from the parts. It is complete: every element of
// every tensor is in exactly one chunk.
type Manifest struct {
	Coordinate  int
	Container   string
	Tensors     []ManifestTensor // in layout order
	StateDigest phalanx.Digest   // D1 job root over all tensors, seed 0
	Bytes       int64
}

// ManifestTensor is a tensor, its digest and its chunks in the order of their bytes.
type ManifestTensor struct {
	phalanx.TensorInfo
	D1     phalanx.Digest
	Chunks []ManifestChunk
	Origin
	// Copies are set when each rank has content of its own, in rank order; D1 and Chunks are then those of the first.
	Copies []RankCopy
}

// RankCopy is one rank's own content of a tensor.
type RankCopy struct {
	Rank   phalanx.Rank
	D1     phalanx.Digest
	Chunks []ManifestChunk
}

// ManifestChunk is a stored byte range of a tensor.
type ManifestChunk struct {
	Box       Box
	Off       int64  // first byte in the tensor
	Length    int64  // bytes, in the tensor and stored
	Object    string // name in the attempt's folder
	At        int64  // offset in the object
	CRC64NVME CRC
}

// Layout lists the tensors.
func (m *Manifest) Layout() []phalanx.TensorInfo {
	layout := make([]phalanx.TensorInfo, len(m.Tensors))
	for i, t := range m.Tensors {
		layout[i] = t.TensorInfo
	}
	return layout
}

// DivergedError: those that hold the same tensor computed different digests of it: ranks of one coordinate, or coordinates
// that hold it whole. Nothing is published then.
type DivergedError struct {
	Coordinate  int
	Tensor      string
	Digests     map[phalanx.Rank]phalanx.Digest
	Coordinates map[int]phalanx.Digest // set instead of Digests when coordinates differ
}

func (e *DivergedError) Error() string {
	if len(e.Coordinates) > 0 {
		s := fmt.Sprintf("copies of the replicated tensor %.60q differ:", e.Tensor)
		for _, c := range slices.Sorted(maps.Keys(e.Coordinates)) {
			s += fmt.Sprintf(" coordinate %d has %s", c, e.Coordinates[c])
		}
		return s + "; declare it as a box of a larger tensor or as each rank's own when it is, else one of them has wrong numbers"
	}
	s := fmt.Sprintf("coordinate %d: copies of tensor %.60q differ:", e.Coordinate, e.Tensor)
	for _, r := range slices.Sorted(maps.Keys(e.Digests)) {
		s += fmt.Sprintf(" rank %d has %s", r, e.Digests[r])
	}
	return s + "; one of them has wrong numbers: compare their machines, and see phalanx status --explain"
}

// Merge makes the manifest of every coordinate, in order of coordinates, and proves coverage. It fails when the parts do
// not fit together: another layout, a tensor that nobody lists, a gap, an overlap, digests that differ.
func Merge(parts []*Part) ([]*Manifest, error) {
	byCoordinate := map[int][]*Part{}
	objects := map[string]Object{}
	shared := map[string]bool{}
	for _, p := range parts {
		byCoordinate[p.Coordinate] = append(byCoordinate[p.Coordinate], p)
		if p.Attempt != parts[0].Attempt || p.Container != parts[0].Container {
			return nil, fmt.Errorf("merge: rank %d wrote attempt %s as %s, rank %d wrote %s as %s", p.Rank, p.Attempt, p.Container,
				parts[0].Rank, parts[0].Attempt, parts[0].Container)
		}
		for _, o := range p.Objects {
			if have, listed := objects[o.Name]; listed {
				if p.Format < handedFormat || have != o {
					return nil, fmt.Errorf("merge: object %s is listed twice", o.Name)
				}
				shared[o.Name] = true
			}
			objects[o.Name] = o
		}
	}
	if err := apart(parts, shared); err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	var manifests []*Manifest
	for _, c := range slices.Sorted(maps.Keys(byCoordinate)) {
		m, err := mergeCoordinate(c, byCoordinate[c])
		if err != nil {
			return nil, fmt.Errorf("merge: %w", err)
		}
		manifests = append(manifests, m)
	}
	return manifests, nil
}

// apart proves that parts that share an object hold no byte of it both. Inside a part that is proven already.
func apart(parts []*Part, shared map[string]bool) error {
	type span struct{ at, end int64 }
	held := map[string][]span{}
	for _, p := range parts {
		f := frame{p.Container}
		for _, c := range p.Chunks {
			if name := p.Objects[c.Object].Name; shared[name] {
				held[name] = append(held[name], span{c.At - f.before(), c.At + c.Length + f.after(c.Length)})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		spans := held[name]
		slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.at, b.at) })
		for i := 1; i < len(spans); i++ {
			if spans[i].at < spans[i-1].end {
				return fmt.Errorf("two parts hold bytes at %d of object %s", spans[i].at, name)
			}
		}
	}
	return nil
}

func mergeCoordinate(coordinate int, parts []*Part) (*Manifest, error) {
	tensors, err := mergeTensors(coordinate, parts)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Coordinate: coordinate, Container: parts[0].Container, Tensors: tensors}
	layout := m.Layout()
	if err := CheckLayout(layout); err != nil {
		return nil, fmt.Errorf("coordinate %d: %w", coordinate, err)
	}
	want := layoutHash(layout) // once: it is work for a large layout
	for _, p := range parts {
		if p.Layout != want {
			return nil, fmt.Errorf("coordinate %d: rank %d has another layout, or tensors are listed by nobody", coordinate, p.Rank)
		}
	}
	var boxes []Box // of all parts
	for _, p := range parts {
		var own []Box // of tensors that each rank has of its own
		for _, c := range p.Chunks {
			off, length, err := c.Range(layout[c.Tensor])
			if err != nil {
				return nil, fmt.Errorf("coordinate %d: rank %d: %w", coordinate, p.Rank, err)
			}
			t := &m.Tensors[c.Tensor]
			chunk := ManifestChunk{Box: c.Box, Off: off, Length: length, Object: p.Objects[c.Object].Name, At: c.At, CRC64NVME: c.CRC64NVME}
			if t.PerRank {
				own = append(own, c.Box)
				last := &t.Copies[slices.IndexFunc(t.Copies, func(x RankCopy) bool { return x.Rank == p.Rank })]
				last.Chunks = append(last.Chunks, chunk)
				continue
			}
			boxes = append(boxes, c.Box)
			t.Chunks = append(t.Chunks, chunk)
		}
		if err := coverOf(layout, own, true); err != nil {
			return nil, fmt.Errorf("coordinate %d: rank %d: %w", coordinate, p.Rank, err)
		}
	}
	if err := coverOf(layout, boxes, false); err != nil {
		return nil, fmt.Errorf("coordinate %d: %w", coordinate, err)
	}
	digests := make([]phalanx.Digest, len(tensors))
	for i := range m.Tensors {
		t := &m.Tensors[i]
		slices.SortFunc(t.Chunks, byOffset)
		m.Bytes += t.Bytes()
		if t.PerRank {
			for _, c := range t.Copies {
				slices.SortFunc(c.Chunks, byOffset)
			}
			t.D1, t.Chunks = t.Copies[0].D1, t.Copies[0].Chunks
			m.Bytes += t.Bytes() * int64(len(t.Copies)-1)
		}
		digests[i] = t.D1
	}
	m.StateDigest = StateDigest(layout, digests)
	return m, nil
}

func byOffset(a, b ManifestChunk) int { return cmp.Compare(a.Off, b.Off) }

// coverOf is Cover for the tensors that each rank has of its own, or for the others.
func coverOf(layout []phalanx.TensorInfo, boxes []Box, perRank bool) error {
	expected := slices.Clone(layout)
	for i := range expected {
		if expected[i].PerRank != perRank {
			expected[i].Shape = []int{0} // nothing is expected of it, and no box is of it
		}
	}
	return Cover(expected, boxes)
}

// mergeTensors unites the tensors of the parts and compares what several of them say.
func mergeTensors(coordinate int, parts []*Part) ([]ManifestTensor, error) {
	count := 0
	for _, p := range parts {
		if n := len(p.Tensors); n > 0 {
			count = max(count, p.Tensors[n-1].Index+1)
		}
	}
	listed := 0
	for _, p := range parts {
		listed += len(p.Tensors)
	}
	if count > listed {
		return nil, fmt.Errorf("coordinate %d: %d tensors are listed, an index says there are at least %d", coordinate, listed, count)
	}
	tensors := make([]ManifestTensor, count)
	for _, p := range parts {
		for _, t := range p.Tensors {
			have := &tensors[t.Index]
			switch {
			case have.Name == "":
				have.TensorInfo, have.D1, have.Origin = t.TensorInfo, t.D1, t.Origin
			case !have.TensorInfo.Equal(t.TensorInfo) || !have.Origin.equal(t.Origin):
				return nil, fmt.Errorf("coordinate %d: tensor %d is %s%v %.60q and, for rank %d, %s%v %.60q", coordinate, t.Index,
					have.DType, have.Shape, have.Name, p.Rank, t.DType, t.Shape, t.Name)
			case have.D1 != t.D1 && !t.PerRank:
				return nil, diverged(coordinate, t.Index, parts)
			}
			if t.PerRank {
				have.Copies = append(have.Copies, RankCopy{Rank: p.Rank, D1: t.D1})
			}
		}
	}
	for i := range tensors {
		if tensors[i].Name == "" {
			return nil, fmt.Errorf("coordinate %d: tensor %d is listed by nobody", coordinate, i)
		}
		if t := tensors[i]; t.PerRank && len(t.Copies) != len(parts) {
			return nil, fmt.Errorf("coordinate %d: tensor %.60q is each rank's own, %d of %d ranks list it", coordinate, t.Name, len(t.Copies), len(parts))
		}
	}
	return tensors, nil
}

func diverged(coordinate, index int, parts []*Part) error {
	e := &DivergedError{Coordinate: coordinate, Digests: map[phalanx.Rank]phalanx.Digest{}}
	for _, p := range parts {
		for _, t := range p.Tensors {
			if t.Index == index {
				e.Tensor = t.Name
				e.Digests[p.Rank] = t.D1
			}
		}
	}
	return e
}

// StateDigest combines the tensors' D1 digests (seed 0), given in layout order, into the D1 job root.
func StateDigest(layout []phalanx.TensorInfo, digests []phalanx.Digest) phalanx.Digest {
	order := make([]int, len(layout))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(layout[a].Name, layout[b].Name) })
	parts := make([]kernels.Part, len(order))
	for k, i := range order {
		t := layout[i]
		header := kernels.LeafCount(kernels.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
		parts[k] = kernels.Part{Root: digests[i], Leaves: header + (t.Bytes()+kernels.LeafBytes-1)/kernels.LeafBytes}
	}
	return kernels.Combine(digestSeed, parts)
}

// digestSeed is the seed of all digests in a checkpoint: they must be comparable between steps and runs.
const digestSeed = 0
