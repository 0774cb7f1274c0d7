// SPDX-License-Identifier: Apache-2.0

// Package pickletest is for tests: the elements of a tensor one by one, to compare with what package view reads in pieces.
package pickletest

import (
	"fmt"

	"phalanx"
	"phalanx/ckpt/pickle"
)

// Elements returns the elements of a tensor in row-major order, little-endian, from the bytes of its whole storage. swap says that
// the storage is big-endian.
func Elements(t *pickle.Tensor, storage []byte, swap bool) ([]byte, error) {
	size := phalanx.DTypeSize(t.DType)
	if size == 0 || int64(len(storage)) != t.StorageBytes || len(t.Shape) != len(t.Strides) {
		return nil, fmt.Errorf("a tensor of torch.%s, %d sizes and %d strides in %d bytes; there are %d", t.DTypeName, len(t.Shape), len(t.Strides), t.StorageBytes, len(storage))
	}
	out := make([]byte, 0, t.Bytes())
	var walk func(d, at int) error
	walk = func(d, at int) error {
		if d == len(t.Shape) {
			if at < 0 || (at+1)*size > len(storage) {
				return fmt.Errorf("element %d lies beyond the storage of %d bytes", at, len(storage))
			}
			out = append(out, storage[at*size:(at+1)*size]...)
			return nil
		}
		for i := range t.Shape[d] {
			if err := walk(d+1, at+i*t.Strides[d]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(0, int(t.Offset)); err != nil {
		return nil, err
	}
	if swap {
		pickle.SwapBytes(t.DType, out)
	}
	if t.PutOff.None() {
		return out, nil
	}
	return out, t.PutOff.Apply(t.DType, out)
}
