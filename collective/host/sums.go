// SPDX-License-Identifier: Apache-2.0

package host

import "phalanx/kernels"

// sums is a fold of float32 as few passes over memory: wherever the tree is complete for one, two or three levels, its two,
// four or eight operands are summed at once. The bits are those of the fold's steps, one after the other.
type sums struct {
	scratch int // registers needed besides the inputs
	passes  []pass
}

// pass sums registers into another, or into a result when dst is negative: result −1−dst. A single one is only handed out.
type pass struct {
	dst  int
	args []int
}

// term is a value of the fold: an input, or the sum of two terms.
type term struct {
	input       int
	left, right *term // nil for an input
}

// newSums compiles the steps of a fold.
func newSums(f *fold) *sums {
	values := make(map[int]*term, f.inputs)
	for i := range f.inputs {
		values[i] = &term{input: i}
	}
	s := &sums{}
	for _, step := range f.steps {
		if step.dst >= 0 {
			values[step.dst] = &term{left: values[step.a], right: values[step.b]}
			continue
		}
		root := values[step.a]
		s.passes = append(s.passes, pass{-1 - step.b, s.operands(f.inputs, root, f.inputs)})
	}
	return s
}

// operands compiles what a term is the sum of, and returns where that will be. sp is the first free register.
func (s *sums) operands(inputs int, t *term, sp int) []int {
	if t.left == nil {
		return []int{t.input}
	}
	cut := []*term{t.left, t.right}
	for len(cut) < 8 {
		deeper := make([]*term, 0, 2*len(cut))
		for _, c := range cut {
			if c.left == nil {
				break
			}
			deeper = append(deeper, c.left, c.right)
		}
		if len(deeper) < 2*len(cut) {
			break
		}
		cut = deeper
	}
	args := make([]int, len(cut))
	for i, c := range cut {
		if c.left == nil {
			args[i] = c.input
			continue
		}
		s.passes = append(s.passes, pass{sp, s.operands(inputs, c, sp)})
		args[i] = sp
		sp++
		s.scratch = max(s.scratch, sp-inputs)
	}
	return args
}

// sumBlock is the number of elements that are taken through all passes at once: the scratch of some registers stays in the
// first level of the cache.
const sumBlock = 1024

// sum evaluates a fold of float32. A result may overwrite an input at the same place, as with evaluate.
func (a *arithmetic) sum(f *fold, in, out [][]byte, mode foldMode) {
	if f.inputs == 0 {
		return
	}
	if f.sums == nil {
		f.sums = newSums(f)
	}
	scale, scaled := float32(1), mode.final && mode.scale
	if scaled {
		scale = a.inverse
	}
	a.f32 = grow(a.f32, f.sums.scratch)
	a.views = a.views[:0]
	for _, b := range in[:f.inputs] {
		a.views = append(a.views, f32s(b))
	}
	total := len(a.views[0])
	block := sumBlock
	if f.sums.scratch == 0 {
		block = max(total, 1) // nothing comes back from the cache
	}
	for off := 0; off < total; off += block {
		n := min(block, total-off)
		for _, p := range f.sums.passes {
			a.gather(p.args, f.inputs, off, n)
			switch {
			case p.dst >= 0:
				kernels.SumF32(a.f32[p.dst-f.inputs][:n], a.args, 1)
			case len(a.args) > 1:
				kernels.SumF32(f32s(out[-1-p.dst])[off:off+n], a.args, scale)
			case scaled:
				kernels.ScaleF32(f32s(out[-1-p.dst])[off:off+n], a.args[0], scale)
			default:
				copy(f32s(out[-1-p.dst])[off:off+n], a.args[0])
			}
		}
	}
}

// gather makes a.args the blocks of some registers.
func (a *arithmetic) gather(registers []int, inputs, off, n int) {
	a.args = a.args[:0]
	for _, r := range registers {
		if r < inputs {
			a.args = append(a.args, a.views[r][off:off+n])
		} else {
			a.args = append(a.args, a.f32[r-inputs][:n])
		}
	}
}
