// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"phalanx"
)

// GlobalTensor is a tensor as the user knows it: boxes that several coordinates hold are put together, replicated tensors are
// there once, and each rank's own are there once for each rank, as NAME@rank-RANK.
type GlobalTensor struct {
	Name  string
	DType string
	Shape []int
	// Pieces cover every element exactly once, in order of coordinates and of bytes inside. A tensor without elements has none.
	Pieces []Piece
	// D1 is the digest of the whole tensor, where one coordinate holds it whole (Digested).
	D1       phalanx.Digest
	Digested bool
	Origin
}

// Bytes is the size of the tensor.
func (g GlobalTensor) Bytes() int64 {
	return phalanx.TensorInfo{DType: g.DType, Shape: g.Shape}.Bytes()
}

// Piece is a stored box of a GlobalTensor: absolute indices, one for each dimension.
type Piece struct {
	Offset, Size []int
	Coordinate   int
	Tensor       int          // index in the coordinate's layout
	Rank         phalanx.Rank // of a tensor that each rank has of its own, else NoRank
	Chunk        ManifestChunk
}

// PerRankName is the name under which a rank's own copy of a tensor is found.
func PerRankName(name string, rank phalanx.Rank) string { return fmt.Sprintf("%s@rank-%d", name, rank) }

// GlobalTensors puts the tensors of all coordinates together, in the order of the first coordinate that has them, and proves
// that they are whole: every element once. A tensor that several coordinates hold whole must be equal in all of them: a
// *DivergedError names those that differ.
func GlobalTensors(manifests []*Manifest) ([]GlobalTensor, error) {
	b := globals{byName: map[string]*global{}}
	for _, m := range manifests {
		for i := range m.Tensors {
			if err := b.add(m.Coordinate, i, &m.Tensors[i]); err != nil {
				return nil, err
			}
		}
	}
	out := make([]GlobalTensor, 0, len(b.order))
	for _, g := range b.order {
		if err := g.covered(); err != nil {
			return nil, err
		}
		out = append(out, g.GlobalTensor)
	}
	return out, nil
}

type globals struct {
	order  []*global
	byName map[string]*global
}

// global is a GlobalTensor that is being put together.
type global struct {
	GlobalTensor
	sharded bool
	boxes   []globalBox
	holders map[int]phalanx.Digest // coordinates that hold it whole
}

// globalBox is what one coordinate holds.
type globalBox struct {
	offset, size []int
	coordinate   int
	d1           phalanx.Digest
}

func (b *globals) add(coordinate, index int, t *ManifestTensor) error {
	if t.PerRank {
		for _, c := range t.Copies {
			own := phalanx.TensorInfo{Name: PerRankName(t.Name, c.Rank), DType: t.DType, Shape: t.Shape}
			g, err := b.take(own, t.Origin, t.Shape, false)
			if err != nil {
				return err
			}
			if len(g.holders) > 0 {
				return fmt.Errorf("tensor %.60q is stored twice", own.Name)
			}
			g.whole(coordinate, index, c.Rank, c.D1, c.Chunks)
		}
		return nil
	}
	if t.Global == nil {
		g, err := b.take(t.TensorInfo, t.Origin, t.Shape, false)
		if err != nil {
			return err
		}
		if len(g.holders) > 0 {
			g.holders[coordinate] = t.D1
			if t.D1 != g.D1 {
				return &DivergedError{Coordinate: coordinate, Tensor: t.Name, Coordinates: maps.Clone(g.holders)}
			}
			return nil
		}
		g.whole(coordinate, index, phalanx.NoRank, t.D1, t.Chunks)
		return nil
	}
	g, err := b.take(t.TensorInfo, t.Origin, t.Global.Shape, true)
	if err != nil {
		return err
	}
	if slices.Equal(t.Shape, t.Global.Shape) {
		g.D1, g.Digested = t.D1, true
	}
	if t.Bytes() > 0 {
		box := globalBox{t.Global.Offset, t.Shape, coordinate, t.D1}
		if held, err := g.replica(box); held || err != nil {
			return err
		}
		g.boxes = append(g.boxes, box)
	}
	for _, c := range t.Chunks {
		g.Pieces = append(g.Pieces, Piece{Offset: sum(t.Global.Offset, c.Box.Offset), Size: c.Box.Size, Coordinate: coordinate, Tensor: index,
			Rank: phalanx.NoRank, Chunk: c})
	}
	return nil
}

