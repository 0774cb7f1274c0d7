// SPDX-License-Identifier: Apache-2.0

package dcp_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
	"phalanx/ckpt/pickle/pickletest"
)

// FuzzDecodeMetadata: whatever the bytes are, the index is refused or is one that is written again as what it says.
func FuzzDecodeMetadata(f *testing.F) {
	for _, g := range goldens() {
		b, err := os.ReadFile(filepath.Join(g.dir(), dcp.MetadataName))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		small, err := smallMetadata().Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(small)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := dcp.DecodeMetadata(data, pickle.Limits{Memory: 4 << 20})
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20+400*uint64(len(data)) {
			t.Fatalf("%d bytes took %d bytes of memory", len(data), used)
		}
		if err != nil {
			if m != nil {
				t.Fatal("an index and an error")
			}
			return
		}
		first, err := m.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := dcp.DecodeMetadata(first, pickle.Limits{Expansion: 1 << 30, Memory: 1 << 30})
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		second, err := again.Encode()
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("written twice it differs (%v)", err)
		}
	})
}

func smallMetadata() *dcp.Metadata {
	return &dcp.Metadata{Tensors: []dcp.Tensor{
		{Name: "a b/ü.0", DType: "bf16", Shape: []int{3, 4}, Chunks: []dcp.Chunk{
			{Offset: []int{0, 0}, Size: []int{2, 4}, File: "x/__0_0.distcp", At: 64, Length: 2000},
			{Offset: []int{2, 0}, Size: []int{1, 4}, File: "__1_0.distcp", Length: 1 << 40, Transforms: []string{"stream.zstd/1"}},
			{Offset: []int{3, 0}, Size: []int{0, 4}, File: "__1_0.distcp", At: 1 << 41, Length: 1300},
		}},
		{Name: "s", DTypeName: "float4_e2m1fn_x2", Shape: []int{}, RequiresGrad: true, Chunks: []dcp.Chunk{{File: "f", Length: 1, Offset: []int{}, Size: []int{}}}},
	}, Objects: []dcp.Object{{Name: "o", File: "f", Length: 3}}, Paths: map[string][]any{"o": {"p", 3, "q"}}}
}

// FuzzParseRecord: whatever the bytes are, a record is refused, or its storage lies inside of it and its elements can be
// gathered.
func FuzzParseRecord(f *testing.F) {
	for _, dtype := range []string{"f32", "f8_e5m2", "bool"} {
		content, _ := record(f, dtype, []int{2, 3})
		f.Add(content)
	}
	p, err := os.ReadFile("testdata/dcp-2.11/p.pt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	for _, dir := range goldenDirs() {
		m := readMetadata(f, dir)
		for _, t := range m.Tensors {
			f.Add(readRecord(f, dir, t.Chunks[0].File, t.Chunks[0].At, t.Chunks[0].Length))
		}
		for _, o := range m.Objects {
			f.Add(readRecord(f, dir, o.File, o.At, o.Length))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ra, size := bytes.NewReader(data), int64(len(data))
		if _, err := dcp.ReadObject(ra, size); err != nil {
			_, err := dcp.ParseRecord(ra, size)
			if err == nil {
				t.Fatal("a tensor that is no object")
			}
			return
		}
		info, err := dcp.ParseRecord(ra, size)
		if err != nil {
			return
		}
		storage := data[info.At : info.At+info.StorageBytes]
		if info.DType == "" || info.Bytes() > 1<<20 { // strides of 0 repeat elements
			return
		}
		if _, err := pickletest.Elements(&info.Tensor, storage, true); err != nil {
			t.Fatal(err)
		}
	})
}
