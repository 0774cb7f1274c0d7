// SPDX-License-Identifier: Apache-2.0

package kernels

import "phalanx"

// TensorHasher computes [TensorDigest] of bytes that arrive in pieces of any size. It is not safe for concurrent use.
type TensorHasher struct {
	keys    *laneKeys
	root    polynomial
	partial []byte // the bytes of the unfinished leaf; capacity LeafBytes once needed
}

// NewTensorHasher starts the digest of a tensor with its header leaf. The data follow by Write; whether they fit the
// shape is not checked.
func NewTensorHasher(seed uint64, name, dtype string, shape []int) *TensorHasher {
	keys := newLaneKeys(seed)
	h := &TensorHasher{keys: keys, root: newPolynomial(keys.r)}
	for b := header(name, dtype, shape); len(b) > 0; b = b[min(len(b), LeafBytes):] {
		h.root.add(leafDigest(b[:min(len(b), LeafBytes)], keys))
	}
	return h
}

// NewContentHasher starts the digest of bytes without the header of a tensor, for bytes whose name comes later: [Named] of
// its Part is then what a TensorHasher would have given.
func NewContentHasher(seed uint64) *TensorHasher {
	keys := newLaneKeys(seed)
	return &TensorHasher{keys: keys, root: newPolynomial(keys.r)}
}

// Named is the digest of a tensor whose bytes have the given part, as a content hasher gives it.
func Named(seed uint64, name, dtype string, shape []int, content Part) phalanx.Digest {
	return Combine(seed, []Part{NewTensorHasher(seed, name, dtype, shape).Part(), content})
}

// Write digests the next bytes of the tensor. It never fails.
func (h *TensorHasher) Write(p []byte) (int, error) {
	size := len(p)
	if len(h.partial) > 0 {
		n := min(len(p), LeafBytes-len(h.partial))
		h.partial = append(h.partial, p[:n]...)
		p = p[n:]
		if len(h.partial) == LeafBytes {
			h.root.add(leafDigest(h.partial, h.keys))
			h.partial = h.partial[:0]
		}
	}
	for ; len(p) >= LeafBytes; p = p[LeafBytes:] {
		h.root.add(leafDigest(p[:LeafBytes], h.keys))
	}
	if len(p) > 0 {
		if h.partial == nil {
			h.partial = make([]byte, 0, LeafBytes)
		}
		h.partial = append(h.partial, p...)
	}
	return size, nil
}

// Part returns the root and the number of leaves of what was written so far, for [Combine]. Writing may go on.
func (h *TensorHasher) Part() Part {
	root := h.root
	if len(h.partial) > 0 {
		root.add(leafDigest(h.partial, h.keys))
	}
	return Part{Root: root.sum, Leaves: root.leaves}
}

// Sum returns the digest of the tensor as far as it was written. Writing may go on.
func (h *TensorHasher) Sum() phalanx.Digest { return h.Part().Root }
