// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
)

// Steps are read slot by slot; what comes out must be one whole permutation of the data set after the other, wherever the
// seams of the epochs fall.
func TestEverySampleOncePerEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 13).Draw(t, "slots")
		s := Sampler{
			Seed:        rapid.Uint64().Draw(t, "seed"),
			Count:       rapid.Int64Range(1, 300).Draw(t, "count"),
			Slots:       slots,
			GlobalBatch: slots * rapid.IntRange(1, 5).Draw(t, "per slot"),
		}
		const epochs = 3
		var run []int64
		for step := phalanx.Step(1); int64(len(run)) < epochs*s.Count; step++ {
			before := len(run)
			for slot := range slots {
				run = s.Samples(run, step, phalanx.Slot(slot))
			}
			if len(run)-before != s.GlobalBatch {
				t.Fatalf("step %d has %d samples, want %d", step, len(run)-before, s.GlobalBatch)
			}
		}
		for e := range int64(epochs) {
			epoch := slices.Clone(run[e*s.Count : (e+1)*s.Count])
			slices.Sort(epoch)
			for i, sample := range epoch {
				if sample != int64(i) {
					t.Fatalf("epoch %d: sample %d comes %d in order", e, sample, i)
				}
			}
		}
	})
}

func TestEpochsAndSeedsDiffer(t *testing.T) {
	epoch := func(seed uint64, e int64) []int64 {
		s := Sampler{Seed: seed, Count: 1000, GlobalBatch: 1000, Slots: 1}
		return s.Samples(nil, phalanx.Step(e+1), 0)
	}
	first := epoch(1, 0)
	if slices.Equal(first, epoch(1, 1)) {
		t.Error("two epochs have the same order")
	}
	if slices.Equal(first, epoch(2, 0)) {
		t.Error("two seeds have the same order")
	}
	if !slices.Equal(first, epoch(1, 0)) {
		t.Error("the order is not a function of seed and epoch")
	}
	// A permutation that mixes leaves about one sample in its place.
	fixed := 0
	for i, s := range first {
		if int64(i) == s {
			fixed++
		}
	}
	if fixed > 10 {
		t.Errorf("%d of 1000 samples stayed where they were", fixed)
	}
}
