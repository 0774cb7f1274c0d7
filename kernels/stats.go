// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"encoding/binary"
	"math"
)

// Stats describes the elements of the float32 and float64 tensors of a list (dtypes spelled f32, float32, F32 or
// torch.float32, and alike for 64 bits); other tensors do not count.
type Stats struct {
	// SumSquares is the sum of the squares, in the order that doc.go fixes; its root is the norm. NaN when an element is
	// NaN, +Inf when one is infinite.
	SumSquares float64
	// AbsMax is the largest magnitude, 0 without elements. NaN when an element is NaN.
	AbsMax float64
	// NonFinite counts NaN and infinite elements.
	NonFinite int64
}

// statsKind says how the elements of a run are read.
type statsKind uint8

const (
	noStats  statsKind = iota // not a float of 32 or 64 bits
	statsF32                  // little-endian float32
	statsF64                  // little-endian float64
)

func statsKindOf(dtype string) statsKind {
	switch dtype {
	case "f32", "F32", "float32", "torch.float32":
		return statsF32
	case "f64", "F64", "float64", "torch.float64":
		return statsF64
	}
	return noStats
}

// accumulators is how many partial sums of squares a leaf has.
const accumulators = 16

// leafStats are the statistics of one leaf.
type leafStats struct {
	sumSquares float64
	absMax     float64 // NaN, of any payload, when an element is
	nonFinite  int64
}

// statsOf returns the statistics of one leaf. Bytes that are no whole element at the end do not count.
func statsOf(p []byte, kind statsKind) leafStats {
	var sums [accumulators]float64
	var s leafStats
	switch kind {
	case statsF32:
		s = statsOfF32(p[:len(p)&^3], &sums)
	case statsF64:
		s = statsOfF64(p[:len(p)&^7], &sums)
	default:
		return s
	}
	for width := accumulators / 2; width > 0; width /= 2 {
		for i := range width {
			sums[i] += sums[i+width]
		}
	}
	s.sumSquares = sums[0]
	return s
}

func statsOfF32(p []byte, sums *[accumulators]float64) leafStats {
	var top uint32 // the largest magnitude as bits: they are ordered like the numbers, NaN above all
	var bad int64
	if best() {
		var n int
		n, top, bad = statsF32Best(p, sums)
		p = p[n:]
	}
	for len(p) > 0 {
		// A block is one element for each accumulator; the last one may be short.
		block := p[:min(len(p), 4*accumulators)]
		p = p[len(block):]
		for k := 0; len(block) >= 4; k++ {
			b := binary.LittleEndian.Uint32(block)
			block = block[4:]
			x := float64(math.Float32frombits(b))
			sums[k&(accumulators-1)] += float64(x * x)
			b &^= 1 << 31
			top = max(top, b)
			bad += int64((b + 0x00800000) >> 31) // exponent all ones: the sum carries into the top bit
		}
	}
	return leafStats{absMax: float64(math.Float32frombits(top)), nonFinite: bad}
}

func statsOfF64(p []byte, sums *[accumulators]float64) leafStats {
	var top uint64
	var bad int64
	for len(p) > 0 {
		block := p[:min(len(p), 8*accumulators)]
		p = p[len(block):]
		for k := 0; len(block) >= 8; k++ {
			b := binary.LittleEndian.Uint64(block)
			block = block[8:]
			x := math.Float64frombits(b)
			sums[k&(accumulators-1)] += float64(x * x) // the conversion keeps a compiler from fusing the two
			b &^= 1 << 63
			top = max(top, b)
			bad += int64((b + 1<<52) >> 63)
		}
	}
	return leafStats{absMax: math.Float64frombits(top), nonFinite: bad}
}

// foldStats adds the leaves in order.
func foldStats(leaves []leafStats) Stats {
	var s Stats
	for _, l := range leaves {
		s.SumSquares += l.sumSquares
		s.AbsMax = max(s.AbsMax, l.absMax) // NaN wins
		s.NonFinite += l.nonFinite
	}
	// Which payload survives depends on the order of operands; one NaN for all.
	if math.IsNaN(s.SumSquares) {
		s.SumSquares = math.NaN()
	}
	if math.IsNaN(s.AbsMax) {
		s.AbsMax = math.NaN()
	}
	return s
}
