// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/fs"
)

// FuzzRawIndex: an index that is read is one that is written again alike.
func FuzzRawIndex(f *testing.F) {
	x := RawIndex{Tensors: []RawTensor{{Name: "w", DType: "f32", Shape: []int{2, 3}, File: "0.bin", Size: 24}, {Name: "s", DType: "bool", Shape: []int{}, File: "1.bin", Size: 1}}}
	b, err := x.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":"phalanx-raw","version":1,"tensors":[{"name":"w","dtype":"f32","shape":[-1],"file":"../x","size_bytes":-4,"crc64nvme":"0000000000000000"}]}`))
	f.Add([]byte(`{"format":"phalanx-raw","version":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := DecodeRawIndex(b)
		if err != nil {
			return
		}
		again, err := x.Encode()
		if err != nil {
			t.Fatal(err)
		}
		y, err := DecodeRawIndex(again)
		if err != nil || !reflect.DeepEqual(x.Tensors, y.Tensors) {
			t.Fatalf("%v: %+v became %+v", err, x, y)
		}
	})
}

// FuzzLayout: shapes that are read can be the layout of a checkpoint.
func FuzzLayout(f *testing.F) {
	f.Add([]byte(`{"w": {"dtype": "f32", "shape": [2, 3]}, "b": {"shape": []}}`))
	f.Add([]byte(`{"format": "dcp", "tensors": [{"name": "tensors", "dtype": "bf16", "shape": [0], "shards": []}]}`))
	f.Add([]byte(`{"tensors": {"dtype": "u8", "shape": [9223372036854775807]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		layout, err := DecodeLayout(b)
		if err != nil {
			return
		}
		for i := range layout {
			if layout[i].DType == "" {
				layout[i].DType = "c128"
			}
		}
		if d := Compare(layout, layout); !d.Empty() {
			t.Fatalf("%v differ from themselves: %s", layout, d)
		}
	})
}

// openDirectory opens a directory as a store.
func openDirectory(_ context.Context, place string) (ckpt.Store, error) { return fs.NewReadOnly(place) }

// names that a folder may have.
var folderNames = []string{RawIndexName, ".metadata", "__0_0.distcp", "model.safetensors", "model.safetensors.index.json", "part-0.json", "0.bin", "model.pt"}

// FuzzOpen: whatever is in a folder or a file, it is opened or refused, and what is opened can be read or refused.
func FuzzOpen(f *testing.F) {
	x := RawIndex{Tensors: []RawTensor{{Name: "w", DType: "u8", Shape: []int{3}, File: "0.bin", Size: 3, CRC64NVME: ckpt.Checksum([]byte("abc"))}}}
	index, err := x.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(0, index, 6, []byte("abc"))
	f.Add(0, index, 6, []byte("abd"))
	f.Add(7, []byte("PK\x03\x04"), 1, []byte{})
	seed := func(first int, path string, second int, more string) {
		a, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		b := []byte{}
		if more != "" {
			if b, err = os.ReadFile(more); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(first, a, second, b)
	}
	seed(1, "../dcp/testdata/dcp-2.15/d1/.metadata", 2, "../dcp/testdata/dcp-2.15/d1/__0_0.distcp")
	seed(1, "../dcp/testdata/dcp-2.11/d1/.metadata", 2, "../dcp/testdata/dcp-2.11/d1/__0_0.distcp")
	seed(3, "../safetensors/testdata/golden/all.safetensors", 6, "")
	seed(3, "../safetensors/testdata/golden/tied.safetensors", 6, "")
	seed(7, "../torchfile/testdata/golden/views.pt", 6, "")
	seed(5, "../testdata/golden-raw-v1/job/step-200-g5-a2.1/part-0.json", 6, "")
	f.Fuzz(func(t *testing.T, first int, content []byte, second int, more []byte) {
		dir := t.TempDir()
		for _, c := range []struct {
			which   int
			content []byte
		}{{second, more}, {first, content}} {
			if err := os.WriteFile(filepath.Join(dir, folderNames[uint(c.which)%uint(len(folderNames))]), c.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, place := range []string{dir, filepath.Join(dir, folderNames[uint(first)%uint(len(folderNames))])} {
			v, err := Open(t.Context(), place, openDirectory, Options{Unpublished: true})
			if err != nil {
				continue
			}
			_ = v.CheckCover()
			for i := range v.Tensors {
				if n := v.Tensors[i].Bytes(); n > 0 && n < 1<<16 {
					p := make([]byte, n)
					whole := Whole(v.Tensors[i].Shape)
					if v.ReadBox(context.Background(), i, whole, p) != nil {
						continue
					}
					streamed := []byte{}
					err := v.Stream(context.Background(), []int{i}, func(_ int, _ int64, b []byte) error {
						streamed = append(streamed, b...)
						return nil
					})
					if err != nil || !bytes.Equal(p, streamed) {
						t.Fatalf("%v: read %x, streamed %x", err, p, streamed)
					}
				}
			}
		}
	})
}

// FuzzJournal: lines of a journal that are read are ones that can be written.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"place":"/a","object":"x","at":0,"size_bytes":7,"checksum":"crc64nvme:0000000000000001","ok":true}` + "\n" + `{"object":"y"`))
	f.Add([]byte(`{"place":"/a","object":"x","ok":true}` + "\n" + `{"place":"/a","object":"x","ok":false}` + "\n"))
	f.Add([]byte("notes\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		good, end, err := readJournal(bytes.NewReader(b))
		if err != nil {
			return
		}
		if end > int64(len(b)) || end > 0 && b[end-1] != '\n' {
			t.Fatalf("the last whole line of %d bytes ends at %d", len(b), end)
		}
		if len(good) > bytes.Count(b, []byte("\n")) {
			t.Fatalf("%d good chunks in %d lines", len(good), bytes.Count(b, []byte("\n")))
		}
	})
}
