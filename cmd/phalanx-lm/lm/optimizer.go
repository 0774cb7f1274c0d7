// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"fmt"
	"math"

	"phalanx"
	"phalanx/kernels"
)

// Optimizer is AdamW with clipping by the norm of the whole gradient. It reads the state and the gradient and nothing else:
// not the world, not the time, so that a step may be applied in another world than the one that computed it.
type Optimizer struct {
	Rate       float64 // learning rate after the warm-up
	WarmUp     int     // steps over which the rate rises linearly
	Beta1      float64
	Beta2      float64
	Epsilon    float32
	Decay      float64 // of weights, not of biases; times the rate
	ClipToNorm float64
}

// DefaultOptimizer suits batches of some dozens of samples.
func DefaultOptimizer() Optimizer {
	return Optimizer{Rate: 3e-3, WarmUp: 10, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Decay: 0.01, ClipToNorm: 1}
}

func (o Optimizer) String() string {
	return fmt.Sprintf("adamw rate=%g warmup=%d betas=%g,%g epsilon=%g decay=%g clip=%g",
		o.Rate, o.WarmUp, o.Beta1, o.Beta2, o.Epsilon, o.Decay, o.ClipToNorm)
}

// Clip returns the factor that brings a gradient with this sum of squares to the norm at most.
func (o Optimizer) Clip(sumSquares float64) float64 {
	return min(1, o.ClipToNorm/math.Sqrt(sumSquares)) // of a zero gradient: min(1, +Inf)
}

// Apply makes step of a state at step-1. The gradient, a block like the parameters, is only read; stats are its own. A
// gradient that is not finite counts as a step but leaves parameters and moments as they are, on every rank alike. Nothing
// is changed when an error is returned.
func (o Optimizer) Apply(s *State, step phalanx.Step, gradient []float32, stats kernels.Stats) error {
	if s.Applied()+1 != step {
		return fmt.Errorf("apply step %d: the state is at step %d", step, s.Applied())
	}
	if len(gradient) != s.layout.elements {
		return fmt.Errorf("apply step %d: gradient has %d elements, the state %d", step, len(gradient), s.layout.elements)
	}
	if stats.NonFinite == 0 && !math.IsInf(stats.SumSquares, 0) {
		o.update(s, step, gradient, float32(o.Clip(stats.SumSquares)))
	}
	s.applied[0]++
	return nil
}

func (o Optimizer) update(s *State, step phalanx.Step, gradient []float32, clip float32) {
	rate := float64(o.Rate * min(1, float64(step)/float64(max(1, o.WarmUp))))
	beta1, rest1 := float32(o.Beta1), float32(1-o.Beta1)
	beta2, rest2 := float32(o.Beta2), float32(1-o.Beta2)
	// Bias corrections, from the committed step.
	scale1 := float32(1 / (1 - power(o.Beta1, uint64(step))))
	scale2 := float32(1 / (1 - power(o.Beta2, uint64(step))))
	for _, b := range s.layout.blocks {
		var decay float32
		if len(b.shape) > 1 {
			decay = float32(rate * o.Decay)
		}
		p, m, v := s.Parameters[b.offset:][:b.elements()], s.first[b.offset:], s.second[b.offset:]
		g := gradient[b.offset:][:len(p)]
		m, v = m[:len(p)], v[:len(p)]
		for i := range p {
			d := float32(clip * g[i])
			m[i] = float32(beta1*m[i]) + float32(rest1*d)
			v[i] = float32(beta2*v[i]) + float32(rest2*float32(d*d))
			root := float32(math.Sqrt(float64(float32(v[i] * scale2))))
			move := float32(float32(m[i]*scale1) / (root + o.Epsilon))
			p[i] = p[i] - float32(decay*p[i]) - float32(float32(rate)*move)
		}
	}
}
