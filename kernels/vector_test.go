// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// special32 and special64 are the numbers where implementations differ: zeros, denormals, edges, infinities, NaN quiet
// and signalling with payloads of both signs.
var special32 = []uint32{
	0, 1 << 31, 1, 0x80000001, 0x007fffff, 0x00800000, 0x3f800000, 0xbf800000, 0x3f800001, 0x7f7fffff, 0xff7fffff,
	0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7fc12345, 0xffd54321, 0x7f800001, 0xff812345, 0x7fbfffff,
	0x33800000, 0x387fe000, 0x38800000, 0x477fe000, 0x477ff000, 0x477fefff, 0x47800000, 0x3f808000, 0x3f818000, 0x7f7f8000,
}

var special64 = []uint64{
	0, 1 << 63, 1, 1<<63 | 1, 0x000fffffffffffff, 0x0010000000000000, 0x3ff0000000000000, 0xbff0000000000000,
	0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000,
	0xfff8000000000000, 0x7ff8000000012345, 0xfffa000000054321, 0x7ff0000000000001, 0xfff0000000012345,
}

func random32(rng *rand.Rand) float32 {
	switch rng.IntN(4) {
	case 0:
		return math.Float32frombits(special32[rng.IntN(len(special32))])
	case 1:
		return math.Float32frombits(rng.Uint32())
	}
	return float32(rng.NormFloat64())
}

func random64(rng *rand.Rand) float64 {
	switch rng.IntN(4) {
	case 0:
		return math.Float64frombits(special64[rng.IntN(len(special64))])
	case 1:
		return math.Float64frombits(rng.Uint64())
	}
	return rng.NormFloat64()
}

func fill[T any](n int, next func() T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = next()
	}
	return s
}

// wantNaN32 is the documented rule in integers.
func wantNaN32(a, b uint32) (uint32, bool) {
	isNaN := func(x uint32) bool { return x&^(1<<31) > 0x7f800000 }
	switch {
	case isNaN(a):
		return a | 1<<22, true
	case isNaN(b):
		return b | 1<<22, true
	}
	return 0, false
}

func TestNaNRule(t *testing.T) {
	var a, b []float32
	for _, x := range special32 {
		for _, y := range special32 {
			a, b = append(a, math.Float32frombits(x)), append(b, math.Float32frombits(y))
		}
	}
	eachPath(t, func(t *testing.T) {
		sum, product := make([]float32, len(a)), make([]float32, 1)
		AddF32(sum, a, b)
		for i := range a {
			x, y := math.Float32bits(a[i]), math.Float32bits(b[i])
			eight := slices.Repeat([]float32{a[i]}, 8) // a whole vector
			product = slices.Grow(product[:0], 8)[:8]
			ScaleF32(product, eight, b[i])
			wantSum, ok := wantNaN32(x, y)
			wantProduct := wantSum
			if !ok {
				wantSum, wantProduct = math.Float32bits(a[i]+b[i]), math.Float32bits(a[i]*b[i])
				if a[i]+b[i] != a[i]+b[i] {
					wantSum = invalidF32
				}
				if a[i]*b[i] != a[i]*b[i] {
					wantProduct = invalidF32
				}
			}
			if got := math.Float32bits(sum[i]); got != wantSum {
				t.Errorf("%08x + %08x = %08x, want %08x", x, y, got, wantSum)
			}
			if got := math.Float32bits(product[3]); got != wantProduct {
				t.Errorf("%08x · %08x = %08x, want %08x", x, y, got, wantProduct)
			}
		}
	})
}

