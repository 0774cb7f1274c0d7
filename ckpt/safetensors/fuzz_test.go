// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"phalanx"
	"phalanx/ckpt/safetensors"
)

// FuzzRead: a file that is accepted has tensors that cover it from the header to the end, each with as many bytes as its shape
// and type have; laid out again it holds the same tensors.
func FuzzRead(f *testing.F) {
	golden, err := filepath.Glob("testdata/golden/*.safetensors")
	if err != nil || len(golden) < 3 {
		f.Fatal(golden, err)
	}
	for _, name := range golden {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add(file(`{"a":{"dtype":"U8","shape":[0,2],"data_offsets":[0,0]},"__metadata__":{"a":"\ud83d\ude00"}}  `, 0))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := safetensors.Read(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			return
		}
		at, readable := got.DataAt, true
		var infos []phalanx.TensorInfo
		for _, tensor := range got.Tensors {
			info := phalanx.TensorInfo{Name: tensor.Name, DType: tensor.DType, Shape: tensor.Shape}
			if tensor.At != at || tensor.Readable() == nil && tensor.Length != info.Bytes() {
				t.Fatalf("%+v, expected at %d", tensor, at)
			}
			at += tensor.Length
			readable = readable && tensor.Readable() == nil && tensor.Name != ""
			infos = append(infos, info)
		}
		if at != int64(len(content)) {
			t.Fatalf("the tensors end at %d of %d", at, len(content))
		}
		_, _ = got.Offsets()
		got.Aliases()
		if !readable {
			return
		}
		again := read(t, write(t, infos, got.Metadata))
		if len(again.Tensors) != len(got.Tensors) || len(got.Metadata) != len(again.Metadata) || len(got.Metadata) > 0 && !maps.Equal(again.Metadata, got.Metadata) {
			t.Fatalf("%+v is read again as %+v", got, again)
		}
	})
}

// FuzzFolder: an index and the offsets of boxes, of any content. A folder that is accepted has pieces which together have as
// many elements as the whole tensors.
func FuzzFolder(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"w":"a.safetensors"},"metadata":{"total_size":9}}`), `{"w":{"saved_offsets":[0,0]}}`, `{"w":{"saved_offsets":[2,0]}}`)
	f.Add([]byte(nil), `{"w":{"saved_offsets":[0,0]}}`, `{"w":{"saved_offsets":[2,0]}}`)
	f.Add([]byte(nil), `{"w":{"saved_offsets":[0,3]}}`, `{"w":{"saved_offsets":[0,0]}}`)
	f.Fuzz(func(t *testing.T, index []byte, first, second string) {
		folder := files{}
		info := []phalanx.TensorInfo{{Name: "w", DType: "u8", Shape: []int{2, 3}}}
		for name, offsets := range map[string]string{"a.safetensors": first, "b.safetensors": second} {
			laid, err := safetensors.Layout(info, map[string]string{"DCP_SHARDING_INFO": offsets})
			if err != nil {
				return
			}
			folder[name] = append(laid.Head(), make([]byte, 6)...)
		}
		if len(index) > 0 {
			folder[safetensors.IndexName] = index
		}
		if x, err := safetensors.DecodeIndex(index); err == nil {
			again, err := safetensors.DecodeIndex(x.Encode())
			if err != nil || again.TotalSize != x.TotalSize || !maps.Equal(again.WeightMap, x.WeightMap) {
				t.Fatalf("%+v is read again as %+v, %v", x, again, err)
			}
		}
		set, err := safetensors.OpenFolder(t.Context(), folder)
		if err != nil {
			return
		}
		for _, w := range set.Tensors {
			var have int64
			for _, p := range w.Pieces {
				have += p.Length
			}
			if all := (phalanx.TensorInfo{DType: w.DType, Shape: w.Shape}).Bytes(); have != all {
				t.Fatalf("%+v: %d of %d bytes", w, have, all)
			}
		}
	})
}
