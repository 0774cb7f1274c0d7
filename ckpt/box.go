// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"fmt"
	"slices"

	"phalanx"
)

// Box is a part of one tensor: in every dimension a first index and a count. All boxes here are contiguous: their elements
// are one byte range of the row-major tensor. A scalar's box has no dimensions.
type Box struct {
	Tensor int   `json:"tensor"` // index in the layout
	Offset []int `json:"offset"`
	Size   []int `json:"size"`
}

// Range returns the bytes of the tensor that a box covers. It fails for a box that has no elements, leaves the tensor or is
// not contiguous.
func (b Box) Range(t phalanx.TensorInfo) (off, length int64, err error) {
	if len(b.Offset) != len(t.Shape) || len(b.Size) != len(t.Shape) {
		return 0, 0, fmt.Errorf("box of tensor %.60q: %d and %d dimensions, the tensor has %d", t.Name, len(b.Offset), len(b.Size), len(t.Shape))
	}
	stride := int64(phalanx.DTypeSize(t.DType))
	length = stride
	partial := false // a dimension further in is not covered whole
	for d := len(t.Shape) - 1; d >= 0; d-- {
		o, n, dim := b.Offset[d], b.Size[d], t.Shape[d]
		if o < 0 || n < 1 || o >= dim || n > dim-o {
			return 0, 0, fmt.Errorf("box of tensor %.60q: dimension %d covers [%d, %d+%d) of %d", t.Name, d, o, o, n, dim)
		}
		if partial && n != 1 {
			return 0, 0, fmt.Errorf("box of tensor %.60q: not contiguous in dimension %d", t.Name, d)
		}
		partial = partial || n != dim
		off += int64(o) * stride
		length *= int64(n)
		stride *= int64(dim)
	}
	return off, length, nil
}

// Chunks cuts a tensor into contiguous boxes of at most target bytes (at least one element), along the outermost
// dimensions that allow it, in the order of their bytes. A tensor without elements has none.
func Chunks(index int, t phalanx.TensorInfo, target int64) []Box {
	if t.Bytes() == 0 {
		return nil
	}
	whole := Box{Tensor: index, Offset: make([]int, len(t.Shape)), Size: slices.Clone(t.Shape)}
	if whole.Size == nil {
		whole.Size = []int{}
	}
	if t.Bytes() <= target || len(t.Shape) == 0 {
		return []Box{whole}
	}
	// The outermost dimension whose rows fit is cut into runs of rows; dimensions outside of it are walked one by one.
	cut, row := len(t.Shape)-1, int64(phalanx.DTypeSize(t.DType))
	for cut > 0 && row*int64(t.Shape[cut]) <= target {
		row *= int64(t.Shape[cut])
		cut--
	}
	rows := int(max(1, target/row))
	var boxes []Box
	outer := make([]int, cut)
	for {
		for first := 0; first < t.Shape[cut]; first += rows {
			b := Box{Tensor: index, Offset: make([]int, len(t.Shape)), Size: slices.Clone(t.Shape)}
			for d, o := range outer {
				b.Offset[d], b.Size[d] = o, 1
			}
			b.Offset[cut], b.Size[cut] = first, min(rows, t.Shape[cut]-first)
			boxes = append(boxes, b)
		}
		if !advance(outer, t.Shape) {
			return boxes
		}
	}
}

// advance steps an index through its dimensions, last one fastest, and reports whether it did not wrap.
func advance(index, shape []int) bool {
	for d := len(index) - 1; d >= 0; d-- {
		if index[d]++; index[d] < shape[d] {
			return true
		}
		index[d] = 0
	}
	return false
}

// CoverageError says which bytes of which tensor are not covered exactly once.
type CoverageError struct {
	Tensor   string
	From, To int64 // bytes of the tensor
	Twice    bool  // covered more than once, not missing
}

func (e *CoverageError) Error() string {
	what := "missing"
	if e.Twice {
		what = "covered more than once"
	}
	return fmt.Sprintf("coverage: bytes [%d, %d) of tensor %.60q are %s", e.From, e.To, e.Tensor, what)
}

// Cover checks that the boxes cover every element of every tensor exactly once. Order does not matter. It returns a
// *CoverageError for the first gap or overlap, in layout order.
func Cover(layout []phalanx.TensorInfo, boxes []Box) error {
	type span struct{ from, to int64 }
	spans := make([][]span, len(layout))
	for _, b := range boxes {
		if b.Tensor < 0 || b.Tensor >= len(layout) {
			return fmt.Errorf("coverage: box of tensor %d of %d", b.Tensor, len(layout))
		}
		off, length, err := b.Range(layout[b.Tensor])
		if err != nil {
			return fmt.Errorf("coverage: %w", err)
		}
		spans[b.Tensor] = append(spans[b.Tensor], span{off, off + length})
	}
	for i, t := range layout {
		slices.SortFunc(spans[i], func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
		var at int64
		for _, s := range spans[i] {
			if s.from > at {
				return &CoverageError{Tensor: t.Name, From: at, To: s.from}
			}
			if s.from < at {
				return &CoverageError{Tensor: t.Name, From: s.from, To: min(at, s.to), Twice: true}
			}
			at = s.to
		}
		if at != t.Bytes() {
			return &CoverageError{Tensor: t.Name, From: at, To: t.Bytes()}
		}
	}
	return nil
}
