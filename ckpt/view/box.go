// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
)

// Box is an N-dimensional part of a tensor: in every dimension a first index and a count. A scalar's box has no dimensions and
// one element.
type Box struct {
	Offset []int `json:"offset"`
	Shape  []int `json:"shape"`
}

// Whole is the box of all elements of a tensor.
func Whole(shape []int) Box { return Box{Offset: make([]int, len(shape)), Shape: shape} }

// Elements counts the elements of a box.
func (b Box) Elements() int64 {
	n := int64(1)
	for _, d := range b.Shape {
		n *= int64(d)
	}
	return n
}

// Check reports why a box is no part of a tensor with a shape.
func (b Box) Check(shape []int) error {
	if len(b.Offset) != len(shape) || len(b.Shape) != len(shape) {
		return fmt.Errorf("a box at %v of %v in a tensor of %v: want %d dimensions", b.Offset, b.Shape, shape, len(shape))
	}
	for d, n := range b.Shape {
		if o := b.Offset[d]; o < 0 || n < 0 || o > shape[d] || n > shape[d]-o {
			return fmt.Errorf("a box at %v of %v in a tensor of %v: dimension %d covers [%d, %d+%d) of %d", b.Offset, b.Shape, shape, d, o, o, n, shape[d])
		}
	}
	return nil
}

// Intersect returns the elements that are in both boxes of one tensor; false when there are none.
func (b Box) Intersect(c Box) (Box, bool) {
	out := Box{Offset: make([]int, len(b.Offset)), Shape: make([]int, len(b.Offset))}
	for d := range b.Offset {
		from := max(b.Offset[d], c.Offset[d])
		to := min(b.Offset[d]+b.Shape[d], c.Offset[d]+c.Shape[d])
		if to <= from {
			return Box{}, false
		}
		out.Offset[d], out.Shape[d] = from, to-from
	}
	return out, true
}

// rowMajor returns the strides, in elements, of a row-major array.
func rowMajor(shape []int) []int {
	strides := make([]int, len(shape))
	step := 1
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = step
		step *= shape[d]
	}
	return strides
}

// axis is one dimension of a copy between two arrays: how often, and how many bytes further in each.
type axis struct {
	n        int
	src, dst int64
}

// transfer is a copy of the elements of one box between two arrays, as runs of bytes that are contiguous in both.
type transfer struct {
	src, dst int64 // bytes of the first element
	run      int64 // bytes of one run
	axes     []axis
}

// newTransfer plans the copy of a box from an array at box from, with strides in elements and its first element at byte first,
// into a row-major array of the box to. Runs come in the order of their source bytes, so that a source is read front to back.
func newTransfer(part, from, to Box, strides []int, first, elem int64) transfer {
	t := transfer{src: first, run: elem}
	dst := rowMajor(to.Shape)
	for d, n := range part.Shape {
		t.src += int64(part.Offset[d]-from.Offset[d]) * int64(strides[d]) * elem
		t.dst += int64(part.Offset[d]-to.Offset[d]) * int64(dst[d]) * elem
		if n != 1 {
			t.axes = append(t.axes, axis{n, int64(strides[d]) * elem, int64(dst[d]) * elem})
		}
	}
	slices.SortStableFunc(t.axes, func(a, b axis) int { return cmp.Compare(b.src, a.src) })
	for k := len(t.axes); k > 0 && t.axes[k-1].src == t.run && t.axes[k-1].dst == t.run; k-- {
		t.run *= int64(t.axes[k-1].n)
		t.axes = t.axes[:k-1]
	}
	return t
}

// each calls f with every run: its first byte in the source and in the destination. It stops when f returns false.
func (t transfer) each(f func(src, dst int64) bool) {
	index := make([]int, len(t.axes))
	src, dst := t.src, t.dst
	for {
		if !f(src, dst) {
			return
		}
		k := len(t.axes) - 1
		for ; k >= 0; k-- {
			a := t.axes[k]
			if index[k]++; index[k] < a.n {
				src, dst = src+a.src, dst+a.dst
				break
			}
			src, dst = src-int64(a.n-1)*a.src, dst-int64(a.n-1)*a.dst
			index[k] = 0
		}
		if k < 0 {
			return
		}
	}
}

// count is the number of runs.
func (t transfer) count() int64 {
	n := int64(1)
	for _, a := range t.axes {
		n *= int64(a.n)
	}
	return n
}

// copyRuns copies the parts of n runs, from the first-th on, whose source bytes are in [from, to). held are those bytes.
func (t transfer) copyRuns(dst, held []byte, from, to, first, n int64) {
	index := make([]int, len(t.axes))
	src, at := t.src, t.dst
	for k, left := len(t.axes)-1, first; k >= 0; k-- { // the first-th run, as an odometer
		a := t.axes[k]
		index[k] = int(left % int64(a.n))
		left /= int64(a.n)
		src, at = src+int64(index[k])*a.src, at+int64(index[k])*a.dst
	}
	for ; n > 0; n-- {
		lo, hi := max(src, from), min(src+t.run, to)
		if lo < hi {
			copy(dst[at+lo-src:], held[lo-from:hi-from])
		}
		for k := len(t.axes) - 1; k >= 0; k-- {
			a := t.axes[k]
			if index[k]++; index[k] < a.n {
				src, at = src+a.src, at+a.dst
				break
			}
			src, at = src-int64(a.n-1)*a.src, at-int64(a.n-1)*a.dst
			index[k] = 0
		}
	}
}
