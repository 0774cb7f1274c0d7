// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"io"
	"math/rand/v2"
	"testing"
	"unsafe"
)

func addressOf(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

var _ io.Writer = (*TensorHasher)(nil)

func TestHasher(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, size := range []int{0, 1, LeafBytes - 1, LeafBytes, LeafBytes + 1, 5*LeafBytes + 333} {
		x := Tensor{"w", "float32", []int{size}, stream(size, 2)}
		h := NewTensorHasher(4, x.Name, x.DType, x.Shape)
		for rest := x.Data; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(2*LeafBytes))
			if got, err := h.Write(rest[:n]); got != n || err != nil {
				t.Fatalf("Write of %d: %d, %v", n, got, err)
			}
			rest = rest[n:]
			// A sum in the middle is that of the prefix and disturbs nothing.
			prefix := x
			prefix.Data = x.Data[:size-len(rest)]
			if got, want := h.Sum(), TensorDigest(4, prefix); got != want {
				t.Fatalf("size %d after %d: %v, want %v", size, len(prefix.Data), got, want)
			}
		}
		if got, want := h.Part(), (Part{TensorDigest(4, x), LeafCount(x)}); got != want {
			t.Errorf("size %d: %v, want %v", size, got, want)
		}
	}
}

// FuzzHasher cuts data at two places; no cut may change the digest, and all paths and the reference agree.
func FuzzHasher(f *testing.F) {
	f.Add(uint64(0), "w", "float32", 3, []byte("some bytes"), uint32(3), uint32(7), uint32(1))
	f.Add(uint64(1<<63), "", "", 0, []byte{}, uint32(0), uint32(0), uint32(0))
	f.Add(uint64(5), "a\x00b", "x", -1, []byte{1, 2, 3, 4, 5}, uint32(70000), uint32(65536), uint32(40000))
	f.Fuzz(func(t *testing.T, seed uint64, name, dtype string, dim int, data []byte, first, second, repeat uint32) {
		if len(data) > 0 {
			for unit, size := len(data), int(repeat)%(2*LeafBytes); len(data)+unit <= size; {
				data = append(data, data[:unit]...)
			}
		}
		x := Tensor{name, dtype, []int{dim}, data}
		a := int(first) % (len(data) + 1)
		b := a + int(second)%(len(data)-a+1)
		restore := Force(Path(first & 1))
		h := NewTensorHasher(seed, name, dtype, x.Shape)
		for _, piece := range [][]byte{data[:a], data[a:b], data[b:]} {
			h.Write(piece)
		}
		got := h.Part()
		restore()
		if want := (Part{TensorDigest(seed, x), LeafCount(x)}); got != want {
			t.Errorf("cut at %d and %d of %d: %v, want %v", a, b, len(data), got, want)
		}
		if want := referenceRoot(seed, referenceTensorLeaves(seed, x)); got.Root != want {
			t.Errorf("%v, the reference says %v", got.Root, want)
		}
	})
}
