// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"slices"

	"phalanx"
)

// Bytes is the size of the tensor's elements in row-major order, 0 for an unknown dtype. Where strides repeat elements it is
// more than the storage has.
func (t *Tensor) Bytes() int64 { return phalanx.TensorInfo{DType: t.DType, Shape: t.Shape}.Bytes() }

// SwapBytes turns elements of a dtype from one byte order to the other, in place. Both halves of a complex number stay
// where they are.
func SwapBytes(dtype string, b []byte) {
	size := phalanx.DTypeSize(dtype)
	if dtype == "c64" || dtype == "c128" {
		size /= 2
	}
	if size < 2 {
		return
	}
	for len(b) >= size {
		slices.Reverse(b[:size])
		b = b[size:]
	}
}
