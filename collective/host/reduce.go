// SPDX-License-Identifier: Apache-2.0

package host

import (
	"phalanx/kernels"
)

// reduce evaluates a fold with any reduction and type: what the sums of gradients do not need, as plain loops.
func (a *arithmetic) reduce(f *fold, d DType, in, out [][]byte, mode foldMode) {
	r := mode.reduction
	switch d {
	case F32:
		reduceAs(a, f, in, out, ordered[float32](r))
	case F64:
		reduceAs(a, f, in, out, ordered[float64](r))
	case BF16, F16:
		a.f32 = grow(a.f32, f.scratch)
		narrow := kernels.BF16FromF32
		if d == F16 {
			narrow = kernels.F16FromF32
		}
		a.widened(f, d, in, ordered[float32](r), func(i, off int, v []float32) { narrow(u16s(out[i])[off:off+len(v)], v) })
	case Bool:
		truth(a, f, in, out, r)
	case I64:
		reduceAs(a, f, in, out, whole[int64](r))
	case I32:
		reduceAs(a, f, in, out, whole[int32](r))
	case I16:
		reduceAs(a, f, in, out, whole[int16](r))
	case I8:
		reduceAs(a, f, in, out, whole[int8](r))
	case U64:
		reduceAs(a, f, in, out, whole[uint64](r))
	case U32:
		reduceAs(a, f, in, out, whole[uint32](r))
	case U16:
		reduceAs(a, f, in, out, whole[uint16](r))
	case U8:
		reduceAs(a, f, in, out, whole[uint8](r))
	}
}

func reduceAs[T kernels.Number](a *arithmetic, f *fold, in, out [][]byte, two func(dst, a, b []T)) {
	evaluate(f, kernels.View[T], in, scratchOf[T](a, f.scratch), two, nil, func(i, off int, v []T) {
		copy(kernels.View[T](out[i])[off:], v)
	})
}

// truth is reduceAs for Bool, whose bytes may be any.
func truth(a *arithmetic, f *fold, in, out [][]byte, r Reduction) {
	two := func(x, y uint8) bool { return x|y != 0 }
	switch r {
	case Product, Min, BAnd:
		two = func(x, y uint8) bool { return x != 0 && y != 0 }
	case BXor:
		two = func(x, y uint8) bool { return (x != 0) != (y != 0) }
	default: // Sum, Max, BOr
	}
	bit := func(b bool) uint8 {
		if b {
			return 1
		}
		return 0
	}
	evaluate(f, kernels.View[uint8], in, scratchOf[uint8](a, f.scratch), func(dst, x, y []uint8) {
		for i := range dst {
			dst[i] = bit(two(x[i], y[i]))
		}
	}, nil, func(i, off int, v []uint8) {
		for k, x := range v {
			out[i][off+k] = bit(x != 0)
		}
	})
}

// scratchOf returns registers of a type.
func scratchOf[T kernels.Number](a *arithmetic, registers int) [][]T {
	a.words = grow(a.words, registers)
	out := make([][]T, registers)
	for i := range out {
		out[i] = kernels.View[T](kernels.Bytes(a.words[i]))[:foldBlock]
	}
	return out
}

// ordered is a reduction of floating point numbers, other than BAnd, BOr and BXor.
func ordered[T float32 | float64](r Reduction) func(dst, a, b []T) {
	switch r {
	case Product:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] * b[i]
			}
		}
	case Min:
		return func(dst, a, b []T) {
			for i := range dst {
				x, y := a[i], b[i]
				if y < x || y != y { //nolint:gocritic // only what is not a number differs from itself
					x = y
				}
				dst[i] = x
			}
		}
	case Max:
		return func(dst, a, b []T) {
			for i := range dst {
				x, y := a[i], b[i]
				if y > x || y != y { //nolint:gocritic // as above
					x = y
				}
				dst[i] = x
			}
		}
	default:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] + b[i]
			}
		}
	}
}

// whole is a reduction of integers.
func whole[T int64 | int32 | int16 | int8 | uint64 | uint32 | uint16 | uint8](r Reduction) func(dst, a, b []T) {
	switch r {
	case Product:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] * b[i]
			}
		}
	case Min:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = min(a[i], b[i])
			}
		}
	case Max:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = max(a[i], b[i])
			}
		}
	case BAnd:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] & b[i]
			}
		}
	case BOr:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] | b[i]
			}
		}
	case BXor:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] ^ b[i]
			}
		}
	default:
		return func(dst, a, b []T) {
			for i := range dst {
				dst[i] = a[i] + b[i]
			}
		}
	}
}
