// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt"
)

// number reads an element as a number.
func number(t *testing.T, dtype string, p []byte) float64 {
	t.Helper()
	switch dtype {
	case "f32":
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(p)))
	case "bf16":
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(p)) << 16))
	case "f64":
		return math.Float64frombits(binary.LittleEndian.Uint64(p))
	case "i64":
		return float64(int64(binary.LittleEndian.Uint64(p)))
	}
	t.Fatalf("dtype %s", dtype)
	return 0
}

// TestGoldenDCP: checkpoints that PyTorch wrote at 1, 2 and 4 ranks read as their values, in boxes that cross shards.
func TestGoldenDCP(t *testing.T) {
	for _, version := range []string{"dcp-2.11", "dcp-2.15"} {
		for _, ranks := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s/d%d", version, ranks), func(t *testing.T) {
				v, err := Open(t.Context(), fmt.Sprintf("../dcp/testdata/%s/d%d", version, ranks), openDirectory, Options{})
				if err != nil {
					t.Fatal(err)
				}
				want := map[string][]int{"m.w0": {5, 4}, "m.w1": {3, 8}, "o.i": {3}}
				if version == "dcp-2.15" {
					want = map[string][]int{"m.w0": {10, 4}, "m.w1": {4, 10}, "m.rep": {3, 3}, "m.bf": {8, 2}, "m.i": {5}}
				}
				if ranks == 4 {
					want[map[string]string{"dcp-2.11": "m.w2", "dcp-2.15": "m.w2d"}[version]] = map[string][]int{"dcp-2.11": {6, 6}, "dcp-2.15": {6, 8}}[version]
				}
				for name, shape := range want {
					i := v.Tensor(name)
					if i < 0 || fmt.Sprint(v.Tensors[i].Shape) != fmt.Sprint(shape) {
						t.Fatalf("tensor %s: %d", name, i)
					}
					box := Whole(shape)
					if len(shape) == 2 {
						box = Box{Offset: []int{1, 1}, Shape: []int{shape[0] - 1, shape[1] - 2}}
					}
					elem := phalanx.DTypeSize(v.Tensors[i].DType)
					p := make([]byte, int(box.Elements())*elem)
					if err := v.ReadBox(t.Context(), i, box, p); err != nil {
						t.Fatal(err)
					}
					k := 0
					eachIndex(box.Shape, func(index []int) {
						at := 0
						for d := range shape {
							at = at*shape[d] + box.Offset[d] + index[d]
						}
						if got := number(t, v.Tensors[i].DType, p[k*elem:]); got != float64(at) {
							t.Errorf("%s at %v: %v, want %d", name, index, got, at)
						}
						k++
					})
				}
				if len(v.Objects) == 0 {
					t.Error("no objects")
				}
			})
		}
	}
}

// TestGoldenTranspose: m.t is stored as the transpose that it was.
func TestGoldenTranspose(t *testing.T) {
	v, err := Open(t.Context(), "../dcp/testdata/dcp-2.15/d1", openDirectory, Options{})
	if err != nil {
		t.Fatal(err)
	}
	i := v.Tensor("m.t")
	p := make([]byte, v.Tensors[i].Bytes())
	if err := v.ReadBox(t.Context(), i, Whole(v.Tensors[i].Shape), p); err != nil {
		t.Fatal(err)
	}
	for k := range 12 {
		row, column := k/3, k%3
		if got := number(t, v.Tensors[i].DType, p[k*phalanx.DTypeSize(v.Tensors[i].DType):]); got != float64(column*4+row) {
			t.Errorf("element (%d, %d) is %v", row, column, got)
		}
	}
	if s, err := v.located(t.Context(), i, 0); err != nil || s.Strides == nil {
		t.Errorf("%+v, %v: not stored as a transpose, so this test shows nothing", s, err)
	}
}

// TestGoldenFlippedByte: PyTorch does not notice a changed byte of a payload; here its tensor is named.
func TestGoldenFlippedByte(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../dcp/testdata/dcp-2.15/d2")); err != nil {
		t.Fatal(err)
	}
	v, err := Open(t.Context(), dir, openDirectory, Options{})
	if err != nil {
		t.Fatal(err)
	}
	i := v.Tensor("m.w0")
	s, err := v.located(t.Context(), i, 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, s.Object)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[s.At+5] ^= 4
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	err = v.ReadBox(t.Context(), i, Whole(v.Tensors[i].Shape), make([]byte, v.Tensors[i].Bytes()))
	var damage *DamageError
	if !errors.As(err, &damage) || !errors.Is(err, ckpt.ErrCorrupt) || damage.Tensor != "m.w0" || damage.Object != s.Object || damage.Want.Kind != CRC32 {
		t.Fatalf("got %v", err)
	}
}

// TestGoldenSafetensors: files that the Python package and PyTorch wrote.
func TestGoldenSafetensors(t *testing.T) {
	found := 0
	err := filepath.WalkDir("../safetensors/testdata/golden", func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if filepath.Ext(path) != ".safetensors" && !e.IsDir() {
			return nil
		}
		v, err := Open(t.Context(), path, openDirectory, Options{})
		var unknown *UnknownError
		if errors.As(err, &unknown) && e.IsDir() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		found++
		for i := range v.Tensors {
			if err := v.ReadBox(t.Context(), i, Whole(v.Tensors[i].Shape), make([]byte, v.Tensors[i].Bytes())); err != nil && v.Tensors[i].DType != "" {
				t.Errorf("%s: %v", path, err)
			}
		}
		return nil
	})
	if err != nil || found < 3 {
		t.Fatalf("%d opened, %v", found, err)
	}
}

// TestGoldenTorch: files of torch.save: all dtypes, strides, views, both byte orders.
func TestGoldenTorch(t *testing.T) {
	files, err := filepath.Glob("../torchfile/testdata/golden/*.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	tensors := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		v, err := Open(t.Context(), strings.TrimSuffix(file, ".json")+".pt", openDirectory, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for name, hexadecimal := range want {
			i := v.Tensor(name)
			if i < 0 {
				t.Fatalf("%s: no tensor %q", file, name)
			}
			p := make([]byte, v.Tensors[i].Bytes())
			if err := v.ReadBox(t.Context(), i, Whole(v.Tensors[i].Shape), p); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if hex.EncodeToString(p) != hexadecimal {
				t.Errorf("%s: %s is %x, want %s", file, name, p, hexadecimal)
			}
			tensors++
		}
	}
	if tensors < 40 {
		t.Errorf("%d tensors were compared", tensors)
	}
	for file, kind := range map[string]error{"legacy": ckpt.ErrFormat, "script": ckpt.ErrFormat, "deflated": ckpt.ErrFormat} {
		if _, err := Open(t.Context(), "../torchfile/testdata/golden/"+file+".pt", openDirectory, Options{}); !errors.Is(err, kind) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
