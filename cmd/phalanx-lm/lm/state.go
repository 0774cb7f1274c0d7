// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"phalanx"
	"phalanx/kernels"
)

// alignment in bytes of every tensor: a cache line, and the widest vector.
const alignment = 64

// block is a tensor's place in a block of numbers.
type block struct {
	name   string
	shape  []int
	offset int // elements
	fanIn  int // inputs of one unit, for the initial state; 0 starts at zero
}

func (b block) elements() int {
	n := 1
	for _, d := range b.shape {
		n *= d
	}
	return n
}

// Layout places the tensors of a model in one block of float32, in name order, each at a multiple of 64 bytes. Parameters,
// both moments and gradients are laid out alike. What lies between tensors is 0 and belongs to none.
type Layout struct {
	blocks   []block // in name order
	elements int
	indexes  [5]int // of the tensors in the order of the fields of weights
}

// NewLayout returns the layout for a shape.
func NewLayout(s Shape) *Layout {
	wide := s.Context * s.Embed
	fields := []block{
		{name: "embed.weight", shape: []int{vocabulary, s.Embed}, fanIn: 1},
		{name: "hidden.weight", shape: []int{s.Hidden, wide}, fanIn: wide},
		{name: "hidden.bias", shape: []int{s.Hidden}},
		{name: "output.weight", shape: []int{vocabulary, s.Hidden}, fanIn: s.Hidden},
		{name: "output.bias", shape: []int{vocabulary}},
	}
	l := &Layout{blocks: slices.Clone(fields)}
	slices.SortFunc(l.blocks, func(a, b block) int { return cmp.Compare(a.name, b.name) })
	for i := range l.blocks {
		l.blocks[i].offset = l.elements
		l.elements += (l.blocks[i].elements() + alignment/4 - 1) &^ (alignment/4 - 1)
	}
	for i, f := range fields {
		l.indexes[i] = slices.IndexFunc(l.blocks, func(b block) bool { return b.name == f.name })
	}
	return l
}

// Elements is the length of a block, the gaps included.
func (l *Layout) Elements() int { return l.elements }

// Parameters is the number of parameters.
func (l *Layout) Parameters() int {
	n := 0
	for _, b := range l.blocks {
		n += b.elements()
	}
	return n
}

// Tensors returns the tensors in a block, in name order, their names behind a prefix. They are views of the block.
func (l *Layout) Tensors(prefix string, numbers []float32) []kernels.Tensor {
	tensors := make([]kernels.Tensor, len(l.blocks))
	for i, b := range l.blocks {
		data := kernels.Bytes(numbers[b.offset : b.offset+b.elements()])
		tensors[i] = kernels.Tensor{Name: prefix + b.name, DType: "f32", Shape: b.shape, Data: data}
	}
	return tensors
}

func (l *Layout) weights(numbers []float32) weights {
	at := func(i int) []float32 {
		b := l.blocks[l.indexes[i]]
		return numbers[b.offset : b.offset+b.elements()]
	}
	return weights{embed: at(0), hidden: at(1), hiddenBias: at(2), output: at(3), outputBias: at(4)}
}

// State is all that a step changes: the parameters, the two moments of the optimizer, and how many steps were applied.
type State struct {
	layout     *Layout
	Parameters []float32
	first      []float32 // moment: mean of the gradients
	second     []float32 // moment: mean of their squares
	applied    []int64   // one element
}

// NewState returns the initial state of a job with this seed.
func NewState(layout *Layout, seed uint64) *State {
	s := &State{
		layout:     layout,
		Parameters: kernels.F32s(aligned(4 * layout.elements)),
		first:      kernels.F32s(aligned(4 * layout.elements)),
		second:     kernels.F32s(aligned(4 * layout.elements)),
		applied:    kernels.I64s(aligned(8)),
	}
	for i, b := range layout.blocks {
		if b.fanIn == 0 {
			continue
		}
		draw := newStream(seed, "initial", uint64(i), 0)
		// Uniform with a variance of 1/fanIn, so that layers keep the size of their inputs.
		width := float32(math.Sqrt(3 / float64(b.fanIn)))
		for k := range b.elements() {
			s.Parameters[b.offset+k] = float32(width * draw.symmetric())
		}
	}
	return s
}

// Applied is the step that the state is after.
func (s *State) Applied() phalanx.Step { return phalanx.Step(s.applied[0]) }

// Tensors returns the whole state as views, for registration: a state that is overwritten through them is the new state.
func (s *State) Tensors() []kernels.Tensor {
	return slices.Concat(
		[]kernels.Tensor{{Name: "adam.applied", DType: "i64", Shape: []int{1}, Data: kernels.Bytes(s.applied)}},
		s.layout.Tensors("adam.m.", s.first),
		s.layout.Tensors("adam.v.", s.second),
		s.layout.Tensors("model.", s.Parameters),
	)
}

// Digest is the D1 digest, seed 0, of the parameters alone: what two runs are compared by.
func (s *State) Digest() phalanx.Digest {
	return kernels.Digest(0, s.layout.Tensors("model.", s.Parameters))
}

// aligned returns size zero bytes that start at a multiple of the alignment. Go does not move what it has allocated.
func aligned(size int) []byte {
	b := make([]byte, size+alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % alignment
	return b[skip:][:size:size]
}
