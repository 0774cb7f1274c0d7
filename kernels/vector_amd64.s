// SPDX-License-Identifier: Apache-2.0

//go:build !purego

#include "textflag.h"

// In Go's operand order the first source of an instruction is written second: VADDPS b, a, dst. The first source is the
// NaN that survives, so a must stand there.

// BINARY adds n elements (a multiple of 32 bytes) four vectors at a time, then one at a time. shift is log2 of the
// element's size.
#define BINARY(mov, op, shift) \
	MOVQ dst+0(FP), DI     \
	MOVQ a+8(FP), SI       \
	MOVQ b+16(FP), DX      \
	MOVQ n+24(FP), CX      \
	SHLQ $shift, CX        \
	XORQ AX, AX            \
	MOVQ CX, BX            \
	ANDQ $~127, BX         \
	JZ   one               \
four: \
	mov  (SI)(AX*1), Y0    \
	mov  32(SI)(AX*1), Y1  \
	mov  64(SI)(AX*1), Y2  \
	mov  96(SI)(AX*1), Y3  \
	op   (DX)(AX*1), Y0, Y0   \
	op   32(DX)(AX*1), Y1, Y1 \
	op   64(DX)(AX*1), Y2, Y2 \
	op   96(DX)(AX*1), Y3, Y3 \
	mov  Y0, (DI)(AX*1)    \
	mov  Y1, 32(DI)(AX*1)  \
	mov  Y2, 64(DI)(AX*1)  \
	mov  Y3, 96(DI)(AX*1)  \
	ADDQ $128, AX          \
	CMPQ AX, BX            \
	JB   four              \
one: \
	CMPQ AX, CX            \
	JAE  done              \
	mov  (SI)(AX*1), Y0    \
	op   (DX)(AX*1), Y0, Y0 \
	mov  Y0, (DI)(AX*1)    \
	ADDQ $32, AX           \
	JMP  one               \
done: \
	VZEROUPPER             \
	RET

// func addF32AVX2(dst, a, b *float32, n int)
TEXT ·addF32AVX2(SB), NOSPLIT, $0-32
	BINARY(VMOVUPS, VADDPS, 2)

// func addF64AVX2(dst, a, b *float64, n int)
TEXT ·addF64AVX2(SB), NOSPLIT, $0-32
	BINARY(VMOVUPD, VADDPD, 3)

// func addI64AVX2(dst, a, b *int64, n int)
TEXT ·addI64AVX2(SB), NOSPLIT, $0-32
	BINARY(VMOVDQU, VPADDQ, 3)

// SCALE multiplies by Y4, four vectors at a time, then one at a time; CX is the size in bytes.
#define SCALE(mov, op) \
	XORQ AX, AX            \
	MOVQ CX, BX            \
	ANDQ $~127, BX         \
	JZ   one               \
four: \
	mov  (SI)(AX*1), Y0    \
	mov  32(SI)(AX*1), Y1  \
	mov  64(SI)(AX*1), Y2  \
	mov  96(SI)(AX*1), Y3  \
	op   Y4, Y0, Y0        \
	op   Y4, Y1, Y1        \
	op   Y4, Y2, Y2        \
	op   Y4, Y3, Y3        \
	mov  Y0, (DI)(AX*1)    \
	mov  Y1, 32(DI)(AX*1)  \
	mov  Y2, 64(DI)(AX*1)  \
	mov  Y3, 96(DI)(AX*1)  \
	ADDQ $128, AX          \
	CMPQ AX, BX            \
	JB   four              \
one: \
	CMPQ AX, CX            \
	JAE  done              \
	mov  (SI)(AX*1), Y0    \
	op   Y4, Y0, Y0        \
	mov  Y0, (DI)(AX*1)    \
	ADDQ $32, AX           \
	JMP  one               \
done: \
	VZEROUPPER             \
	RET

// func scaleF32AVX2(dst, a *float32, n int, s float32)
TEXT ·scaleF32AVX2(SB), NOSPLIT, $0-28
	MOVQ         dst+0(FP), DI
	MOVQ         a+8(FP), SI
	MOVQ         n+16(FP), CX
	SHLQ         $2, CX
	VBROADCASTSS s+24(FP), Y4
	SCALE(VMOVUPS, VMULPS)

// func scaleF64AVX2(dst, a *float64, n int, s float64)
TEXT ·scaleF64AVX2(SB), NOSPLIT, $0-32
	MOVQ         dst+0(FP), DI
	MOVQ         a+8(FP), SI
	MOVQ         n+16(FP), CX
	SHLQ         $3, CX
	VBROADCASTSD s+24(FP), Y4
	SCALE(VMOVUPD, VMULPD)

// func f32FromBF16AVX2(dst *float32, src *uint16, n int)
TEXT ·f32FromBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX

loop:
	VPMOVZXWD (SI)(AX*2), Y0
	VPSLLD    $16, Y0, Y0
	VMOVDQU   Y0, (DI)(AX*4)
	ADDQ      $8, AX
	CMPQ      AX, CX
	JB        loop
	VZEROUPPER
	RET

// Eight floats in x become the rounded upper halves in the low words of x. Y12 = 0x7fffffff, Y13 = 0x7f800000,
// Y14 = 0x7fff, Y15 = 1, Y11 = the quiet bit.
#define ROUND(x, t, nan) \
	VPAND     x, Y12, nan      \
	VPCMPGTD  Y13, nan, nan    \
	VPSRLD    $16, x, t        \
	VPAND     t, Y15, t        \
	VPADDD    Y14, t, t        \
	VPADDD    x, t, t          \
	VPOR      x, Y11, x        \
	VPBLENDVB nan, x, t, x     \
	VPSRLD    $16, x, x

#define CONSTANT(value, x, y) \
	MOVL         $value, AX \
	VMOVD        AX, x      \
	VPBROADCASTD x, y

// func bf16FromF32AVX2(dst *uint16, src *float32, n int)
TEXT ·bf16FromF32AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CONSTANT(0x00400000, X11, Y11)
	CONSTANT(0x7fffffff, X12, Y12)
	CONSTANT(0x7f800000, X13, Y13)
	CONSTANT(0x00007fff, X14, Y14)
	CONSTANT(0x00000001, X15, Y15)
	XORQ AX, AX

loop:
	VMOVDQU   (SI)(AX*4), Y0
	VMOVDQU   32(SI)(AX*4), Y1
	ROUND(Y0, Y2, Y3)
	ROUND(Y1, Y4, Y5)
	VPACKUSDW Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VMOVDQU   Y0, (DI)(AX*2)
	ADDQ      $16, AX
	CMPQ      AX, CX
	JB        loop
	VZEROUPPER
	RET

// func f32FromF16AVX2(dst *float32, src *uint16, n int)
TEXT ·f32FromF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX

loop:
	VCVTPH2PS (SI)(AX*2), Y0
	VMOVUPS   Y0, (DI)(AX*4)
	ADDQ      $8, AX
	CMPQ      AX, CX
	JB        loop
	VZEROUPPER
	RET

// func f16FromF32AVX2(dst *uint16, src *float32, n int)
//
// The immediate 0 asks for nearest even whatever MXCSR says.
TEXT ·f16FromF32AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX

loop:
	VMOVUPS   (SI)(AX*4), Y0
	VCVTPS2PH $0, Y0, (DI)(AX*2)
	ADDQ      $8, AX
	CMPQ      AX, CX
	JB        loop
	VZEROUPPER
	RET
