// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"phalanx"
	"phalanx/ckpt/pickle"
)

const (
	// block is how much of a storage is read at a time.
	block = 1 << 20
	// inMemory is the largest storage that is held in memory to bring its elements into order, and the size of the pieces in
	// which that is done for larger ones.
	inMemory = 64 << 20
)

// WriteTo writes the elements of a tensor in row-major order, little-endian: t.Bytes() bytes. The storage's checksum is
// verified: before the first byte where the order has to be changed, otherwise while the bytes pass, and then the error comes
// after them, so nothing may be made of what was written unless it returns nil.
func (f *File) WriteTo(w io.Writer, t *Tensor) error {
	if err := t.Readable(); err != nil {
		return err
	}
	at, err := f.Locate(t)
	if err != nil {
		return err
	}
	switch {
	case t.Contiguous() && t.Offset == 0 && t.Bytes() == t.StorageBytes:
		return f.through(t, at, swapper(w, t))
	case t.StorageBytes <= inMemory && t.Bytes() <= inMemory:
		return f.gather(w, t, at)
	}
	if err := f.Verify(t); err != nil {
		return err
	}
	if t.Contiguous() {
		first := at + t.Offset*int64(phalanx.DTypeSize(t.DType))
		return f.copy(swapper(w, t), t, first, t.Bytes(), make([]byte, block))
	}
	return f.inPieces(w, t, at)
}

// through reads the storage from its begin to its end into w and compares its checksum.
func (f *File) through(t *Tensor, at int64, w io.Writer) error {
	sum := crc32.NewIEEE()
	if err := f.copy(io.MultiWriter(sum, w), t, at, t.StorageBytes, make([]byte, min(block, t.StorageBytes))); err != nil {
		return err
	}
	if err := f.archive.sameSum(member(t.Storage), sum.Sum32()); err != nil {
		return fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	return nil
}

// copy writes n bytes of the file from offset at. What w writes must not keep the buffer.
func (f *File) copy(w io.Writer, t *Tensor, at, n int64, buffer []byte) error {
	for n > 0 {
		p := buffer[:min(int64(len(buffer)), n)]
		if err := readFull(f.archive.ra, p, at); err != nil {
			return fmt.Errorf("tensor %.200q: %w", t.Name, err)
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		at, n = at+int64(len(p)), n-int64(len(p))
	}
	return nil
}

// gather reads the whole storage and brings the tensor's elements into order in memory.
func (f *File) gather(w io.Writer, t *Tensor, at int64) error {
	storage := make([]byte, t.StorageBytes)
	if err := readFull(f.archive.ra, storage, at); err != nil {
		return fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	if err := f.archive.sameSum(member(t.Storage), crc32.ChecksumIEEE(storage)); err != nil {
		return fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	p := make([]byte, t.Bytes())
	if err := t.Gather(p, storage); err != nil {
		return fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	_, err := swapper(w, t).Write(p)
	return err
}

// inPieces brings the elements of a large tensor into order, one box of at most inMemory bytes after the other: the outermost
// dimensions are walked, a run of rows of one dimension is a box. Of a box those elements are read together that lie together in
// the storage, whatever their places in the box.
func (f *File) inPieces(w io.Writer, t *Tensor, at int64) error {
	size := int64(phalanx.DTypeSize(t.DType))
	cut, row := len(t.Shape)-1, size
	for cut > 0 && row*int64(t.Shape[cut]) <= inMemory {
		row *= int64(t.Shape[cut])
		cut--
	}
	rows := int(max(1, inMemory/row))
	out, index := swapper(w, t), make([]int, cut)
	for {
		first := t.Offset
		for d, i := range index {
			first += int64(i) * int64(t.Strides[d])
		}
		for r := 0; r < t.Shape[cut]; r += rows {
			shape := slices.Clone(t.Shape[cut:])
			shape[0] = min(rows, t.Shape[cut]-r)
			p, err := f.box(t, at, first+int64(r)*int64(t.Strides[cut]), shape, t.Strides[cut:])
			if err != nil {
				return err
			}
			if _, err := out.Write(p); err != nil {
				return err
			}
		}
		if !advance(index, t.Shape[:cut]) {
			return nil
		}
	}
}

// box reads a box of elements into row-major order. first is its first element in the storage.
func (f *File) box(t *Tensor, at, first int64, shape, strides []int) ([]byte, error) {
	size := phalanx.DTypeSize(t.DType)
	type dimension struct{ count, stride, step int } // stride in the storage, step in the box, in elements
	dims := make([]dimension, len(shape))
	step := 1
	for d := len(shape) - 1; d >= 0; d-- {
		dims[d] = dimension{shape[d], strides[d], step}
		step *= shape[d]
	}
	p := make([]byte, step*size)
	slices.SortStableFunc(dims, func(a, b dimension) int { return cmp.Compare(b.stride, a.stride) }) // the densest innermost
	inner := dims[len(dims)-1]
	outer, counts := make([]int, len(dims)-1), make([]int, len(dims)-1)
	for d := range counts {
		counts[d] = dims[d].count
	}
	for {
		from, to := first, 0
		for d, i := range outer {
			from += int64(i) * int64(dims[d].stride)
			to += i * dims[d].step
		}
		if err := f.scatter(t, p, at+from*int64(size), to*size, inner.count, inner.stride*size, inner.step*size); err != nil {
			return nil, err
		}
		if !advance(outer, counts) {
			return p, nil
		}
	}
}

// scatter reads count elements that lie stride bytes apart, many at a time, and puts them step bytes apart into p.
func (f *File) scatter(t *Tensor, p []byte, at int64, to, count, stride, step int) error {
	size := phalanx.DTypeSize(t.DType)
	many := count
	if stride > 0 {
		many = max(1, min(count, block/stride))
	}
	buffer := make([]byte, (many-1)*stride+size)
	for done := 0; done < count; done += many {
		n := min(many, count-done)
		b := buffer[:(n-1)*stride+size]
		if err := readFull(f.archive.ra, b, at+int64(done)*int64(stride)); err != nil {
			return fmt.Errorf("tensor %.200q: %w", t.Name, err)
		}
		for i := range n {
			copy(p[to+(done+i)*step:][:size], b[i*stride:])
		}
	}
	return nil
}

// advance steps an index through its dimensions, last one fastest, and reports whether it did not wrap.
func advance(index, shape []int) bool {
	for d := len(index) - 1; d >= 0; d-- {
		if index[d]++; index[d] < shape[d] {
			return true
		}
		index[d] = 0
	}
	return false
}

// swapper is w, or on the way to it turns big-endian elements into little-endian ones and does what PyTorch has put off. All
// writes have whole elements.
func swapper(w io.Writer, t *Tensor) io.Writer {
	if !t.Swap && t.PutOff.None() {
		return w
	}
	return swapping{w, t.DType, t.Swap, t.PutOff}
}

type swapping struct {
	w      io.Writer
	dtype  string
	swap   bool
	putOff pickle.PutOff
}

func (s swapping) Write(p []byte) (int, error) {
	if len(p)%phalanx.DTypeSize(s.dtype) != 0 {
		return 0, errors.New("torchfile: a piece of an element")
	}
	own := slices.Clone(p) // a Writer may not change what it is given
	if s.swap {
		pickle.SwapBytes(s.dtype, own)
	}
	if !s.putOff.None() {
		if err := s.putOff.Apply(s.dtype, own); err != nil {
			return 0, err
		}
	}
	return s.w.Write(own)
}