// take finds or begins a tensor, and compares what the coordinates say of it.
func (b *globals) take(t phalanx.TensorInfo, o Origin, shape []int, sharded bool) (*global, error) {
	if g, found := b.byName[t.Name]; found {
		if g.DType != t.DType || !slices.Equal(g.Shape, shape) || g.sharded != sharded || !g.Origin.equal(o) {
			return nil, fmt.Errorf("tensor %.60q is %s%v in one coordinate and %s%v in another: %w", t.Name, g.DType, g.Shape, t.DType, shape, ErrIncomplete)
		}
		return g, nil
	}
	g := &global{GlobalTensor: GlobalTensor{Name: t.Name, DType: t.DType, Shape: shape, Origin: o}, sharded: sharded, holders: map[int]phalanx.Digest{}}
	b.byName[t.Name] = g
	b.order = append(b.order, g)
	return g, nil
}

func (g *global) whole(coordinate, index int, rank phalanx.Rank, d1 phalanx.Digest, chunks []ManifestChunk) {
	g.holders[coordinate] = d1
	g.D1, g.Digested = d1, true
	for _, c := range chunks {
		g.Pieces = append(g.Pieces, Piece{Offset: c.Box.Offset, Size: c.Box.Size, Coordinate: coordinate, Tensor: index, Rank: rank, Chunk: c})
	}
}

// replica reports whether another coordinate holds the very same box, and compares the two.
func (g *global) replica(box globalBox) (bool, error) {
	for _, h := range g.boxes {
		if !slices.Equal(h.offset, box.offset) || !slices.Equal(h.size, box.size) {
			continue
		}
		if h.d1 != box.d1 {
			return true, &DivergedError{Coordinate: box.coordinate, Tensor: g.Name, Coordinates: map[int]phalanx.Digest{h.coordinate: h.d1, box.coordinate: box.d1}}
		}
		return true, nil
	}
	return false, nil
}

// covered proves that the boxes of the coordinates lie apart and have as many elements as the tensor. Inside a box the
// coordinate's own manifest is proven.
func (g *global) covered() error {
	if g.Value && len(g.Pieces) != 1 {
		return fmt.Errorf("value %.60q: is in %d chunks, PyTorch reads one: %w", g.Name, len(g.Pieces), ErrFormat)
	}
	if !g.sharded {
		return nil
	}
	order := slices.Clone(g.boxes)
	slices.SortFunc(order, func(a, b globalBox) int {
		return cmp.Or(slices.Compare(a.offset, b.offset), cmp.Compare(a.coordinate, b.coordinate))
	})
	var elements int64
	for i, a := range order {
		elements += volume(a.size)
		for _, b := range order[i+1:] {
			if len(a.offset) > 0 && b.offset[0] >= a.offset[0]+a.size[0] {
				break // sorted by the first dimension: nothing further on meets it
			}
			if overlap(a, b) {
				return fmt.Errorf("tensor %.60q: coordinates %d and %d both hold elements from %v of it: %w", g.Name, a.coordinate, b.coordinate, b.offset, ErrIncomplete)
			}
		}
	}
	if want := volume(g.Shape); elements != want {
		return fmt.Errorf("tensor %.60q: the coordinates hold %d of its %d elements: %w", g.Name, elements, want, ErrIncomplete)
	}
	return nil
}

func overlap(a, b globalBox) bool {
	for d := range a.offset {
		if a.offset[d]+a.size[d] <= b.offset[d] || b.offset[d]+b.size[d] <= a.offset[d] {
			return false
		}
	}
	return true
}

func volume(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return n
}

func sum(a, b []int) []int {
	out := make([]int, len(a))
	for i := range a {
		out[i] = a[i] + b[i]
	}
	return out
}
