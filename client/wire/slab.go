// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"

	"phalanx"
)

// SlabLayout says where the registered tensors lie in a slab: after the header, in the order of registration, each at a
// 64-byte boundary.
type SlabLayout struct {
	Offsets []int64 // of each tensor, in bytes from the start of the slab
	Sizes   []int64 // of each tensor in bytes
	Total   int64   // bytes of the slab
	Hash    uint64  // of names, dtypes and shapes in their order: FNV-1a over "name NUL dtype NUL d0,d1,… NUL", and
	// "of d0,… at o0,… NUL" for a box of a larger tensor, "per rank NUL" for one that each rank has of its own
}

// LayoutSlab places tensors. It refuses unknown dtypes, negative dimensions and sizes beyond 63 bits.
func LayoutSlab(tensors []phalanx.TensorInfo) (SlabLayout, error) {
	l := SlabLayout{Offsets: make([]int64, len(tensors)), Sizes: make([]int64, len(tensors)), Total: SlabHeaderBytes}
	h := fnv.New64a()
	for i, t := range tensors {
		size, err := tensorBytes(t)
		if err != nil {
			return SlabLayout{}, fmt.Errorf("place tensor %q: %w", t.Name, err)
		}
		if size > math.MaxInt64-TensorAlign-l.Total {
			return SlabLayout{}, fmt.Errorf("place tensor %q: the state is larger than 63 bits count", t.Name)
		}
		l.Offsets[i], l.Sizes[i] = l.Total, size
		l.Total = (l.Total + size + TensorAlign - 1) &^ (TensorAlign - 1)
		_, _ = h.Write(tensorKey(t)) // a hash never fails
	}
	l.Hash = h.Sum64()
	return l, nil
}

func tensorBytes(t phalanx.TensorInfo) (int64, error) {
	size := int64(phalanx.DTypeSize(t.DType))
	if size == 0 {
		return 0, fmt.Errorf("dtype %q is unknown; use one of %s", t.DType, strings.Join(phalanx.DTypes(), ", "))
	}
	for _, d := range t.Shape {
		if d < 0 || d > 0 && size > math.MaxInt64/int64(d) {
			return 0, fmt.Errorf("shape %v", t.Shape)
		}
		size *= int64(d)
	}
	return size, nil
}

func tensorKey(t phalanx.TensorInfo) []byte {
	b := append([]byte(t.Name), 0)
	b = append(append(b, t.DType...), 0)
	b = append(appendInts(b, t.Shape), 0)
	if t.Global != nil {
		b = appendInts(append(b, "of "...), t.Global.Shape)
		b = append(appendInts(append(b, " at "...), t.Global.Offset), 0)
	}
	if t.PerRank {
		b = append(b, "per rank\x00"...)
	}
	return b
}

func appendInts(b []byte, numbers []int) []byte {
	for i, d := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	return b
}

// MaxSlabs is how many slabs a trainer may have: one is written to the store while the next state is staged.
const MaxSlabs = 2

// SlabOf says into which of n slabs the save with a sequence is staged.
func SlabOf(sequence uint64, n int) int { return int(sequence % uint64(n)) }

// Slab is host memory that holds the staged state of one label.
type Slab struct {
	memory []byte
	words  []uint64
	layout SlabLayout
}

// NewSlab views memory as a slab. The memory starts at an 8-byte boundary and has at least layout.Total bytes.
func NewSlab(memory []byte, layout SlabLayout) (*Slab, error) {
	if int64(len(memory)) < layout.Total {
		return nil, fmt.Errorf("slab of %d bytes, the state needs %d: %w", len(memory), layout.Total, ErrFormat)
	}
	return &Slab{memory, wordsOf(memory), layout}, nil
}

// Layout is where the tensors lie.
func (s *Slab) Layout() SlabLayout { return s.layout }

// Tensor is the memory of one tensor.
func (s *Slab) Tensor(i int) []byte {
	from := s.layout.Offsets[i]
	return s.memory[from : from+s.layout.Sizes[i] : from+s.layout.Sizes[i]]
}

// ReadHeader returns the header and how often it was written. The content is that of the label only when the state is full,
// the layout hash is that of Layout, and both still hold after the content was read.
func (s *Slab) ReadHeader() (v SlabHeader, sequence uint64) {
	var w [SlabHeaderWords]uint64
	sequence = readCell(s.words[offsetSlabHeader/8:], w[:])
	if sequence > 0 {
		v.Decode(w[:])
	}
	return v, sequence
}

// WriteHeader stores the header. Only the trainer may call it: filling before the first byte, full after the last.
func (s *Slab) WriteHeader(v SlabHeader) {
	var w [SlabHeaderWords]uint64
	v.Encode(w[:])
	writeCell(s.words[offsetSlabHeader/8:], w[:])
}
