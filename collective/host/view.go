// SPDX-License-Identifier: Apache-2.0

package host

import (
	"unsafe"

	"phalanx/kernels"
)

// Offsets and lengths are checked before anything is viewed: in Op.check for the own segment, in peerFits for others.

func f32s(b []byte) []float32 { return kernels.F32s(b) }
func f64s(b []byte) []float64 { return kernels.F64s(b) }
func i64s(b []byte) []int64   { return kernels.I64s(b) }
func u16s(b []byte) []uint16  { return kernels.U16s(b) }

// u64s views shared words. The caller has checked the alignment.
func u64s(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

func aligned8(b []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0 }
