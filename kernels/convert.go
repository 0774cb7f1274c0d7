// SPDX-License-Identifier: Apache-2.0

package kernels

import "math"

// F32FromBF16 widens bfloat16 bits; exact, NaN payloads and signalling NaN included. It panics when src is shorter than
// dst; the same holds for the other conversions.
func F32FromBF16(dst []float32, src []uint16) {
	checkLen(len(dst), len(src))
	done := 0
	if best() {
		done = f32FromBF16Best(dst, src)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = math.Float32frombits(uint32(src[i]) << 16)
	}
}

// BF16FromF32 rounds to the nearest bfloat16, ties to even; what is too large becomes infinite. A NaN keeps its sign and
// the upper seven bits of its payload and becomes quiet.
func BF16FromF32(dst []uint16, src []float32) {
	checkLen(len(dst), len(src))
	done := 0
	if best() {
		done = bf16FromF32Best(dst, src)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = bf16FromF32(math.Float32bits(src[i]))
	}
}

// F32FromF16 widens IEEE half precision bits; exact, denormals included. A NaN keeps sign and payload and becomes quiet.
func F32FromF16(dst []float32, src []uint16) {
	checkLen(len(dst), len(src))
	done := 0
	if best() {
		done = f32FromF16Best(dst, src)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = math.Float32frombits(f32FromF16(src[i]))
	}
}

// F16FromF32 rounds to the nearest half precision number, ties to even, into the denormals; what is too large becomes
// infinite. A NaN keeps its sign and the upper ten bits of its payload and becomes quiet.
func F16FromF32(dst []uint16, src []float32) {
	checkLen(len(dst), len(src))
	done := 0
	if best() {
		done = f16FromF32Best(dst, src)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = f16FromF32(math.Float32bits(src[i]))
	}
}

func bf16FromF32(b uint32) uint16 {
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 1<<6
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func f32FromF16(h uint16) uint32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h) >> 10 & 31
	fraction := uint32(h) & 0x3ff
	switch {
	case exponent == 31 && fraction != 0:
		return sign | 0x7fc00000 | fraction<<13
	case exponent == 31:
		return sign | 0x7f800000
	case exponent == 0:
		// fraction · 2^-24 is exact, zero included.
		return sign | math.Float32bits(float32(fraction)*0x1p-24)
	}
	return sign | (exponent+112)<<23 | fraction<<13
}

func f16FromF32(b uint32) uint16 {
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x47800000: // 2^16 and more
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: a denormal
		// Adding 0.5 puts the unit of 2^-24 at the last bit of the sum, which rounds to nearest even.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	// Rounding may carry into the exponent, and from the largest exponent into infinity, as it should.
	return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
}
