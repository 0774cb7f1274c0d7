// SPDX-License-Identifier: Apache-2.0

package kernels

import "math"

// The negative quiet NaN without payload: what an invalid operation gives.
const (
	invalidF32 = 0xffc00000
	invalidF64 = 0xfff8000000000000
)

// checkLen panics when an operand is shorter than the destination: a mistake of the caller, as an index out of range is.
func checkLen(dst int, operands ...int) {
	for _, n := range operands {
		if n < dst {
			panic("kernels: operand shorter than destination")
		}
	}
}

// AddF32 sets dst[i] = a[i] + b[i] for all of dst. dst may be a or b themselves, but must not overlap them otherwise. It
// panics when a or b is shorter than dst. For NaN see doc.go; a is the first operand.
func AddF32(dst, a, b []float32) {
	checkLen(len(dst), len(a), len(b))
	done := 0
	if best() {
		done = addF32Best(dst, a, b)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = addF32(a[i], b[i])
	}
}

// AddF64 is [AddF32] for float64.
func AddF64(dst, a, b []float64) {
	checkLen(len(dst), len(a), len(b))
	done := 0
	if best() {
		done = addF64Best(dst, a, b)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = addF64(a[i], b[i])
	}
}

// AddI64 is [AddF32] for int64, modulo 2^64.
func AddI64(dst, a, b []int64) {
	checkLen(len(dst), len(a), len(b))
	done := 0
	if best() {
		done = addI64Best(dst, a, b)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = a[i] + b[i]
	}
}

// ScaleF32 sets dst[i] = a[i] · s for all of dst. dst may be a itself, but must not overlap it otherwise. It panics when a
// is shorter than dst. For NaN see doc.go; a is the first operand.
func ScaleF32(dst, a []float32, s float32) {
	checkLen(len(dst), len(a))
	done := 0
	if best() {
		done = scaleF32Best(dst, a, s)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = scaleF32(a[i], s)
	}
}

// ScaleF64 is [ScaleF32] for float64.
func ScaleF64(dst, a []float64, s float64) {
	checkLen(len(dst), len(a))
	done := 0
	if best() {
		done = scaleF64Best(dst, a, s)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = scaleF64(a[i], s)
	}
}

// The scalar forms decide NaN themselves: a compiler may swap the operands of + and ·, and then another NaN survives.

func addF32(a, b float32) float32 {
	if c := a + b; c == c {
		return c
	}
	return nanF32(a, b)
}

func scaleF32(a, b float32) float32 {
	if c := float32(a * b); c == c {
		return c
	}
	return nanF32(a, b)
}

func nanF32(a, b float32) float32 {
	bits := uint32(invalidF32)
	switch {
	case a != a:
		bits = math.Float32bits(a) | 1<<22
	case b != b:
		bits = math.Float32bits(b) | 1<<22
	}
	return math.Float32frombits(bits)
}

func addF64(a, b float64) float64 {
	if c := a + b; c == c {
		return c
	}
	return nanF64(a, b)
}

func scaleF64(a, b float64) float64 {
	if c := float64(a * b); c == c {
		return c
	}
	return nanF64(a, b)
}

func nanF64(a, b float64) float64 {
	bits := uint64(invalidF64)
	switch {
	case a != a:
		bits = math.Float64bits(a) | 1<<51
	case b != b:
		bits = math.Float64bits(b) | 1<<51
	}
	return math.Float64frombits(bits)
}
