// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"fmt"
	"unsafe"
)

// Number is an element that can be viewed as bytes.
type Number interface {
	~float32 | ~float64 | ~int64 | ~int32 | ~int16 | ~int8 | ~uint64 | ~uint32 | ~uint16 | ~uint8
}

// F32s views bytes as float32 without copying. It panics unless b is aligned to 4 bytes and a multiple of 4 long; check
// lengths that come from outside first.
func F32s(b []byte) []float32 { return view[float32](b) }

// F64s views bytes as float64 without copying. It panics unless b is aligned to 8 bytes and a multiple of 8 long.
func F64s(b []byte) []float64 { return view[float64](b) }

// I64s views bytes as int64 without copying. It panics unless b is aligned to 8 bytes and a multiple of 8 long.
func I64s(b []byte) []int64 { return view[int64](b) }

// U16s views bytes as uint16 (the bits of a float16 or bfloat16) without copying. It panics unless b is aligned to 2
// bytes and a multiple of 2 long.
func U16s(b []byte) []uint16 { return view[uint16](b) }

// View views bytes as numbers without copying. It panics unless b is aligned to their size and a multiple of it long.
func View[T Number](b []byte) []T { return view[T](b) }

// Bytes views numbers as their bytes without copying.
func Bytes[T Number](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

func view[T Number](b []byte) []T {
	size := unsafe.Sizeof(*new(T))
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(len(b))%size != 0 || uintptr(p)%size != 0 && len(b) > 0 {
		panic(fmt.Sprintf("kernels: view of %d bytes at address %% %d = %d as elements of %d bytes",
			len(b), size, uintptr(p)%size, size))
	}
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(p), uintptr(len(b))/size)
}
