// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"math/bits"

	"phalanx"
)

// Sampler says which samples a slot of a step holds. It is a value without state: what it returns depends on its fields and
// the arguments only, so that no ledger of what was trained on can be wrong.
//
// The samples of a run are an endless row of epochs. Each epoch is a permutation of its own of all Count samples; steps take
// GlobalBatch samples one after the other, slots take equal shares of a step in slot order. Nothing is dropped or repeated
// at the seam of two epochs: a batch simply goes on in the next one.
type Sampler struct {
	Seed        uint64
	Count       int64 // samples in the data set, at least 1
	GlobalBatch int   // samples a step
	Slots       int   // divides GlobalBatch
}

// PerSlot is the number of samples in a slot.
func (s Sampler) PerSlot() int { return s.GlobalBatch / s.Slots }

// Samples appends the samples of a slot of a step, counted from 1, to dst: numbers in [0, Count).
func (s Sampler) Samples(dst []int64, step phalanx.Step, slot phalanx.Slot) []int64 {
	first := int64(step-1)*int64(s.GlobalBatch) + int64(slot)*int64(s.PerSlot())
	for i := first; i < first+int64(s.PerSlot()); i++ {
		dst = append(dst, s.sample(i))
	}
	return dst
}

// sample returns the i-th sample of the run.
func (s Sampler) sample(i int64) int64 {
	epoch, place := i/s.Count, i%s.Count
	return permute(mix(s.Seed^mix(uint64(epoch)+1)), s.Count, place)
}

// rounds of the Feistel network: four are a strong permutation when the round function is random; this one is only a hash.
const rounds = 6

// permute returns where the permutation of [0, count) with this key sends place. It is a Feistel network over the smallest
// even number of bits that hold count, walked until it lands inside: at most four rounds of walking on average, no table.
func permute(key uint64, count, place int64) int64 {
	half := max(1, (bits.Len64(uint64(count-1))+1)/2)
	mask := uint64(1)<<half - 1
	x := uint64(place)
	for {
		left, right := x>>half, x&mask
		for r := range uint64(rounds) {
			left, right = right, left^mix(key+mix(right+r<<32))&mask
		}
		x = left<<half | right
		if x < uint64(count) {
			return int64(x)
		}
	}
}
