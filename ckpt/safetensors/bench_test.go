// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"fmt"
	"testing"

	"phalanx"
	"phalanx/ckpt/safetensors"
)

// BenchmarkRead reads the header of a file of 10,000 tensors, as a large model has.
func BenchmarkRead(b *testing.B) {
	var infos []phalanx.TensorInfo
	for i := range 10000 {
		infos = append(infos, phalanx.TensorInfo{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.weight", i/100, i%100), DType: "bf16", Shape: []int{0, 4096}})
	}
	f, err := safetensors.Layout(infos, nil)
	if err != nil {
		b.Fatal(err)
	}
	head := f.Head()
	b.SetBytes(int64(len(head)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := safetensors.Read(bytes.NewReader(head), int64(len(head))); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLayout lays such a file out.
func BenchmarkLayout(b *testing.B) {
	var infos []phalanx.TensorInfo
	for i := range 10000 {
		infos = append(infos, phalanx.TensorInfo{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.weight", i/100, i%100), DType: "bf16", Shape: []int{64, 4096}})
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := safetensors.Layout(infos, nil)
		if err != nil {
			b.Fatal(err)
		}
		f.Head()
	}
}
