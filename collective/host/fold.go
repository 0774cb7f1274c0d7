// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"phalanx"
	"phalanx/kernels"
)

// A fold is the part of the slot tree above the buffers that somebody supplies, as a list of steps over registers:
// registers 0 to inputs-1 are the supplied buffers, those above are scratch. It only depends on which nodes are supplied,
// so the shape of every sum is that of the tree whoever holds which slots.
type fold struct {
	inputs  int
	scratch int // registers needed besides the inputs
	steps   []foldStep
	results []phalanx.Node
	sums    *sums // the same steps for float32, made when first needed
}

// foldStep adds registers a and b into dst, or, when dst is negative, hands register a out as result b.
type foldStep struct{ dst, a, b int }

// newFold joins the supplied nodes. With whole set the only result is the root, and a missing sibling is passed through.
// Otherwise the results are the largest nodes of the tree that are fully supplied, in slot order.
func newFold(tree phalanx.SlotTree, nodes []phalanx.Node, whole bool) (*fold, error) {
	f := &fold{inputs: len(nodes)}
	at := make(map[phalanx.Node]int, len(nodes))
	for i, n := range nodes {
		if _, twice := at[n]; twice {
			return nil, fmt.Errorf("slots [%d,%d) are supplied twice", n.First, n.End)
		}
		at[n] = i
	}
	used := 0
	emit := func(n phalanx.Node, reg int) {
		f.steps = append(f.steps, foldStep{-1, reg, len(f.results)})
		f.results = append(f.results, n)
	}
	// walk returns the register of the node's value, -1 when there is none, and whether all its leaves are in it. sp is
	// the first free scratch register.
	var walk func(n phalanx.Node, sp int) (reg int, full bool)
	walk = func(n phalanx.Node, sp int) (int, bool) {
		if reg, ok := at[n]; ok {
			used++
			return reg, true
		}
		if n.Len() <= 1 {
			return -1, false
		}
		l, r := tree.Children(n)
		left, leftFull := walk(l, sp)
		next := sp
		if left >= f.inputs {
			next++
		}
		// Without whole, a left value whose sibling stays incomplete is a result, and comes before the right one's.
		mark := len(f.steps)
		marked := len(f.results)
		right, rightFull := walk(r, next)
		switch {
		case left < 0 && right < 0:
			return -1, false
		case left >= 0 && right >= 0:
			f.scratch = max(f.scratch, sp+1-f.inputs)
			f.steps = append(f.steps, foldStep{sp, left, right})
			return sp, leftFull && rightFull
		case !whole && left >= 0:
			f.insert(mark, marked, l, left)
			return -1, false
		case !whole:
			emit(r, right)
			return -1, false
		}
		return max(left, right), false
	}
	reg, _ := walk(tree.Root(), len(nodes))
	if used != len(nodes) {
		return nil, fmt.Errorf("the supplied slots overlap or are no nodes of a tree of %d slots", tree.Slots)
	}
	if reg >= 0 {
		emit(tree.Root(), reg)
	}
	return f, nil
}

// insert hands out a register before the steps from mark on, as the result before those from marked on.
func (f *fold) insert(mark, marked int, n phalanx.Node, reg int) {
	f.results = append(f.results, phalanx.Node{})
	copy(f.results[marked+1:], f.results[marked:])
	f.results[marked] = n
	f.steps = append(f.steps, foldStep{})
	copy(f.steps[mark+1:], f.steps[mark:])
	f.steps[mark] = foldStep{-1, reg, marked}
	for i := mark + 1; i < len(f.steps); i++ {
		if f.steps[i].dst < 0 {
			f.steps[i].b++
		}
	}
}

// foldBlock is the number of elements that one pass takes through the whole fold, so that scratch stays in the cache.
const foldBlock = 4096

// arithmetic holds the scratch of one worker's folds.
type arithmetic struct {
	f32      [][]float32
	f64      [][]float64
	i64      [][]int64
	wa, wb   [foldBlock]float32 // widened operands
	words    [][]uint64         // scratch of the types that are rare
	views    [][]float32        // of the inputs
	args     [][]float32        // of one sum
	tree     phalanx.SlotTree
	inverse  float32
	inverse6 float64
}

func newArithmetic(tree phalanx.SlotTree) *arithmetic {
	return &arithmetic{tree: tree, inverse: float32(1) / float32(tree.Slots), inverse6: float64(1) / float64(tree.Slots)}
}

