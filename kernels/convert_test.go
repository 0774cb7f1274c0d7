// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

// all16 are all patterns of 16 bits.
func all16() []uint16 {
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	return all
}

// halfValue is the value of a finite half, from its definition.
func halfValue(h uint16) float64 {
	e, f := int(h>>10&31), float64(h&0x3ff)
	v := math.Ldexp(1024+f, e-25)
	if e == 0 {
		v = math.Ldexp(f, -24)
	}
	return math.Copysign(v, float64(1)-float64(h>>15)*2)
}

func TestWidenAll(t *testing.T) {
	src := all16()
	eachPath(t, func(t *testing.T) {
		bf, half := make([]float32, len(src)), make([]float32, len(src))
		F32FromBF16(bf, src)
		F32FromF16(half, src)
		for i, h := range src {
			if got := math.Float32bits(bf[i]); got != uint32(h)<<16 {
				t.Fatalf("bf16 %04x: %08x", h, got)
			}
			got := math.Float32bits(half[i])
			switch sign := uint32(h&0x8000) << 16; {
			case h&0x7fff > 0x7c00:
				if want := sign | 0x7fc00000 | uint32(h&0x3ff)<<13; got != want {
					t.Fatalf("f16 %04x: %08x, want %08x", h, got, want)
				}
			case h&0x7fff == 0x7c00:
				if got != sign|0x7f800000 {
					t.Fatalf("f16 %04x: %08x", h, got)
				}
			default:
				if want := math.Float32bits(float32(halfValue(h))); got != want {
					t.Fatalf("f16 %04x: %08x, want %08x", h, got, want)
				}
			}
		}
		// And back: every number that is no signalling NaN survives.
		back := make([]uint16, len(src))
		BF16FromF32(back, bf)
		for i, h := range src {
			if want := h; back[i] != want && (h&0x7fff <= 0x7f80 || back[i] != h|1<<6) {
				t.Fatalf("bf16 %04x comes back as %04x", h, back[i])
			}
		}
		F16FromF32(back, half)
		for i, h := range src {
			if back[i] != h && (h&0x7fff <= 0x7c00 || back[i] != h|1<<9) {
				t.Fatalf("f16 %04x comes back as %04x", h, back[i])
			}
		}
	})
}

// nearest finds the pattern whose value is nearest to x, ties to the even one, among the positive patterns 0..top; what
// reaches the middle between the largest and the next power of two is infinite.
func nearest(x float64, infinite uint16, value func(uint16) float64) uint16 {
	low, high := uint16(0), infinite // value(low) <= x < value(high)
	for high-low > 1 {
		if mid := low + (high-low)/2; value(mid) <= x {
			low = mid
		} else {
			high = mid
		}
	}
	below, above := x-value(low), value(high)-x
	if below < above || below == above && low&1 == 0 {
		return low
	}
	return high
}

func TestRounding(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	var src []float32
	for _, b := range special32 {
		for d := -2; d <= 2; d++ {
			src = append(src, math.Float32frombits(b+uint32(d)))
		}
	}
	// Middles of neighbours, one unit to either side, and numbers at random within the range of halves.
	for range 20000 {
		h := uint16(rng.IntN(0x7c00))
		middle := math.Float32bits(float32((halfValue(h) + halfValue(h+1)) / 2))
		bf := uint32(rng.IntN(0x7f80))<<16 | 0x8000
		for d := range uint32(3) {
			sign := rng.Uint32() & (1 << 31)
			src = append(src, math.Float32frombits(sign|(middle+d-1)), math.Float32frombits(sign|(bf+d-1)))
		}
		src = append(src, random32(rng), float32(rng.NormFloat64()*math.Exp2(float64(rng.IntN(45)-28))))
	}
	bfValue := func(h uint16) float64 {
		if h == 0x7f80 {
			return 0x1p128
		}
		return float64(math.Float32frombits(uint32(h) << 16))
	}
	eachPath(t, func(t *testing.T) {
		bf, half := make([]uint16, len(src)), make([]uint16, len(src))
		BF16FromF32(bf, src)
		F16FromF32(half, src)
		for i, x := range src {
			b := math.Float32bits(x)
			sign, magnitude := uint16(b>>16&0x8000), math.Abs(float64(x))
			wantBF, wantHalf := sign|0x7f80, sign|0x7c00
			switch {
			case x != x:
				wantBF, wantHalf = uint16(b>>16)|1<<6, sign|0x7e00|uint16(b>>13&0x3ff)
			case magnitude < 65536:
				wantHalf = sign | nearest(magnitude, 0x7c00, halfValue)
				fallthrough
			case !math.IsInf(magnitude, 0):
				wantBF = sign | nearest(magnitude, 0x7f80, bfValue)
			}
			if bf[i] != wantBF {
				t.Fatalf("bf16 of %08x: %04x, want %04x", b, bf[i], wantBF)
			}
			if half[i] != wantHalf {
				t.Fatalf("f16 of %08x: %04x, want %04x", b, half[i], wantHalf)
			}
		}
	})
}

// Lengths that are no multiple of a vector, and destinations that must not be overrun.
func TestConvertLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for n := range 67 {
		wide := fill(n, func() float32 { return random32(rng) })
		narrow := fill(n, func() uint16 { return uint16(rng.Uint32()) })
		run := func(path Path) string {
			defer Force(path)()
			var out string
			for _, convert := range []func([]float32, []uint16){F32FromBF16, F32FromF16} {
				dst := make([]float32, n+1)
				convert(dst[:n], narrow)
				if dst[n] != 0 {
					t.Errorf("length %d: overrun", n)
				}
				out += string(Bytes(dst))
			}
			for _, convert := range []func([]uint16, []float32){BF16FromF32, F16FromF32} {
				dst := make([]uint16, n+1)
				convert(dst[:n], wide)
				if dst[n] != 0 {
					t.Errorf("length %d: overrun", n)
				}
				out += string(Bytes(dst))
			}
			return out
		}
		if run(Best) != run(Generic) {
			t.Errorf("length %d: other bits", n)
		}
	}
}
