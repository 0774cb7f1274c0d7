// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory are files in memory that count what is read.
type memory struct {
	gap   int64
	files map[string][]byte

	mu       sync.Mutex
	read     int64
	requests int
	largest  int
}

func (m *memory) Place() string { return "memory" }
func (m *memory) Gap() int64    { return m.gap }

func (m *memory) Size(_ context.Context, name string) (int64, error) {
	p, ok := m.files[name]
	if !ok {
		return 0, ckpt.ErrNotFound
	}
	return int64(len(p)), nil
}

func (m *memory) Identity(ctx context.Context, name string) (string, error) {
	if _, err := m.Size(ctx, name); err != nil {
		return "", err
	}
	return ckpt.Checksum(m.files[name]).String(), nil
}

func (m *memory) Read(_ context.Context, name string, off int64, p []byte) error {
	content, ok := m.files[name]
	if !ok {
		return fmt.Errorf("%s: %w", name, ckpt.ErrNotFound)
	}
	m.mu.Lock()
	m.read += int64(len(p))
	m.requests++
	m.largest = max(m.largest, len(p))
	m.mu.Unlock()
	if off < 0 || off+int64(len(p)) > int64(len(content)) {
		return fmt.Errorf("%s ends at %d: %w", name, len(content), ckpt.ErrCorrupt)
	}
	copy(p, content[off:])
	return nil
}

func (m *memory) List(context.Context, int) ([]ckpt.Info, error) {
	var all []ckpt.Info
	for name, p := range m.files {
		all = append(all, ckpt.Info{Key: name, Size: int64(len(p))})
	}
	slices.SortFunc(all, func(a, b ckpt.Info) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
	return all, nil
}

// content is the whole tensor, row-major.
func content(shape []int, elem int, seed uint64) []byte {
	p := make([]byte, int(Box{Shape: shape}.Elements())*elem)
	random := rand.New(rand.NewPCG(seed, 7))
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

// slice is the box of a row-major tensor, by the definition: element by element.
func slice(p []byte, shape []int, box Box, elem int) []byte {
	out := make([]byte, 0, int(box.Elements())*elem)
	eachIndex(box.Shape, func(index []int) {
		at := 0
		for d := range shape {
			at = at*shape[d] + box.Offset[d] + index[d]
		}
		out = append(out, p[at*elem:(at+1)*elem]...)
	})
	return out
}

func eachIndex(shape []int, f func([]int)) {
	index := make([]int, len(shape))
	if slices.Contains(shape, 0) {
		return
	}
	for {
		f(index)
		d := len(shape) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < shape[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// drawBox draws a box of a tensor, which may be empty.
func drawBox(t *rapid.T, shape []int, name string) Box {
	b := Box{Offset: []int{}, Shape: []int{}}
	for d, n := range shape {
		o := rapid.IntRange(0, n).Draw(t, fmt.Sprintf("%s offset %d", name, d))
		b.Offset = append(b.Offset, o)
		b.Shape = append(b.Shape, rapid.IntRange(0, n-o).Draw(t, fmt.Sprintf("%s size %d", name, d)))
	}
	return b
}

// drawMesh cuts a tensor by random cuts in every dimension, unevenly, with empty boxes.
func drawMesh(t *rapid.T, shape []int) []Box {
	boxes := []Box{{Offset: []int{}, Shape: []int{}}}
	for d, n := range shape {
		cuts := rapid.SliceOfN(rapid.IntRange(0, n), 0, 3).Draw(t, fmt.Sprintf("cuts %d", d))
		slices.Sort(cuts)
		cuts = append(append([]int{0}, cuts...), n)
		var finer []Box
		for _, b := range boxes {
			for k := 1; k < len(cuts); k++ {
				finer = append(finer, Box{append(slices.Clone(b.Offset), cuts[k-1]), append(slices.Clone(b.Shape), cuts[k]-cuts[k-1])})
			}
		}
		boxes = finer
	}
	return boxes
}

// store puts a box of a tensor into an object, in its own layout, and returns where.
func (m *memory) store(t *rapid.T, object string, whole []byte, shape []int, box Box, elem int) Shard {
	part := slice(whole, shape, box, elem)
	s := Shard{Box: box, Object: object}
	stored := part
	if len(box.Shape) > 1 && rapid.Bool().Draw(t, "permuted") {
		order := rapid.Permutation(indices(len(box.Shape))).Draw(t, "order") // the outermost dimension of the storage first
		s.Strides = make([]int, len(box.Shape))
		step := 1
		for k := len(order) - 1; k >= 0; k-- {
			s.Strides[order[k]] = step
			step *= max(box.Shape[order[k]], 1)
		}
		stored = make([]byte, len(part))
		n := 0
		eachIndex(box.Shape, func(index []int) {
			at := 0
			for d := range index {
				at += index[d] * s.Strides[d]
			}
			copy(stored[at*elem:(at+1)*elem], part[n*elem:])
			n++
		})
	}
	before, after := 0, 0
	if rapid.Bool().Draw(t, "view") { // a part of a larger storage
		before = elem * rapid.IntRange(0, 5).Draw(t, "before")
		after = rapid.IntRange(0, 9).Draw(t, "after")
	}
	s.First = int64(before)
	padded := slices.Concat(make([]byte, before), stored, make([]byte, after))
	m.files[object] = append(m.files[object], make([]byte, rapid.IntRange(0, 70).Draw(t, "hole"))...)
	s.At, s.Length = int64(len(m.files[object])), int64(len(padded))
	m.files[object] = append(m.files[object], padded...)
	switch rapid.IntRange(0, 2).Draw(t, "sum") {
	case 1:
		s.Sum = Sum{CRC64NVME, uint64(ckpt.Checksum(padded))}
	case 2:
		s.Sum = Sum{CRC32, uint64(crc32.ChecksumIEEE(padded))}
	}
	return s
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// drawView makes tensors on random meshes. It returns their contents.
func drawView(t *rapid.T) (*View, *memory, [][]byte) {
	m := &memory{gap: rapid.SampledFrom([]int64{0, 8, 64, 1 << 20}).Draw(t, "gap"), files: map[string][]byte{}}
	v := &View{Format: Raw, files: m}
	if rapid.Bool().Draw(t, "small limits") {
		v.limits = limits{whole: rapid.Int64Range(1, 200).Draw(t, "whole"), fetch: rapid.Int64Range(16, 100).Draw(t, "fetch"), batch: rapid.Int64Range(16, 300).Draw(t, "batch")}
	}
	var contents [][]byte
	for i := range rapid.IntRange(1, 3).Draw(t, "tensors") {
		shape := rapid.SliceOfN(rapid.IntRange(0, 9), 0, 4).Draw(t, "shape")
		dtype := rapid.SampledFrom([]string{"u8", "bf16", "f32", "c128"}).Draw(t, "dtype")
		elem := phalanx.DTypeSize(dtype)
		whole := content(shape, elem, uint64(i))
		tensor := Tensor{Name: fmt.Sprintf("t%d", i), DType: dtype, DTypeName: dtype, Shape: shape}
		for _, box := range drawMesh(t, shape) {
			object := fmt.Sprintf("object-%d", rapid.IntRange(0, 2).Draw(t, "object"))
			tensor.Shards = append(tensor.Shards, m.store(t, object, whole, shape, box, elem))
		}
		sortShards(tensor.Shards)
		v.Tensors = append(v.Tensors, tensor)
		contents = append(contents, whole)
	}
	return v, m, contents
}
