// SPDX-License-Identifier: Apache-2.0

package kernels

import "phalanx"

// Geometry of a leaf; doc.go has the formulas.
const (
	// LeafBytes is the size of a full leaf.
	LeafBytes = rowCount * rowBytes

	rowCount  = 16
	rowBytes  = laneCount * laneBytes
	laneCount = 256
	laneBytes = 16
)

// mix is SplitMix64's finaliser.
func mix(z uint64) uint64 {
	z ^= z >> 30
	z *= 0xbf58476d1ce4e5b9
	z ^= z >> 27
	z *= 0x94d049bb133111eb
	return z ^ z>>31
}

// VoteSeed is the seed of the digest in the vote of a step. It is fresh for each step, so that a lasting divergence is
// tested with new keys every time, and it does not depend on the generation, so that runs can be compared step by step.
func VoteSeed(jobSeed uint64, step phalanx.Step) uint64 {
	return mix(jobSeed ^ mix(uint64(step)))
}

// wordKeys holds K(q,c), widened for 64-bit products.
var wordKeys = func() (k [2][4 * rowCount]uint64) {
	for q := range k {
		for c := range k[q] {
			k[q][c] = uint64(uint32(mix(uint64(c+64*q+1))) | 1)
		}
	}
	return k
}()

// laneKeys holds what depends on the seed: A(q,t) and r.
type laneKeys struct {
	a [2][laneCount]uint64
	r uint64
}

func newLaneKeys(seed uint64) *laneKeys {
	k := &laneKeys{r: pointOf(seed)}
	for q := range k.a {
		for t := range k.a[q] {
			k.a[q][t] = mix(seed^mix(uint64(laneCount+t+laneCount*q))) | 1
		}
	}
	return k
}
