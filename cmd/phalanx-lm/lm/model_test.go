// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"phalanx"
	"phalanx/kernels"
)

var tiny = Shape{Context: 3, Embed: 2, Hidden: 5, Dropout: 64}

func text() []byte { return []byte(strings.Repeat("the quick brown fox, the lazy dog. ", 8)) }

// The gradient is compared with central differences of the loss along every parameter that the samples touch and some that
// they do not. Dropout is on: its stream is keyed, so both losses see the same units dropped.
func TestGradientMatchesFiniteDifferences(t *testing.T) {
	m := NewModel(tiny, 3)
	s := NewState(m.layout, 3)
	samples := []int64{0, 5, 17, 40}
	gradient := make([]float32, m.layout.Elements())
	m.Gradient(gradient, s.Parameters, text(), samples, 9, 2)

	scratch := make([]float32, m.layout.Elements())
	loss := func() float64 {
		clear(scratch)
		return m.Gradient(scratch, s.Parameters, text(), samples, 9, 2)
	}
	const width = 1.0 / 128 // float32 has too few digits for less
	var checked, nonzero int
	for _, b := range m.layout.blocks {
		for k := range b.elements() {
			i := b.offset + k
			if gradient[i] == 0 && k%7 != 0 {
				continue
			}
			kept := s.Parameters[i]
			s.Parameters[i] = kept + width
			above := loss()
			s.Parameters[i] = kept - width
			below := loss()
			s.Parameters[i] = kept
			want := (above - below) / (2 * width)
			if math.Abs(float64(gradient[i])-want) > 2e-4+0.01*math.Abs(want) {
				t.Fatalf("%s[%d]: gradient %v, difference quotient %v", b.name, k, gradient[i], want)
			}
			checked++
			if gradient[i] != 0 {
				nonzero++
			}
		}
	}
	if nonzero < 300 {
		t.Errorf("only %d of %d checked elements had a gradient", nonzero, checked)
	}
}

func TestGradientIsAFunctionOfSeedStepAndSlot(t *testing.T) {
	s := NewState(NewLayout(tiny), 3)
	used := NewModel(tiny, 3)
	of := func(m *Model, step phalanx.Step, slot phalanx.Slot) []float32 {
		g := make([]float32, m.layout.Elements())
		m.Gradient(g, s.Parameters, text(), []int64{1, 2, 3, 4, 5, 6}, step, slot)
		return g
	}
	of(used, 1, 0)
	want := of(NewModel(tiny, 3), 4, 5)
	if !slices.Equal(of(used, 4, 5), want) {
		t.Error("a used model gives another gradient than a fresh one")
	}
	for name, other := range map[string][]float32{
		"seed": of(NewModel(tiny, 4), 4, 5), "step": of(used, 5, 5), "slot": of(used, 4, 4),
	} {
		if slices.Equal(other, want) {
			t.Errorf("the %s does not reach the random stream", name)
		}
	}
}

func TestTensorsAreAlignedAndSorted(t *testing.T) {
	for _, shape := range []Shape{tiny, DefaultShape()} {
		s := NewState(NewLayout(shape), 1)
		tensors := s.Tensors()
		names := make([]string, len(tensors))
		for i, v := range tensors {
			names[i] = v.Name
			if p := uintptr(unsafe.Pointer(&v.Data[0])); p%alignment != 0 {
				t.Errorf("%v: %s starts at %d mod %d", shape, v.Name, p%alignment, alignment)
			}
		}
		if !slices.IsSorted(names) || len(names) != 16 {
			t.Errorf("names %v", names)
		}
		elements := 0
		for _, v := range s.layout.Tensors("", s.Parameters) {
			elements += len(v.Data) / 4
		}
		if elements != s.layout.Parameters() {
			t.Errorf("%v: %d elements in tensors, %d parameters", shape, elements, s.layout.Parameters())
		}
	}
	if n := NewLayout(DefaultShape()).Parameters(); n != 53568 {
		t.Errorf("the default shape has %d parameters; correct its comment", n)
	}
}

func TestStateIsItsTensors(t *testing.T) {
	layout := NewLayout(tiny)
	s, copied := NewState(layout, 1), NewState(layout, 2)
	gradient := make([]float32, layout.Elements())
	m := NewModel(tiny, 1)
	step := func(s *State) {
		clear(gradient)
		next := s.Applied() + 1
		m.Gradient(gradient, s.Parameters, text(), []int64{1, 2}, next, 0)
		_, stats := kernels.DigestStats(0, layout.Tensors("", gradient))
		if err := DefaultOptimizer().Apply(s, next, gradient, stats); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		step(s)
	}
	for i, from := range s.Tensors() {
		copy(copied.Tensors()[i].Data, from.Data)
	}
	if copied.Applied() != 5 {
		t.Fatalf("the copy is at step %d", copied.Applied())
	}
	for range 5 {
		step(s)
		step(copied)
	}
	if s.Digest() != copied.Digest() {
		t.Error("something that matters is not among the tensors")
	}
}
