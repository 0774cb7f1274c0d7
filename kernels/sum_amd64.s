// SPDX-License-Identifier: Apache-2.0

//go:build !purego

#include "textflag.h"

// As in vector_amd64.s the first source of an instruction is written second, and is the NaN that survives: a sum's left
// operand stands there.

// LOAD2, LOAD4 and LOAD8 fetch the operands' addresses; the sums take 64 bytes of each in a turn, into Y0 and Y1.
#define LOAD2 \
	MOVQ 0(BX), SI  \
	MOVQ 8(BX), DX

#define LOAD4 \
	LOAD2           \
	MOVQ 16(BX), R8 \
	MOVQ 24(BX), R9

#define LOAD8 \
	LOAD4            \
	MOVQ 32(BX), R10 \
	MOVQ 40(BX), R11 \
	MOVQ 48(BX), R12 \
	MOVQ 56(BX), R13

// PAIR sets x and y to the two vectors of a + b.
#define PAIR(a, b, x, y) \
	VMOVUPS (a)(AX*1), x       \
	VMOVUPS 32(a)(AX*1), y     \
	VADDPS  (b)(AX*1), x, x    \
	VADDPS  32(b)(AX*1), y, y

#define QUAD(a, b, c, d, x, y, u, v) \
	PAIR(a, b, x, y)  \
	PAIR(c, d, u, v)  \
	VADDPS u, x, x    \
	VADDPS v, y, y

// SUM runs one of the above over n elements, a multiple of 16, and multiplies by s.
#define ENTER \
	MOVQ         dst+0(FP), DI \
	MOVQ         in+8(FP), BX  \
	MOVQ         n+16(FP), CX  \
	SHLQ         $2, CX        \
	VBROADCASTSS s+24(FP), Y8  \
	XORQ         AX, AX

#define STORE \
	VMULPS  Y8, Y0, Y0         \
	VMULPS  Y8, Y1, Y1         \
	VMOVUPS Y0, (DI)(AX*1)     \
	VMOVUPS Y1, 32(DI)(AX*1)   \
	ADDQ    $64, AX            \
	CMPQ    AX, CX

// func sum2F32AVX2(dst *float32, in *[8]*float32, n int, s float32)
TEXT ·sum2F32AVX2(SB), NOSPLIT, $0-28
	ENTER
	LOAD2

two:
	PAIR(SI, DX, Y0, Y1)
	STORE
	JB   two
	VZEROUPPER
	RET

// func sum4F32AVX2(dst *float32, in *[8]*float32, n int, s float32)
TEXT ·sum4F32AVX2(SB), NOSPLIT, $0-28
	ENTER
	LOAD4

four:
	QUAD(SI, DX, R8, R9, Y0, Y1, Y2, Y3)
	STORE
	JB   four
	VZEROUPPER
	RET

// func sum8F32AVX2(dst *float32, in *[8]*float32, n int, s float32)
TEXT ·sum8F32AVX2(SB), NOSPLIT, $0-28
	ENTER
	LOAD8

eight:
	QUAD(SI, DX, R8, R9, Y0, Y1, Y2, Y3)
	QUAD(R10, R11, R12, R13, Y4, Y5, Y6, Y7)
	VADDPS Y4, Y0, Y0
	VADDPS Y5, Y1, Y1
	STORE
	JB   eight
	VZEROUPPER
	RET

// func streamAVX2(dst, src *byte, n int)
//
// dst is aligned to 32 bytes and n a multiple of 128. The stores go around the caches.
TEXT ·streamAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX

around:
	PREFETCHT0 512(SI)(AX*1)
	PREFETCHT0 576(SI)(AX*1)
	VMOVDQU  (SI)(AX*1), Y0
	VMOVDQU  32(SI)(AX*1), Y1
	VMOVDQU  64(SI)(AX*1), Y2
	VMOVDQU  96(SI)(AX*1), Y3
	VMOVNTDQ Y0, (DI)(AX*1)
	VMOVNTDQ Y1, 32(DI)(AX*1)
	VMOVNTDQ Y2, 64(DI)(AX*1)
	VMOVNTDQ Y3, 96(DI)(AX*1)
	ADDQ     $128, AX
	CMPQ     AX, CX
	JB       around
	SFENCE   // they are ordered with what is stored next, as plain stores are
	VZEROUPPER
	RET
