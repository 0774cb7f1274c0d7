// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
)

// TestReadBox: any box of a tensor on any mesh is the slice of the whole, and Plan says what reading it takes.
func TestReadBox(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, m, contents := drawView(t)
		if err := v.CheckCover(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			i := rapid.IntRange(0, len(v.Tensors)-1).Draw(t, "tensor")
			elem := phalanx.DTypeSize(v.Tensors[i].DType)
			box := drawBox(t, v.Tensors[i].Shape, "target")
			cost, err := v.Plan(context.Background(), i, box)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, int(box.Elements())*elem)
			m.read, m.requests = 0, 0
			if err := v.ReadBox(context.Background(), i, box, got); err != nil {
				t.Fatal(err)
			}
			if want := slice(contents[i], v.Tensors[i].Shape, box, elem); !bytes.Equal(got, want) {
				t.Fatalf("box %v of tensor %v:\n%x, want\n%x", box, v.Tensors[i].Shape, got, want)
			}
			if cost.Needed != int64(len(got)) || m.read > cost.Read || m.requests > cost.Requests || len(got) > 0 && m.read == 0 {
				t.Fatalf("planned %+v, read %d bytes by %d requests", cost, m.read, m.requests)
			}
			if cost.Widened == 0 && (m.read != cost.Read || m.requests != cost.Requests) { // what was read through before is not again
				t.Fatalf("planned %+v, read %d bytes by %d requests", cost, m.read, m.requests)
			}
		}
	})
}

// TestReshard: from N shards to M boxes, which together are the tensor again.
func TestReshard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, _, contents := drawView(t)
		for i := range v.Tensors {
			shape := v.Tensors[i].Shape
			elem := phalanx.DTypeSize(v.Tensors[i].DType)
			again := make([]byte, len(contents[i]))
			for _, target := range drawMesh(t, shape) {
				p := make([]byte, int(target.Elements())*elem)
				if err := v.ReadBox(context.Background(), i, target, p); err != nil {
					t.Fatal(err)
				}
				n := 0
				eachIndex(target.Shape, func(index []int) {
					at := 0
					for d := range shape {
						at = at*shape[d] + target.Offset[d] + index[d]
					}
					n += copy(again[at*elem:(at+1)*elem], p[n:])
				})
			}
			if !bytes.Equal(again, contents[i]) {
				t.Fatalf("tensor %d of %v", i, shape)
			}
		}
	})
}

// TestStream: whole tensors from front to back.
func TestStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, _, contents := drawView(t)
		got := make([][]byte, len(contents))
		calls := make([]int, len(contents))
		err := v.Stream(context.Background(), indices(len(contents)), func(i int, off int64, p []byte) error {
			if off != int64(len(got[i])) {
				t.Fatalf("byte %d after %d", off, len(got[i]))
			}
			calls[i]++
			got[i] = append(got[i], p...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range contents {
			if !bytes.Equal(got[i], contents[i]) || calls[i] == 0 {
				t.Fatalf("tensor %d differs", i)
			}
		}
	})
}

// TestFlippedByte: a changed byte of a shard with a checksum is found by every way of reading that meets the shard.
func TestFlippedByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, m, _ := drawView(t)
		i := rapid.IntRange(0, len(v.Tensors)-1).Draw(t, "tensor")
		k := rapid.IntRange(0, len(v.Tensors[i].Shards)-1).Draw(t, "shard")
		s := v.Tensors[i].Shards[k]
		if s.Sum.Kind == NoSum || s.Elements() == 0 {
			t.Skip("nothing to notice it by")
		}
		m.files[s.Object][s.At+int64(rapid.IntRange(0, int(s.Length)-1).Draw(t, "byte"))] ^= byte(1 << rapid.IntRange(0, 7).Draw(t, "bit"))
		check := func(err error) {
			var damage *DamageError
			if !errors.As(err, &damage) || !errors.Is(err, ckpt.ErrCorrupt) {
				t.Fatalf("got %v", err)
			}
			if damage.Tensor != v.Tensors[i].Name || damage.Object != s.Object || damage.At != s.At || damage.Want == damage.Got {
				t.Fatalf("got %+v, damaged %+v", damage, s)
			}
		}
		whole := Whole(v.Tensors[i].Shape)
		check(v.ReadBox(context.Background(), i, whole, make([]byte, v.Tensors[i].Bytes())))
		one := Box{Offset: s.Offset, Shape: make([]int, len(s.Shape))}
		for d := range one.Shape {
			one.Shape[d] = 1
		}
		check(v.ReadBox(context.Background(), i, one, make([]byte, phalanx.DTypeSize(v.Tensors[i].DType))))
		check(v.Stream(context.Background(), []int{i}, func(int, int64, []byte) error { return nil }))
	})
}
