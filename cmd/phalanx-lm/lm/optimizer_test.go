// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"math"
	"slices"
	"testing"

	"phalanx/kernels"
)

func TestClip(t *testing.T) {
	o := Optimizer{ClipToNorm: 1}
	for _, c := range []struct{ sumSquares, want float64 }{{0, 1}, {0.25, 1}, {1, 1}, {4, 0.5}, {100, 0.1}} {
		if got := o.Clip(c.sumSquares); got != c.want {
			t.Errorf("Clip(%v) = %v, want %v", c.sumSquares, got, c.want)
		}
	}
}

// The first step of AdamW moves every parameter by the rate against the sign of its gradient, whatever its size.
func TestFirstStepMovesByTheRate(t *testing.T) {
	o := Optimizer{Rate: 0.5, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, ClipToNorm: 1}
	s := NewState(NewLayout(tiny), 1)
	before := slices.Clone(s.Parameters)
	gradient := make([]float32, len(before))
	for _, b := range s.layout.blocks {
		for k := range b.elements() {
			gradient[b.offset+k] = float32(1 + k%3)
			if k%2 == 0 {
				gradient[b.offset+k] *= -1
			}
		}
	}
	given := slices.Clone(gradient)
	_, stats := kernels.DigestStats(0, s.layout.Tensors("", gradient))
	if o.Clip(stats.SumSquares) == 1 {
		t.Fatal("clipping is not active")
	}
	if err := o.Apply(s, 1, gradient, stats); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(gradient, given) {
		t.Error("Apply wrote the gradient")
	}
	for _, b := range s.layout.blocks {
		for k := range b.elements() {
			i := b.offset + k
			want := float64(before[i]) - math.Copysign(0.5, float64(gradient[i]))
			if math.Abs(float64(s.Parameters[i])-want) > 1e-4 {
				t.Fatalf("%s[%d] moved from %v to %v, want %v", b.name, k, before[i], s.Parameters[i], want)
			}
		}
	}
}

func TestApplyRefusesAndSkips(t *testing.T) {
	s := NewState(NewLayout(tiny), 1)
	start := s.Digest()
	gradient := make([]float32, s.layout.Elements())
	o := DefaultOptimizer()
	if o.Apply(s, 2, gradient, kernels.Stats{}) == nil {
		t.Error("a step was skipped")
	}
	if o.Apply(s, 0, gradient, kernels.Stats{}) == nil {
		t.Error("a step was repeated")
	}
	if o.Apply(s, 1, gradient[1:], kernels.Stats{}) == nil {
		t.Error("a short gradient was taken")
	}
	if s.Applied() != 0 {
		t.Errorf("a refused step counts: at %d", s.Applied())
	}
	gradient[3] = float32(math.NaN())
	_, stats := kernels.DigestStats(0, s.layout.Tensors("", gradient))
	if err := o.Apply(s, 1, gradient, stats); err != nil {
		t.Fatal(err)
	}
	if s.Applied() != 1 || s.Digest() != start {
		t.Error("a gradient that is not finite must count and change nothing")
	}
}
