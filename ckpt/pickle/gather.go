// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"fmt"
	"slices"

	"phalanx"
)

// Bytes is the size of the tensor's elements in row-major order, 0 for an unknown dtype. Where strides repeat elements it is
// more than the storage has.
func (t *Tensor) Bytes() int64 { return phalanx.TensorInfo{DType: t.DType, Shape: t.Shape}.Bytes() }

// Contiguous reports whether the elements lie in row-major order, without gaps, from Offset on.
func (t *Tensor) Contiguous() bool {
	if slices.Contains(t.Shape, 0) {
		return true
	}
	next := 1
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] != 1 && t.Strides[i] != next {
			return false
		}
		next *= t.Shape[i]
	}
	return true
}

// Gather copies the elements in row-major order from the bytes of the whole storage to dst, which has Bytes bytes.
func (t *Tensor) Gather(dst, storage []byte) error {
	size := phalanx.DTypeSize(t.DType)
	if size == 0 {
		return fmt.Errorf("pickle: elements of the unknown type torch.%s cannot be gathered", t.DTypeName)
	}
	if int64(len(dst)) != t.Bytes() || int64(len(storage)) != t.StorageBytes {
		return fmt.Errorf("pickle: gathering a tensor of %d bytes from a storage of %d: there is room for %d and there are %d", t.Bytes(), t.StorageBytes, len(dst), len(storage))
	}
	if err := t.check(size); err != nil { // fields are exported; a wrong one must not reach beyond
		return fmt.Errorf("pickle: %w", err)
	}
	if len(dst) == 0 {
		return nil
	}
	// Runs of elements that lie together are copied as one.
	inner, run := len(t.Shape), size
	for inner > 0 && (t.Shape[inner-1] == 1 || t.Strides[inner-1]*size == run) {
		inner--
		run *= t.Shape[inner]
	}
	at := make([]int, inner)
	from := int(t.Offset) * size
	for to := 0; to < len(dst); to += run {
		copy(dst[to:to+run], storage[from:from+run])
		for d := inner - 1; d >= 0; d-- {
			from += t.Strides[d] * size
			if at[d]++; at[d] < t.Shape[d] {
				break
			}
			from -= at[d] * t.Strides[d] * size
			at[d] = 0
		}
	}
	return nil
}

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
