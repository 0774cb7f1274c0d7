// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// sums is the oracle: a tree of AddF32, then ScaleF32, both in plain Go.
func sums(in [][]float32, s float32) []float32 {
	defer Force(Generic)()
	n := len(in[0])
	for len(in) > 1 {
		var next [][]float32
		for k := 0; k < len(in); k += 2 {
			sum := make([]float32, n)
			AddF32(sum, in[k], in[k+1])
			next = append(next, sum)
		}
		in = next
	}
	out := make([]float32, n)
	ScaleF32(out, in[0], s)
	return out
}

// TestSumIsAddsAndAScale at odd addresses, in place of every operand, on both paths, with NaN, zeros and denormals.
func TestSumIsAddsAndAScale(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	sizes := []int{1000, 4099}
	for n := range 70 {
		sizes = append(sizes, n)
	}
	for _, operands := range []int{2, 4, 8} {
		for _, n := range sizes {
			in := make([][]float32, operands)
			for k := range in {
				in[k] = fill(n, func() float32 { return random32(rng) })
			}
			for _, s := range []float32{1, float32(1) / 3, 0, random32(rng)} {
				want := Bytes(sums(in, s))
				for place := -1; place < operands; place++ {
					eachPath(t, func(t *testing.T) {
						copies := make([][]float32, operands)
						for k := range in {
							shift := rng.IntN(5)
							copies[k] = append(make([]float32, shift), in[k]...)[shift:]
						}
						room := make([]float32, n+5)
						dst := room[2 : 2+n]
						if place >= 0 {
							dst = copies[place]
						}
						SumF32(dst, copies, s)
						if !bytes.Equal(Bytes(dst), want) {
							t.Errorf("sum of %d operands of %d elements in place of %d, scaled by %g: other bits", operands, n, place, s)
						}
						for k := range in {
							if k != place && !bytes.Equal(Bytes(copies[k]), Bytes(in[k])) {
								t.Errorf("sum of %d: operand %d was written", operands, k)
							}
						}
						for _, i := range []int{0, 1, n + 2, n + 3, n + 4} {
							if room[i] != 0 {
								t.Errorf("sum of %d elements: wrote outside of the destination", n)
							}
						}
					})
				}
			}
		}
	}
}

// TestSumKeepsZeros: −0 is only the sum of zeros that are all −0, and a product with 1 changes nothing.
func TestSumKeepsZeros(t *testing.T) {
	minus := float32(math.Copysign(0, -1))
	eachPath(t, func(t *testing.T) {
		for plus := range 5 {
			in := make([][]float32, 4)
			for k := range in {
				in[k] = make([]float32, 16)
				for i := range in[k] {
					if in[k][i] = minus; k == plus {
						in[k][i] = 0
					}
				}
			}
			dst := make([]float32, 16)
			SumF32(dst, in, 1)
			if math.Signbit(float64(dst[3])) != (plus == 4) {
				t.Errorf("operand %d is +0, the sum is %g", plus, dst[3])
			}
		}
	})
}

func TestSumRefuses(t *testing.T) {
	long, short := make([]float32, 8), make([]float32, 7)
	for name, in := range map[string][][]float32{"three": {long, long, long}, "none": nil, "short": {long, short}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			SumF32(make([]float32, 8), in, 1)
		}()
	}
}

func TestStreamCopies(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, n := range []int{0, 1, 31, 127, 128, 255, 256, 257, 300, 511, 4096, 100_003} {
		for shift := range 40 {
			src := fill(n+shift, func() byte { return byte(rng.Uint32()) })[shift:]
			eachPath(t, func(t *testing.T) {
				at := rng.IntN(64)
				room := make([]byte, n+128)
				Stream(room[at:at+n], src)
				if !bytes.Equal(room[at:at+n], src) {
					t.Fatalf("%d bytes from %d to %d: differ", n, shift, at)
				}
				if bytes.Count(room[:at], []byte{0}) != at || bytes.Count(room[at+n:], []byte{0}) != 128-at {
					t.Fatalf("%d bytes to %d: wrote outside of the destination", n, at)
				}
			})
		}
	}
}

// BenchmarkSum compares one pass with pairwise adds through scratch in the cache.
func BenchmarkSum(b *testing.B) {
	const n = 4 << 20
	for _, operands := range []int{2, 4, 8} {
		in := make([][]float32, operands)
		for k := range in {
			in[k] = fill(n, func() float32 { return 1 })
		}
		dst := make([]float32, n)
		b.Run(fmt.Sprint(operands), func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				SumF32(dst, in, 0.5)
			}
		})
	}
	src, dst := make([]byte, 4*n), make([]byte, 4*n)
	b.Run("stream", func(b *testing.B) {
		b.SetBytes(4 * n)
		for b.Loop() {
			for at := 0; at < 4*n; at += 128 << 10 {
				Stream(dst[at:at+128<<10], src[at:at+128<<10])
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(4 * n)
		for b.Loop() {
			for at := 0; at < 4*n; at += 128 << 10 {
				copy(dst[at:at+128<<10], src[at:at+128<<10])
			}
		}
	})
}
