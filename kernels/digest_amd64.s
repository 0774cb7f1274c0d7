// SPDX-License-Identifier: Apache-2.0

//go:build !purego

#include "textflag.h"

// func hasF16C() bool
TEXT ·hasF16C(SB), NOSPLIT, $0-1
	MOVL $1, AX
	XORL CX, CX
	CPUID
	SHRL $29, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET

// One vector of data, two lanes: its even words are multiplied in place (VPMULUDQ reads the low halves), its odd words
// after a shift. Y8, Y9 are the even and odd keys of the first key set, Y10, Y11 of the second.
#define WORDS(off, acc0, acc1) \
	VMOVDQU  off(R9), Y12      \
	VPSRLQ   $32, Y12, Y13     \
	VPMULUDQ Y8, Y12, Y14      \
	VPMULUDQ Y10, Y12, Y15     \
	VPADDQ   Y14, acc0, acc0   \
	VPADDQ   Y15, acc1, acc1   \
	VPMULUDQ Y9, Y13, Y14      \
	VPMULUDQ Y11, Y13, Y15     \
	VPADDQ   Y14, acc0, acc0   \
	VPADDQ   Y15, acc1, acc1

// Four lanes of one key set: the two halves of each S are added up, S is multiplied by A mod 2^64 out of 32-bit
// products, and goes to the sums. After unpacking the order of lanes is 0, 2, 1, 3; VPERMQ puts it right.
#define FOLD(acc0, acc1, aoff, soff) \
	VPUNPCKLQDQ acc1, acc0, Y8        \
	VPUNPCKHQDQ acc1, acc0, Y9        \
	VPADDQ      Y8, Y9, Y8            \
	VPERMQ      $0xd8, Y8, Y8         \
	VMOVDQU     aoff(R11), Y9         \
	VPSRLQ      $32, Y8, Y10          \
	VPSRLQ      $32, Y9, Y11          \
	VPMULUDQ    Y9, Y10, Y10          \
	VPMULUDQ    Y8, Y11, Y11          \
	VPADDQ      Y10, Y11, Y10         \
	VPSLLQ      $32, Y10, Y10         \
	VPMULUDQ    Y8, Y9, Y8            \
	VPADDQ      Y8, Y10, Y8           \
	VPADDQ      soff(R12), Y8, Y8     \
	VMOVDQU     Y8, soff(R12)

// func leafRowsAVX2(data *byte, rows int, keys *[16][4][4]uint64, a *[2][256]uint64, next uintptr, sums *[2][4]uint64)
//
// 32 groups of eight lanes (128 bytes of each row, whole cache lines when aligned). A group walks down the rows with its
// eight accumulators in registers: Y0..Y3 for the first key set, Y4..Y7 for the second. The stride of a row maps all
// rows to the same sets of the first-level cache, so the next leaf is prefetched to the second level, in address order.
TEXT ·leafRowsAVX2(SB), NOSPLIT, $0-48
	MOVQ data+0(FP), SI
	MOVQ rows+8(FP), DX
	MOVQ keys+16(FP), DI
	MOVQ a+24(FP), R11
	MOVQ next+32(FP), R13
	MOVQ sums+40(FP), R12
	MOVQ $32, CX

group:
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	VPXOR Y4, Y4, Y4
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	MOVQ  SI, R9
	MOVQ  DI, R10
	MOVQ  DX, R8

row:
	VMOVDQU    (R10), Y8
	VMOVDQU    32(R10), Y9
	VMOVDQU    64(R10), Y10
	VMOVDQU    96(R10), Y11
	PREFETCHT1 (R13)
	PREFETCHT1 64(R13)
	WORDS(0, Y0, Y4)
	WORDS(32, Y1, Y5)
	WORDS(64, Y2, Y6)
	WORDS(96, Y3, Y7)
	ADDQ       $4096, R9
	ADDQ       $128, R10
	ADDQ       $128, R13
	DECQ       R8
	JNZ        row

	FOLD(Y0, Y1, 0, 0)
	FOLD(Y2, Y3, 32, 0)
	FOLD(Y4, Y5, 2048, 32)
	FOLD(Y6, Y7, 2080, 32)
	ADDQ $128, SI
	ADDQ $64, R11
	DECQ CX
	JNZ  group

	VZEROUPPER
	RET

// Eight floats: Y8 their bits; doubles squared into two accumulators; magnitudes into Y4, non-finite counts into Y5.
#define SQUARES(off, acc0, acc1) \
	VCVTPS2PD off(SI), Y8          \
	VCVTPS2PD (off+16)(SI), Y9     \
	VPAND     off(SI), Y6, Y10     \
	VMULPD    Y8, Y8, Y8           \
	VMULPD    Y9, Y9, Y9           \
	VPMAXUD   Y10, Y4, Y4          \
	VPCMPGTD  Y7, Y10, Y10         \
	VADDPD    Y8, acc0, acc0       \
	VADDPD    Y9, acc1, acc1       \
	VPSUBD    Y10, Y5, Y5

// func statsF32AVX2(data *byte, blocks int, sums *[16]float64, top *[8]uint32, bad *[8]uint32)
TEXT ·statsF32AVX2(SB), NOSPLIT, $0-40
	MOVQ data+0(FP), SI
	MOVQ blocks+8(FP), CX
	MOVQ sums+16(FP), DI
	MOVQ top+24(FP), R8
	MOVQ bad+32(FP), R9

	VMOVUPD      (DI), Y0
	VMOVUPD      32(DI), Y1
	VMOVUPD      64(DI), Y2
	VMOVUPD      96(DI), Y3
	VPXOR        Y4, Y4, Y4
	VPXOR        Y5, Y5, Y5
	MOVL         $0x7fffffff, AX
	VMOVD        AX, X6
	VPBROADCASTD X6, Y6
	MOVL         $0x7f7fffff, AX
	VMOVD        AX, X7
	VPBROADCASTD X7, Y7

block:
	SQUARES(0, Y0, Y1)
	SQUARES(32, Y2, Y3)
	ADDQ $64, SI
	DECQ CX
	JNZ  block

	VMOVUPD Y0, (DI)
	VMOVUPD Y1, 32(DI)
	VMOVUPD Y2, 64(DI)
	VMOVUPD Y3, 96(DI)
	VMOVDQU Y4, (R8)
	VMOVDQU Y5, (R9)
	VZEROUPPER
	RET
