// SPDX-License-Identifier: Apache-2.0

package dcp_test

import (
	"fmt"
	"testing"

	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
)

// largeMetadata is the index of a large model: 20,000 tensors in 16 chunks each.
func largeMetadata() *dcp.Metadata {
	m := &dcp.Metadata{}
	for i := range 20000 {
		t := dcp.Tensor{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.weight", i/100, i%100), DType: "bf16", Shape: []int{4096, 1024}}
		for c := range 16 {
			t.Chunks = append(t.Chunks, dcp.Chunk{Offset: []int{c * 256, 0}, Size: []int{256, 1024}, File: fmt.Sprintf("__%d_0.distcp", c), At: int64(i) * 525632, Length: 525580})
		}
		m.Tensors = append(m.Tensors, t)
	}
	return m
}

func BenchmarkMetadata(b *testing.B) {
	m := largeMetadata()
	content, err := m.Encode()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if _, err := m.Encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if _, err := dcp.DecodeMetadata(content, pickle.Limits{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	for b.Loop() {
		if _, err := dcp.RecordHeader("bf16", []int{4096, 1024}, 8<<20, 1); err != nil {
			b.Fatal(err)
		}
		dcp.RecordTrailer("bf16", []int{4096, 1024}, 8<<20, 1)
	}
}
