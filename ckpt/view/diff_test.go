// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
)

// TestJudge: what indexes alone say of the content of two tensors.
func TestJudge(t *testing.T) {
	shard := func(kind SumKind, value uint64) []Shard {
		return []Shard{{Box: Whole([]int{4}), Length: 4, Sum: Sum{kind, value}}}
	}
	digest := func(v uint64) []BoxDigest { return []BoxDigest{{Whole([]int{4}), phalanx.Digest{v, 1}}} }
	halves := []BoxDigest{{Box{[]int{0}, []int{2}}, phalanx.Digest{1, 1}}, {Box{[]int{2}, []int{2}}, phalanx.Digest{1, 2}}}
	for _, c := range []struct {
		name string
		a, b Tensor
		want Verdict
	}{
		{"equal digests", Tensor{Digests: digest(1), Shards: shard(CRC32, 1)}, Tensor{Digests: digest(1), Shards: shard(CRC32, 1)}, Equal},
		{"other digests", Tensor{Digests: digest(1)}, Tensor{Digests: digest(2)}, Different},
		{"digests of other boxes", Tensor{Digests: digest(1)}, Tensor{Digests: halves}, Unknown},
		{"digest on one side", Tensor{Digests: digest(1), Shards: shard(CRC64NVME, 1)}, Tensor{Shards: shard(CRC64NVME, 1)}, Equal},
		{"equal CRC-64", Tensor{Shards: shard(CRC64NVME, 1)}, Tensor{Shards: shard(CRC64NVME, 1)}, Equal},
		{"other CRC-64", Tensor{Shards: shard(CRC64NVME, 1)}, Tensor{Shards: shard(CRC64NVME, 2)}, Different},
		{"equal CRC-32 proves nothing", Tensor{Shards: shard(CRC32, 1)}, Tensor{Shards: shard(CRC32, 1)}, Unknown},
		{"other CRC-32", Tensor{Shards: shard(CRC32, 1)}, Tensor{Shards: shard(CRC32, 2)}, Different},
		{"other kinds", Tensor{Shards: shard(CRC32, 1)}, Tensor{Shards: shard(CRC64NVME, 1)}, Unknown},
		{"no checksums", Tensor{Shards: shard(NoSum, 0)}, Tensor{Shards: shard(NoSum, 0)}, Unknown},
	} {
		for _, x := range []*Tensor{&c.a, &c.b} {
			x.DType, x.Shape = "u8", []int{4}
		}
		if got := Judge(&c.a, &c.b); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if got := Judge(&c.b, &c.a); got != c.want {
			t.Errorf("%s, the other way round: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestDiffering: streams of two checkpoints on other meshes are compared element by element.
func TestDiffering(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, _, contents := drawView(t)
		m := &memory{gap: 64, files: map[string][]byte{}}
		b := &View{Format: Raw, files: m}
		want := map[Pair]bool{}
		for i := range a.Tensors {
			tensor := a.Tensors[i]
			tensor.Shards = nil
			whole := bytes.Clone(contents[i])
			if len(whole) > 0 && rapid.Bool().Draw(t, "changed") {
				whole[rapid.IntRange(0, len(whole)-1).Draw(t, "byte")] ^= 1
				want[Pair{i, i}] = true
			}
			for _, box := range drawMesh(t, tensor.Shape) {
				tensor.Shards = append(tensor.Shards, m.store(t, "object", whole, tensor.Shape, box, phalanx.DTypeSize(tensor.DType)))
			}
			sortShards(tensor.Shards)
			b.Tensors = append(b.Tensors, tensor)
		}
		pairs := Pairs(a, b)
		if len(pairs) != len(a.Tensors) {
			t.Fatalf("%d pairs of %d", len(pairs), len(a.Tensors))
		}
		got, err := Differing(context.Background(), a, b, pairs, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%v differ, want %v", got, want)
		}
		for p := range want {
			if !got[p] {
				t.Fatalf("%v differ, want %v", got, want)
			}
		}
	})
}
