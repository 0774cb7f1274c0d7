// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package kernels

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// haveAVX2 asks for F16C too: every processor with AVX2 has it, but a hypervisor may hide one of them.
var haveAVX2 = cpu.X86.HasAVX2 && hasF16C()

// hasF16C reads the processor's feature bit.
func hasF16C() bool

// rowKeys holds wordKeys as leafRowsAVX2 wants them. A vector of 32 bytes of data is two lanes of four words, which are
// multiplied as even and odd words: for each row the vectors {K0,K2,K0,K2} and {K1,K3,K1,K3} of both key sets.
var rowKeys = func() (v [rowCount][4][4]uint64) {
	for j := range v {
		for q := range 2 {
			for odd := range 2 {
				for i := range 4 {
					v[j][2*q+odd][i] = wordKeys[q][4*j+odd+2*(i&1)]
				}
			}
		}
	}
	return v
}()

// leafRowsAVX2 adds up L for whole rows; the digests are the sums of the four numbers. It prefetches 64 KiB from next
// on, at the pace at which it works; next may lie outside of any object.
//
//go:noescape
func leafRowsAVX2(data *byte, rows int, keys *[rowCount][4][4]uint64, a *[2][laneCount]uint64, next uintptr, sums *[2][4]uint64)

func leafBest(p []byte, k *laneKeys) (l [2]uint64) {
	rows := len(p) / rowBytes
	if rows > 0 {
		var sums [2][4]uint64
		data := unsafe.SliceData(p)
		next := uintptr(unsafe.Pointer(data))
		if cap(p) >= 2*LeafBytes {
			// p is cut out of a tensor with a further leaf. Otherwise the prefetch goes to p itself, which costs nothing:
			// fetching what nobody will read would double the traffic of small tensors.
			next += LeafBytes
		}
		leafRowsAVX2(data, rows, &rowKeys, &k.a, next, &sums)
		for q, s := range sums {
			l[q] = s[0] + s[1] + s[2] + s[3]
		}
	}
	if rest := p[rows*rowBytes:]; len(rest) > 0 {
		part := rowGeneric(rest, rows, k)
		l[0] += part[0]
		l[1] += part[1]
	}
	return l
}

//go:noescape
func statsF32AVX2(data *byte, blocks int, sums *[accumulators]float64, top *[8]uint32, bad *[8]uint32)

// statsF32Best takes the leading bytes that are whole blocks of 16 elements; the rest goes on with the first accumulator.
func statsF32Best(p []byte, sums *[accumulators]float64) (done int, top uint32, bad int64) {
	blocks := len(p) / 64
	if blocks == 0 {
		return 0, 0, 0
	}
	var tops, bads [8]uint32
	statsF32AVX2(unsafe.SliceData(p), blocks, sums, &tops, &bads)
	for i := range tops {
		top = max(top, tops[i])
		bad += int64(bads[i])
	}
	return blocks * 64, top, bad
}

// The vector functions below do n elements, a multiple of the vector's width; the plain loops of their callers do the rest.

//go:noescape
func addF32AVX2(dst, a, b *float32, n int)

//go:noescape
func addF64AVX2(dst, a, b *float64, n int)

//go:noescape
func addI64AVX2(dst, a, b *int64, n int)

//go:noescape
func scaleF32AVX2(dst, a *float32, n int, s float32)

//go:noescape
func scaleF64AVX2(dst, a *float64, n int, s float64)

//go:noescape
func f32FromBF16AVX2(dst *float32, src *uint16, n int)

//go:noescape
func bf16FromF32AVX2(dst *uint16, src *float32, n int)

//go:noescape
func f32FromF16AVX2(dst *float32, src *uint16, n int)

//go:noescape
func f16FromF32AVX2(dst *uint16, src *float32, n int)

func addF32Best(dst, a, b []float32) int {
	n := len(dst) &^ 7
	if n > 0 {
		addF32AVX2(&dst[0], &a[0], &b[0], n)
	}
	return n
}

func addF64Best(dst, a, b []float64) int {
	n := len(dst) &^ 3
	if n > 0 {
		addF64AVX2(&dst[0], &a[0], &b[0], n)
	}
	return n
}

func addI64Best(dst, a, b []int64) int {
	n := len(dst) &^ 3
	if n > 0 {
		addI64AVX2(&dst[0], &a[0], &b[0], n)
	}
	return n
}

func scaleF32Best(dst, a []float32, s float32) int {
	n := len(dst) &^ 7
	if n > 0 {
		scaleF32AVX2(&dst[0], &a[0], n, s)
	}
	return n
}

func scaleF64Best(dst, a []float64, s float64) int {
	n := len(dst) &^ 3
	if n > 0 {
		scaleF64AVX2(&dst[0], &a[0], n, s)
	}
	return n
}

func f32FromBF16Best(dst []float32, src []uint16) int {
	n := len(dst) &^ 7
	if n > 0 {
		f32FromBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func bf16FromF32Best(dst []uint16, src []float32) int {
	n := len(dst) &^ 15
	if n > 0 {
		bf16FromF32AVX2(&dst[0], &src[0], n)
	}
	return n
}

func f32FromF16Best(dst []float32, src []uint16) int {
	n := len(dst) &^ 7
	if n > 0 {
		f32FromF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func f16FromF32Best(dst []uint16, src []float32) int {
	n := len(dst) &^ 7
	if n > 0 {
		f16FromF32AVX2(&dst[0], &src[0], n)
	}
	return n
}

// The sums do n elements, a multiple of 16.

//go:noescape
func sum2F32AVX2(dst *float32, in *[maxOperands]*float32, n int, s float32)

//go:noescape
func sum4F32AVX2(dst *float32, in *[maxOperands]*float32, n int, s float32)

//go:noescape
func sum8F32AVX2(dst *float32, in *[maxOperands]*float32, n int, s float32)

func sumF32Best(dst []float32, in [][]float32, s float32) int {
	n := len(dst) &^ 15
	if n == 0 {
		return 0
	}
	var at [maxOperands]*float32
	for i := range in {
		at[i] = &in[i][0]
	}
	switch len(in) {
	case 2:
		sum2F32AVX2(&dst[0], &at, n, s)
	case 4:
		sum4F32AVX2(&dst[0], &at, n, s)
	default:
		sum8F32AVX2(&dst[0], &at, n, s)
	}
	return n
}

// streamAVX2 wants a destination that is aligned to 32 bytes, and a multiple of 128 bytes.
//
//go:noescape
func streamAVX2(dst, src *byte, n int)

func streamBest(dst, src []byte) int {
	const vector = 32
	if len(dst) < 2*128 {
		return 0
	}
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % vector)
	n := (len(dst) - head) &^ 127
	copy(dst[:head], src[:head])
	streamAVX2(&dst[head], &src[head], n)
	return head + n
}