func grow[T any](regs [][]T, n int) [][]T {
	for len(regs) < n {
		regs = append(regs, make([]T, foldBlock))
	}
	return regs
}

// run evaluates a fold over buffers of equally many elements. in holds the inputs, in accumulator type when partial is
// set (a fold of values that were summed before), else in the type of the elements; out takes the results, in accumulator
// type unless final, which also scales.
func (a *arithmetic) run(f *fold, d DType, in, out [][]byte, mode foldMode) {
	if mode.reduction != Sum || d > F16 {
		a.reduce(f, d, in, out, mode)
		return
	}
	switch d {
	case F64:
		a.f64 = grow(a.f64, f.scratch)
		evaluate(f, f64s, in, a.f64, kernels.AddF64, nil, func(i, off int, v []float64) {
			dst := f64s(out[i])[off : off+len(v)]
			if mode.final && mode.scale {
				kernels.ScaleF64(dst, v, a.inverse6)
			} else {
				copy(dst, v)
			}
		})
	case I64:
		a.i64 = grow(a.i64, f.scratch)
		evaluate(f, i64s, in, a.i64, kernels.AddI64, nil, func(i, off int, v []int64) {
			copy(i64s(out[i])[off:], v)
		})
	default:
		a.runF32(f, d, in, out, mode)
	}
}

// foldMode says how a fold reads and writes.
type foldMode struct {
	partial, final, scale bool
	reduction             Reduction // another one than Sum only for what is not partial and final
}

func (a *arithmetic) runF32(f *fold, d DType, in, out [][]byte, mode foldMode) {
	if d == F32 || mode.partial && !mode.final {
		a.sum(f, in, out, mode)
		return
	}
	a.f32 = grow(a.f32, f.scratch)
	store := func(i, off int, v []float32) {
		n := len(v)
		if !mode.final {
			copy(f32s(out[i])[off:off+n], v)
			return
		}
		if mode.scale {
			kernels.ScaleF32(a.wa[:n], v, a.inverse)
			v = a.wa[:n]
		}
		if d == BF16 {
			kernels.BF16FromF32(u16s(out[i])[off:off+n], v)
		} else {
			kernels.F16FromF32(u16s(out[i])[off:off+n], v)
		}
	}
	if mode.partial {
		evaluate(f, f32s, in, a.f32, kernels.AddF32, nil, store)
		return
	}
	a.widened(f, d, in, kernels.AddF32, store)
}

// widened evaluates a fold of a 16-bit type in float32.
func (a *arithmetic) widened(f *fold, d DType, in [][]byte, add func(dst, a, b []float32), store func(result, off int, v []float32)) {
	widen := kernels.F32FromBF16
	if d == F16 {
		widen = kernels.F32FromF16
	}
	evaluate(f, f32s, in, a.f32, add, func(reg, off, n int, second bool) []float32 {
		tmp := a.wa[:n]
		if second {
			tmp = a.wb[:n]
		}
		widen(tmp, u16s(in[reg])[off:off+n])
		return tmp
	}, store)
}

// evaluate runs the steps of a fold block by block. view views an input; widen, when given, converts a block of an input
// instead. A result may overwrite an input at the same place: a block is read wholly before its result is stored, because
// in a fold with one result that is the last step.
func evaluate[T any](f *fold, view func([]byte) []T, in [][]byte, scratch [][]T, add func(dst, a, b []T),
	widen func(reg, off, n int, second bool) []T, store func(result, off int, v []T)) {
	if f.inputs == 0 {
		return
	}
	total := 0
	inputs := make([][]T, f.inputs)
	if widen == nil {
		for i := range inputs {
			inputs[i] = view(in[i])
		}
		total = len(inputs[0])
	} else {
		total = len(in[0]) / 2
	}
	for off := 0; off < total; off += foldBlock {
		n := min(foldBlock, total-off)
		reg := func(r int, second bool) []T {
			switch {
			case r >= f.inputs:
				return scratch[r-f.inputs][:n]
			case widen != nil:
				return widen(r, off, n, second)
			}
			return inputs[r][off : off+n]
		}
		for _, s := range f.steps {
			if s.dst < 0 {
				store(s.b, off, reg(s.a, false))
				continue
			}
			add(scratch[s.dst-f.inputs][:n], reg(s.a, false), reg(s.b, true))
		}
	}
}

// accumulator is the type that values of d are summed in.
func (d DType) accumulator() DType {
	if d == BF16 || d == F16 {
		return F32
	}
	return d
}
