// SPDX-License-Identifier: Apache-2.0

package kernels

// maxOperands of SumF32.
const maxOperands = 8

// SumF32 sets dst[i] = s · (the sum of in[0][i], in[1][i], …) for all of dst. There are 2, 4 or 8 operands, and the sum has
// the shape of a balanced tree over them: ((0+1)+(2+3))+((4+5)+(6+7)). The bits are those of [AddF32] and [ScaleF32] in that
// order; in one pass the operands are read once and nothing else is written. dst may be an operand itself, but must not
// overlap one otherwise. It panics for another number of operands, or when one is shorter than dst.
func SumF32(dst []float32, in [][]float32, s float32) {
	if n := len(in); n != 2 && n != 4 && n != maxOperands {
		panic("kernels: the sum of other than 2, 4 or 8 operands")
	}
	for _, a := range in {
		checkLen(len(dst), len(a))
	}
	done := 0
	if best() {
		done = sumF32Best(dst, in, s)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = scaleF32(treeF32(in, i), s)
	}
}

// treeF32 is the sum of the i-th elements.
func treeF32(in [][]float32, i int) float32 {
	if len(in) == 2 {
		return addF32(in[0][i], in[1][i])
	}
	half := len(in) / 2
	return addF32(treeF32(in[:half], i), treeF32(in[half:], i))
}

// Stream copies src to dst, which must not overlap and be equally long. What is written goes around the caches: it is for
// more bytes than they hold, that nobody reads soon.
func Stream(dst, src []byte) {
	if len(dst) != len(src) {
		panic("kernels: copy between different lengths")
	}
	done := 0
	if best() {
		done = streamBest(dst, src)
	}
	copy(dst[done:], src[done:])
}