// same runs an operation on both paths, at odd addresses, in place too, and compares bits.
func same[T Number](t *testing.T, name string, n int, a, b []T, op func(dst, a, b []T)) {
	t.Helper()
	run := func(path Path, shift int, alias int) []byte {
		defer Force(path)()
		x := append(make([]T, shift, shift+n), a...)[shift:]
		y := append(make([]T, shift+1, shift+1+n), b...)[shift+1:]
		room := make([]T, n+shift+3)
		dst := room[shift+2 : shift+2+n]
		switch alias {
		case 1:
			dst = x
		case 2:
			dst = y
		}
		op(dst, x, y)
		for i, v := range room[:shift+2] {
			if v != 0 {
				t.Errorf("%s of %d: wrote before the destination at %d", name, n, i)
			}
		}
		if room[n+shift+2] != 0 {
			t.Errorf("%s of %d: wrote behind the destination", name, n)
		}
		if alias != 1 && string(Bytes(x)) != string(Bytes(a)) || alias != 2 && string(Bytes(y)) != string(Bytes(b)) {
			t.Errorf("%s of %d: wrote to an operand", name, n)
		}
		return Bytes(dst)
	}
	want := string(run(Generic, 0, 0))
	for shift := range 4 {
		for alias := range 3 {
			for _, path := range []Path{Generic, Best} {
				if string(run(path, shift, alias)) != want {
					t.Errorf("%s of %d, shift %d, alias %d, path %d: other bits", name, n, shift, alias, path)
				}
			}
		}
	}
}

func TestVectorPathsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	sizes := []int{1000, 4097}
	for n := range 70 {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		f32 := func() float32 { return random32(rng) }
		f64 := func() float64 { return random64(rng) }
		i64 := func() int64 { return int64(rng.Uint64()) }
		same(t, "AddF32", n, fill(n, f32), fill(n, f32), AddF32)
		same(t, "AddF64", n, fill(n, f64), fill(n, f64), AddF64)
		same(t, "AddI64", n, fill(n, i64), fill(n, i64), AddI64)
		s32, s64 := f32(), f64()
		same(t, "ScaleF32", n, fill(n, f32), fill(n, f32), func(dst, a, b []float32) {
			if n > 0 && &dst[0] == &b[0] {
				copy(b, a) // scales have one operand
				a = b
			}
			ScaleF32(dst, a, s32)
		})
		same(t, "ScaleF64", n, fill(n, f64), fill(n, f64), func(dst, a, b []float64) {
			if n > 0 && &dst[0] == &b[0] {
				copy(b, a)
				a = b
			}
			ScaleF64(dst, a, s64)
		})
	}
}

func TestAddI64Wraps(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dst := make([]int64, 5)
		AddI64(dst, slices.Repeat([]int64{math.MaxInt64}, 5), slices.Repeat([]int64{1}, 5))
		if !slices.Equal(dst, slices.Repeat([]int64{math.MinInt64}, 5)) {
			t.Errorf("%d", dst)
		}
	})
}

func TestShortOperandPanics(t *testing.T) {
	four, three := make([]float32, 4), make([]float32, 3)
	for name, call := range map[string]func(){
		"AddF32 a":    func() { AddF32(four, three, four) },
		"AddF32 b":    func() { AddF32(four, four, three) },
		"ScaleF32":    func() { ScaleF32(four, three, 1) },
		"F32FromBF16": func() { F32FromBF16(four, make([]uint16, 3)) },
		"F32s length": func() { F32s(make([]byte, 6)) },
		"F32s align":  func() { F32s(unaligned(make([]byte, 8), 2)) },
		"F64s align":  func() { F64s(unaligned(make([]byte, 8), 4)) },
		"U16s align":  func() { U16s(unaligned(make([]byte, 8), 1)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
}

func TestViews(t *testing.T) {
	x := []float32{1, 2, 3}
	b := Bytes(x)
	if len(b) != 12 || b[3] != 0x3f {
		t.Fatalf("bytes % x", b)
	}
	F32s(b)[1] = 5
	if x[1] != 5 {
		t.Error("the view is a copy")
	}
	if len(U16s(b)) != 6 || len(F64s(Bytes([]int64{1, 2}))) != 2 || I64s(Bytes([]float64{0}))[0] != 0 {
		t.Error("wrong lengths")
	}
	if len(F64s(nil)) != 0 || len(F32s(b[1:1])) != 0 || len(Bytes[float32](nil)) != 0 {
		t.Error("empty views")
	}
}

func BenchmarkAddF32(b *testing.B) {
	const n = 1 << 14 // 64 KiB: three of them stay in the second-level cache
	x, y, dst := make([]float32, n), make([]float32, n), make([]float32, n)
	for name, path := range map[string]Path{"best": Best, "generic": Generic} {
		b.Run(name, func(b *testing.B) {
			defer Force(path)()
			b.SetBytes(4 * n)
			for b.Loop() {
				AddF32(dst, x, y)
			}
		})
	}
}
