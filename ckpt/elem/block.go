// SPDX-License-Identifier: Apache-2.0

package elem

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"phalanx"
)

// tables has the numbers of all patterns of the formats of 8 bits, made when they are first needed.
var tables = sync.OnceValue(func() map[string]*[256]float64 {
	all := map[string]*[256]float64{"f8_e8m0fnu": {}}
	for i := range 256 {
		all["f8_e8m0fnu"][i] = decodeE8M0(uint64(i))
	}
	for dtype, f := range formatsOf {
		if phalanx.DTypeSize(dtype) == 1 {
			all[dtype] = &[256]float64{}
			for i := range 256 {
				all[dtype][i] = f.decode(uint64(i))
			}
		}
	}
	return all
})

// Values is how many numbers an element of a dtype has: 2 for complex ones, 0 for an unknown dtype, else 1.
func Values(dtype string) int {
	switch {
	case dtype == "c64" || dtype == "c128":
		return 2
	case phalanx.DTypeSize(dtype) > 0:
		return 1
	}
	return 0
}

// part is the dtype of the numbers in an element: of complex ones that of their two parts.
func part(dtype string) string {
	switch dtype {
	case "c64":
		return "f32"
	case "c128":
		return "f64"
	}
	return dtype
}

// Decode takes the numbers out of whole elements: Values for each of them. dst must have room for them. It is exact, but for
// i64 and u64 beyond 2^53, which are rounded to the nearest float64.
func Decode(dst []float64, dtype string, src []byte) error {
	size := phalanx.DTypeSize(dtype)
	if size == 0 || len(src)%size != 0 || len(dst) != len(src)/size*Values(dtype) {
		return fmt.Errorf("decode: %d bytes of %q into %d numbers", len(src), dtype, len(dst))
	}
	switch dtype = part(dtype); dtype {
	case "f64":
		for i := range dst {
			dst[i] = math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:]))
		}
	case "f32":
		for i := range dst {
			dst[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case "bf16":
		for i := range dst {
			dst[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16))
		}
	case "f16":
		for i := range dst {
			dst[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case "i8", "i16", "i32", "i64":
		for i := range dst {
			dst[i] = float64(signed(src, i, size))
		}
	case "u8", "u16", "u32", "u64":
		for i := range dst {
			dst[i] = float64(unsigned(src, i, size))
		}
	case "bool":
		for i := range dst {
			dst[i] = 0
			if src[i] != 0 {
				dst[i] = 1
			}
		}
	default:
		table := tables()[dtype]
		for i := range dst {
			dst[i] = table[src[i]]
		}
	}
	return nil
}

// fromF16 is f16.decode by putting the bits into their places in a float32.
func fromF16(pattern uint16) float64 {
	sign, a := uint32(pattern&0x8000)<<16, uint32(pattern&0x7fff)
	switch {
	case a >= 0x7c00: // infinity, NaN
		return float64(math.Float32frombits(sign | 0x7f800000 | a<<13))
	case a >= 0x0400:
		return float64(math.Float32frombits(sign | (a<<13 + (127-15)<<23)))
	case sign != 0:
		return -float64(a) * 0x1p-24
	}
	return float64(a) * 0x1p-24
}

// signed takes integer i of size bytes out of src.
func signed(src []byte, i, size int) int64 {
	switch size {
	case 1:
		return int64(int8(src[i]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(src[2*i:])))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(src[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(src[8*i:]))
}

func unsigned(src []byte, i, size int) uint64 {
	switch size {
	case 1:
		return uint64(src[i])
	case 2:
		return uint64(binary.LittleEndian.Uint16(src[2*i:]))
	case 4:
		return uint64(binary.LittleEndian.Uint32(src[4*i:]))
	}
	return binary.LittleEndian.Uint64(src[8*i:])
}

// encode puts numbers into the bytes of a floating-point dtype that is no complex one, and returns how many were lost.
func encode(dst []byte, dtype string, src []float64) (lost int64) {
	switch dtype {
	case "f64":
		for i, x := range src {
			binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(x))
		}
	case "f32":
		for i, x := range src {
			y := float32(x)
			if math.IsInf(float64(y), 0) && !math.IsInf(x, 0) {
				lost++
			}
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(y))
		}
	case "f8_e8m0fnu":
		for i, x := range src {
			pattern, gone := encodeE8M0(x)
			dst[i] = byte(pattern)
			lost += count(gone)
		}
	default:
		f := formatsOf[dtype]
		two := phalanx.DTypeSize(dtype) == 2
		for i, x := range src {
			pattern, gone := f.encode(x)
			lost += count(gone)
			if two {
				binary.LittleEndian.PutUint16(dst[2*i:], uint16(pattern))
			} else {
				dst[i] = byte(pattern)
			}
		}
	}
	return lost
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
