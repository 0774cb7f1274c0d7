// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"phalanx"
	"phalanx/ckpt/safetensors"
)

// local is a folder of the file system.
type local string

func (l local) Files(context.Context) (map[string]int64, error) {
	sizes := map[string]int64{}
	err := filepath.WalkDir(string(l), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		name, _ := filepath.Rel(string(l), path)
		sizes[filepath.ToSlash(name)] = info.Size()
		return err
	})
	return sizes, err
}

func (l local) Get(_ context.Context, name string, off, n int64) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(string(l), name))
	if err != nil {
		return nil, err
	}
	return content[off:min(off+n, int64(len(content)))], nil
}

func read(t testing.TB, content []byte) *safetensors.File {
	t.Helper()
	f, err := safetensors.Read(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func open(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestGoldenTypes reads every element type that the Python package writes.
func TestGoldenTypes(t *testing.T) {
	content := open(t, "all.safetensors")
	f := read(t, content)
	var want map[string]string
	if err := json.Unmarshal(open(t, "all.json"), &want); err != nil {
		t.Fatal(err)
	}
	if len(f.Tensors) != len(want) || f.Metadata["note"] != "line\nbreak" || f.Metadata["format"] != "pt" {
		t.Fatalf("%d tensors, want %d; metadata %q", len(f.Tensors), len(want), f.Metadata)
	}
	torch := map[string]string{
		"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "complex64": "c64", "bool": "bool",
		"float8_e4m3fn": "f8_e4m3fn", "float8_e5m2": "f8_e5m2", "float8_e4m3fnuz": "f8_e4m3fnuz", "float8_e5m2fnuz": "f8_e5m2fnuz",
		"float8_e8m0fnu": "f8_e8m0fnu", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
		"uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
	}
	for name, dtype := range torch {
		tensor, found := f.Find("t." + name)
		if !found || tensor.DType != dtype || !slices.Equal(tensor.Shape, []int{2, 3}) || tensor.Readable() != nil {
			t.Errorf("%s: %+v, found %v", name, tensor, found)
		}
	}
	for name, digits := range want {
		tensor, found := f.Find(name)
		if got := hex.EncodeToString(content[tensor.At:][:tensor.Length]); !found || got != digits {
			t.Errorf("%s: found %v, bytes %s, want %s", name, found, got, digits)
		}
	}
	if scalar, _ := f.Find("scalar"); scalar.Shape == nil || len(scalar.Shape) != 0 {
		t.Errorf("scalar: shape %v", scalar.Shape)
	}
}

func TestGoldenSubByte(t *testing.T) {
	f := read(t, open(t, "f4.safetensors"))
	small, _ := f.Find("small")
	if small.DType != "" || small.DTypeName != "F4" || small.Length != 8 || !slices.Equal(small.Shape, []int{2, 8}) {
		t.Fatalf("%+v", small)
	}
	if err := small.Readable(); !errors.Is(err, safetensors.ErrUnsupported) {
		t.Fatal(err)
	}
	if w, _ := f.Find("w"); w.Readable() != nil || w.At%8 != 0 {
		t.Fatalf("%+v", w)
	}
}

func TestGoldenTied(t *testing.T) {
	f := read(t, open(t, "tied.safetensors"))
	if got := f.Aliases(); !slices.Equal(got, []safetensors.Alias{{Name: "out.weight", Of: "inp.weight"}}) {
		t.Fatal(got)
	}
}

// assemble reads a whole tensor out of its pieces.
func assemble(t testing.TB, folder safetensors.Folder, w safetensors.Whole) []byte {
	t.Helper()
	size := phalanx.DTypeSize(w.DType)
	out := make([]byte, phalanx.TensorInfo{DType: w.DType, Shape: w.Shape}.Bytes())
	for _, p := range w.Pieces {
		content, err := folder.Get(t.Context(), p.File, p.At, p.Length)
		if err != nil || int64(len(content)) != p.Length {
			t.Fatalf("%s: %d bytes, %v", p.File, len(content), err)
		}
		index := make([]int, len(p.Size))
		for ; len(content) > 0; content = content[size:] {
			at := 0
			for d, n := range w.Shape {
				at = at*n + p.Offset[d] + index[d]
			}
			copy(out[at*size:][:size], content)
			for d := len(index) - 1; d >= 0; d-- {
				if index[d]++; index[d] < p.Size[d] {
					break
				}
				index[d] = 0
			}
		}
	}
	return out
}

// TestGoldenBoxes puts together what four ranks of PyTorch wrote.
func TestGoldenBoxes(t *testing.T) {
	folder := local("testdata/golden/boxes")
	set, err := safetensors.OpenFolder(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]int{"boxes": {6, 8}, "columns": {4, 10}, "plain": {}, "rows": {10, 4}, "same": {3, 3}}
	if set.Indexed || !set.Boxes || len(set.Files) != 4 || len(set.Tensors) != len(want) {
		t.Fatalf("%+v", set)
	}
	for _, w := range set.Tensors {
		if !slices.Equal(w.Shape, want[w.Name]) || w.Readable() != nil {
			t.Fatalf("%s: shape %d, want %d", w.Name, w.Shape, want[w.Name])
		}
		content := assemble(t, folder, w)
		size := phalanx.DTypeSize(w.DType)
		for i := range len(content) / size {
			bits := binary.LittleEndian.Uint32(append(make([]byte, 4-size), content[i*size:][:size]...))
			value := float32(i)
			if w.Name == "plain" {
				value = 7
			}
			if math.Float32frombits(bits) != value {
				t.Fatalf("%s: element %d is %v", w.Name, i, math.Float32frombits(bits))
			}
		}
	}
}

func TestGoldenIndexed(t *testing.T) {
	set, err := safetensors.OpenFolder(t.Context(), local("testdata/golden/indexed"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range set.Tensors {
		names = append(names, w.Name+" "+w.Pieces[0].File)
	}
	want := []string{"a model-00001-of-00002.safetensors", "b model-00002-of-00002.safetensors", "c model-00002-of-00002.safetensors"}
	if !set.Indexed || !slices.Equal(names, want) {
		t.Fatalf("%+v", set)
	}
	content := open(t, "indexed/"+safetensors.IndexName)
	index, err := safetensors.DecodeIndex(content)
	if err != nil || index.TotalSize != 50 || !bytes.Equal(index.Encode(), append(content, '\n')) {
		t.Fatalf("%+v, %v, written again as\n%s", index, err, index.Encode())
	}
}

// TestRangedReads: a short header takes one get, a long one two, and the tensors none.
func TestRangedReads(t *testing.T) {
	for _, tensors := range []int{3, 2000} {
		var infos []phalanx.TensorInfo
		for i := range tensors {
			infos = append(infos, phalanx.TensorInfo{Name: string(rune('a'+i%26)) + hex.EncodeToString([]byte{byte(i >> 8), byte(i)}), DType: "f32", Shape: []int{1 << 10}})
		}
		f, err := safetensors.Layout(infos, nil)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := f.WriteTo(&b, func(t safetensors.Tensor, w io.Writer) error { _, err := w.Write(make([]byte, t.Length)); return err }); err != nil {
			t.Fatal(err)
		}
		gets, most := 0, int64(0)
		got, err := safetensors.ReadRanges(t.Context(), int64(b.Len()), func(_ context.Context, off, n int64) ([]byte, error) {
			gets++
			most = max(most, off+n)
			return b.Bytes()[off : off+n], nil
		})
		if err != nil || len(got.Tensors) != tensors {
			t.Fatal(len(got.Tensors), err)
		}
		if want := 1 + tensors/2000; gets != want || most > max(64<<10, f.DataAt) {
			t.Errorf("%d tensors: %d gets up to byte %d, want %d", tensors, gets, most, want)
		}
	}
}
