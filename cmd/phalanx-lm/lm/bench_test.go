// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"testing"

	"phalanx/kernels"
)

// BenchmarkStep measures the two halves of a step of the default job, a global batch of 32 on one core.
func BenchmarkStep(b *testing.B) {
	m := NewModel(DefaultShape(), 1)
	s := NewState(m.layout, 1)
	gradient := make([]float32, m.layout.Elements())
	sampler := Sampler{Seed: 1, Count: DefaultShape().Samples(len(text())), GlobalBatch: 32, Slots: 1}
	samples := sampler.Samples(nil, 1, 0)
	b.Run("gradient", func(b *testing.B) {
		for b.Loop() {
			m.Gradient(gradient, s.Parameters, text(), samples, 1, 0)
		}
	})
	_, stats := kernels.DigestStats(0, m.layout.Tensors("", gradient))
	b.Run("optimizer", func(b *testing.B) {
		for b.Loop() {
			if err := DefaultOptimizer().Apply(s, s.Applied()+1, gradient, stats); err != nil {
				b.Fatal(err)
			}
		}
	})
}
