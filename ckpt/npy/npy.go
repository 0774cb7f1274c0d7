// SPDX-License-Identifier: Apache-2.0

package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"phalanx"
	"phalanx/ckpt/elem"
)

// descriptions are NumPy's names of dtypes. "<" is little-endian, "|" has no byte order.
var descriptions = map[string]string{
	"f64": "<f8", "f32": "<f4", "f16": "<f2", "c64": "<c8", "c128": "<c16",
	"i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "|i1", "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "|u1", "bool": "|b1",
}

// DType is the dtype that elements are written as: the same, or f32 where NumPy has no type for them. It is "" for an unknown
// dtype.
func DType(dtype string) string {
	switch _, same := descriptions[dtype]; {
	case same:
		return dtype
	case phalanx.DTypeSize(dtype) > 0:
		return "f32"
	}
	return ""
}

// align is what the data begin at a multiple of.
const align = 64

// Header is everything before the data of a tensor whose elements are of a dtype that is its own DType.
func Header(dtype string, shape []int) ([]byte, error) {
	description, ok := descriptions[dtype]
	if !ok {
		return nil, fmt.Errorf("npy: NumPy has no element type for %.40q", dtype)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "{'descr': '%s', 'fortran_order': False, 'shape': (", description)
	for i, d := range shape {
		if d < 0 {
			return nil, fmt.Errorf("npy: shape %d has a negative dimension", shape)
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d,", d)
	}
	text := b.String()
	if len(shape) > 1 {
		text = strings.TrimSuffix(text, ",") // only a tuple of one needs it
	}
	text += "), }"
	head := []byte("\x93NUMPY\x01\x00")
	before := len(head) + 2
	if padded(before, text) > math.MaxUint16 {
		head[6] = 2
		before += 2
	}
	n := padded(before, text)
	if head[6] == 1 {
		head = binary.LittleEndian.AppendUint16(head, uint16(n))
	} else {
		head = binary.LittleEndian.AppendUint32(head, uint32(n))
	}
	return append(head, fmt.Sprintf("%-*s\n", n-1, text)...), nil
}

// padded is the length of a header's text with the spaces and the newline that bring the data to a multiple of 64.
func padded(before int, text string) int {
	return (before+len(text)+1+align-1)/align*align - before
}

// Writer writes one tensor. Its input are the tensor's bytes in its own dtype, row-major, in pieces of any size.
type Writer struct {
	w         io.Writer
	from, to  string
	left      int64  // bytes of input that are still to come
	carry     []byte // less than one element
	converted []byte
}

// piece is how many elements are widened at a time.
const piece = 1 << 14

// NewWriter writes the header of a tensor to w, and returns what takes its bytes.
func NewWriter(w io.Writer, dtype string, shape []int) (*Writer, error) {
	to := DType(dtype)
	head, err := Header(to, shape)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(head); err != nil {
		return nil, fmt.Errorf("write header: %w", err)
	}
	return &Writer{w: w, from: dtype, to: to, left: phalanx.TensorInfo{DType: dtype, Shape: shape}.Bytes()}, nil
}

// Write takes the next bytes. More than the tensor has are an error.
func (w *Writer) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, fmt.Errorf("npy: %d bytes more than the tensor has", int64(len(p))-w.left)
	}
	w.left -= int64(len(p))
	if w.from == w.to {
		return w.w.Write(p)
	}
	n, size := len(p), phalanx.DTypeSize(w.from)
	if len(w.carry) > 0 {
		k := min(size-len(w.carry), len(p))
		w.carry, p = append(w.carry, p[:k]...), p[k:]
		if len(w.carry) == size {
			if err := w.widen(w.carry); err != nil {
				return 0, err
			}
			w.carry = w.carry[:0]
		}
	}
	for len(p) >= size {
		k := min(len(p)/size, piece) * size
		if err := w.widen(p[:k]); err != nil {
			return 0, err
		}
		p = p[k:]
	}
	w.carry = append(w.carry, p...)
	return n, nil
}

// widen writes whole elements as those of the other dtype.
func (w *Writer) widen(p []byte) error {
	n := len(p) / phalanx.DTypeSize(w.from) * phalanx.DTypeSize(w.to)
	if cap(w.converted) < n {
		w.converted = make([]byte, n)
	}
	out := w.converted[:n]
	if _, err := elem.Cast(out, w.to, p, w.from); err != nil {
		return err
	}
	_, err := w.w.Write(out)
	return err
}

// Close checks that all bytes came. It does not close what the writer writes to.
func (w *Writer) Close() error {
	if w.left != 0 {
		return fmt.Errorf("npy: %d bytes of the tensor are missing", w.left)
	}
	return nil
}
