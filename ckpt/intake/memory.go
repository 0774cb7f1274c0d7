// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
)

// memory is what a program shares, and the boxes in it. It is a ckpt.Source: box i is its tensor i.
type memory struct {
	file  *os.File
	size  int64
	boxes []ckpt.SheetBox
	at    []int64  // of each box's first byte
	made  [][]byte // its elements, where they do not lie row-major and little-endian; else nil
}

// memoryName is how a program names memory that it shares: by a descriptor of its own, which needs no name in a file system and
// is gone with the process.
var memoryName = regexp.MustCompile(`^/proc/[1-9]\d{0,9}/fd/\d{1,9}$`)

func openMemory(name string) (*memory, error) {
	if !memoryName.MatchString(name) {
		return nil, usage("memory %.80q: want /proc/PID/fd/N", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, usage("open the memory that the program shares: %w; both must be of one user and see the same processes", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no memory: %s", name, info.Mode())
	}
	if err != nil {
		_ = f.Close()
		return nil, usageError{err}
	}
	return &memory{file: f, size: info.Size()}, nil
}

func (m *memory) close() { _ = m.file.Close() } // it was only read

// inside reports why a range is not in the memory.
func (m *memory) inside(at, length int64) error {
	if at < 0 || length < 0 || at > m.size || length > m.size-at {
		return usage("bytes [%d, +%d) of %d that are shared", at, length, m.size)
	}
	return nil
}

// box adds elements that lie as they are stored.
func (m *memory) box(b box) error {
	size := phalanx.TensorInfo{DType: b.DType, Shape: b.Shape}.Bytes()
	if phalanx.DTypeSize(b.DType) == 0 || len(b.Shape) > ckpt.MaxDims || slices.ContainsFunc(b.Shape, func(n int) bool { return n < 0 }) {
		return usage("a box of %.20s%v", b.DType, b.Shape)
	}
	if err := m.inside(b.Offset, size); err != nil {
		return err
	}
	m.add(b.SheetBox, b.Offset, nil)
	return nil
}

func (m *memory) add(b ckpt.SheetBox, at int64, made []byte) {
	m.boxes = append(m.boxes, b)
	m.at = append(m.at, at)
	m.made = append(m.made, made)
}

// record adds what a file of torch.save holds: the elements of one tensor, else all of its bytes as a value.
func (m *memory) record(r record) error {
	if err := m.inside(r.Offset, r.Length); err != nil {
		return err
	}
	b := ckpt.SheetBox{File: r.File, At: r.At, Length: r.Length}
	info, err := dcp.ParseRecord(io.NewSectionReader(m.file, r.Offset, r.Length), r.Length)
	if err != nil || info.DType == "" { // no tensor, or one whose elements nobody here knows: PyTorch reads back what it wrote
		b.DType, b.Shape, b.Value = "u8", []int{int(r.Length)}, true
		m.add(b, r.Offset, nil)
		return nil
	}
	b.DType, b.Shape = info.DType, info.Shape
	if b.Shape == nil {
		b.Shape = []int{}
	}
	size := int64(phalanx.DTypeSize(info.DType))
	first := r.Offset + info.At
	if rowMajor(info.Shape, info.Strides) && !info.Swap && info.PutOff.None() {
		m.add(b, first+info.Offset*size, nil)
		return nil
	}
	stored := make([]byte, info.StorageBytes)
	if _, err := m.file.ReadAt(stored, first); err != nil {
		return fmt.Errorf("read a record of %s: %w", r.File, err)
	}
	made, err := arranged(stored, info, size)
	if err != nil {
		return fmt.Errorf("record at %d of %s: %w: %w", r.At, r.File, err, ckpt.ErrFormat)
	}
	m.add(b, 0, made)
	return nil
}

// rowMajor reports whether strides are those of a row-major array; those of dimensions of at most one element do not matter.
func rowMajor(shape, strides []int) bool {
	want := 1
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] > 1 && strides[d] != want {
			return slices.Contains(shape, 0)
		}
		want *= shape[d]
	}
	return true
}

// arranged are the elements of a record, row-major and little-endian.
func arranged(stored []byte, info dcp.RecordInfo, size int64) ([]byte, error) {
	n := int64(1)
	for _, d := range info.Shape {
		n *= int64(d)
	}
	out := make([]byte, 0, n*size)
	index := make([]int, len(info.Shape))
	for range n {
		at := info.Offset
		for d, i := range index {
			at += int64(i) * int64(info.Strides[d])
		}
		out = append(out, stored[at*size:(at+1)*size]...) // ParseRecord has checked that all of it lies inside
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < info.Shape[d] {
				break
			}
			index[d] = 0
		}
	}
	if info.Swap {
		pickle.SwapBytes(info.DType, out)
	}
	if !info.PutOff.None() {
		if err := info.PutOff.Apply(info.DType, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Layout implements ckpt.Source.
func (m *memory) Layout() []phalanx.TensorInfo { return nil } // WriteSheet goes by the boxes

// ReadAt implements ckpt.Source.
func (m *memory) ReadAt(tensor int, off int64, p []byte) error {
	if made := m.made[tensor]; made != nil {
		copy(p, made[off:])
		return nil
	}
	n, err := m.file.ReadAt(p, m.at[tensor]+off)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the program took memory back that it shares: %w", io.ErrUnexpectedEOF)
	}
	return err
}
