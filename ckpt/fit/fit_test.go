// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/view"
	"phalanx/kernels"
)

// floats are consecutive numbers as bytes.
func floats(first, n int) []byte {
	var b []byte
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(first+i)))
	}
	return b
}

// stored is a checkpoint in the raw format.
func stored(t *testing.T, tensors map[string][]int) *view.View {
	t.Helper()
	dir := t.TempDir()
	var x view.RawIndex
	names := []string{}
	for name := range tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		info := phalanx.TensorInfo{Name: name, DType: "f32", Shape: tensors[name]}
		b := floats(100*i, int(info.Bytes()/4))
		file := fmt.Sprintf("tensor-%05d.bin", i)
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
		x.Tensors = append(x.Tensors, view.RawTensor{Name: name, DType: "f32", Shape: info.Shape, File: file, Size: info.Bytes(), CRC64NVME: ckpt.Checksum(b)})
	}
	b, err := x.Encode()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, view.RawIndexName), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	v, err := view.Open(context.Background(), dir, nil, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func box(name string, whole, offset, size []int) phalanx.TensorInfo {
	return phalanx.TensorInfo{Name: name, DType: "f32", Shape: size, Global: &phalanx.Global{Shape: whole, Offset: offset}}
}

// TestFit: what fits, and what is said of what does not.
func TestFit(t *testing.T) {
	v := stored(t, map[string][]int{"a": {6, 5}, "b": {3}, "own@rank-0": {2}, "own@rank-2": {2}})
	whole := func(name string, shape ...int) phalanx.TensorInfo {
		return phalanx.TensorInfo{Name: name, DType: "f32", Shape: shape}
	}
	as := func(dtype string, t phalanx.TensorInfo) phalanx.TensorInfo { t.DType = dtype; return t }
	own := phalanx.TensorInfo{Name: "own", DType: "f32", Shape: []int{2}, PerRank: true}
	for name, c := range map[string]struct {
		wanted []phalanx.TensorInfo
		o      Options
		want   ckpt.LayoutDiff
	}{
		"all of it":         {[]phalanx.TensorInfo{whole("a", 6, 5), whole("b", 3), own}, Options{}, ckpt.LayoutDiff{}},
		"a box":             {[]phalanx.TensorInfo{box("a", []int{6, 5}, []int{4, 0}, []int{2, 5}), whole("b", 3), own}, Options{}, ckpt.LayoutDiff{}},
		"nothing of it":     {[]phalanx.TensorInfo{box("a", []int{6, 5}, []int{6, 0}, []int{0, 5}), whole("b", 3), own}, Options{}, ckpt.LayoutDiff{}},
		"another shape":     {[]phalanx.TensorInfo{whole("a", 5, 6), whole("b", 3), own}, Options{}, ckpt.LayoutDiff{Changed: []string{"a: stored f32[6 5], wanted f32[5 6]"}}},
		"of a larger one":   {[]phalanx.TensorInfo{box("a", []int{12, 5}, []int{0, 0}, []int{6, 5}), whole("b", 3), own}, Options{}, ckpt.LayoutDiff{Changed: []string{"a: stored f32[6 5], wanted f32[12 5]"}}},
		"another dtype":     {[]phalanx.TensorInfo{as("bf16", whole("a", 6, 5)), whole("b", 3), own}, Options{}, ckpt.LayoutDiff{Changed: []string{"a: stored f32[6 5], wanted bf16[6 5]"}}},
		"cast":              {[]phalanx.TensorInfo{as("bf16", whole("a", 6, 5)), whole("b", 3), own}, Options{Cast: true}, ckpt.LayoutDiff{}},
		"no float":          {[]phalanx.TensorInfo{as("i32", whole("a", 6, 5)), whole("b", 3), own}, Options{Cast: true}, ckpt.LayoutDiff{Changed: []string{"a: stored f32[6 5], wanted i32[6 5]"}}},
		"both directions":   {[]phalanx.TensorInfo{whole("a", 6, 5), whole("c", 1)}, Options{}, ckpt.LayoutDiff{Missing: []string{"c"}, Unexpected: []string{"b", "own@rank-0", "own@rank-2"}}},
		"not anybody's own": {[]phalanx.TensorInfo{whole("a", 6, 5), whole("b", 3), whole("own", 2)}, Options{}, ckpt.LayoutDiff{Missing: []string{"own"}, Unexpected: []string{"own@rank-0", "own@rank-2"}}},
	} {
		if _, got := New(v, All(v), c.wanted, c.o); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n%+v\nwant\n%+v", name, got, c.want)
		}
	}
	if got := Unexpected([][]string{{"a", "b", "c"}, {"b", "c"}, {"a", "c"}}); !slices.Equal(got, []string{"c"}) {
		t.Errorf("nobody has a use for %v, want c", got)
	}
	if got := Unexpected(nil); got != nil {
		t.Errorf("%v of none", got)
	}
}

// TestFitRead: the elements of boxes, of renamed and cast tensors, and of ranks' own.
func TestFitRead(t *testing.T) {
	v := stored(t, map[string][]int{"model.a": {6, 5}, "own@rank-0": {2}, "own@rank-2": {2}})
	items, err := convert.Select(v, convert.Selection{Renames: []convert.Rename{{From: "model.", To: ""}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		wanted phalanx.TensorInfo
		rank   phalanx.Rank
		want   []float64
	}{
		"rows":         {box("a", []int{6, 5}, []int{5, 0}, []int{1, 5}), 0, []float64{25, 26, 27, 28, 29}},
		"columns":      {box("a", []int{6, 5}, []int{0, 4}, []int{6, 1}), 0, []float64{4, 9, 14, 19, 24, 29}},
		"inside":       {box("a", []int{6, 5}, []int{2, 1}, []int{2, 2}), 0, []float64{11, 12, 16, 17}},
		"nothing":      {box("a", []int{6, 5}, []int{0, 5}, []int{6, 0}), 0, []float64{}},
		"own":          {phalanx.TensorInfo{Name: "own", DType: "f32", Shape: []int{2}, PerRank: true}, 2, []float64{200, 201}},
		"the first's":  {phalanx.TensorInfo{Name: "own", DType: "f32", Shape: []int{2}, PerRank: true}, 1, []float64{100, 101}},
		"wide":         {phalanx.TensorInfo{Name: "a", DType: "f64", Shape: []int{2, 2}, Global: &phalanx.Global{Shape: []int{6, 5}, Offset: []int{0, 0}}}, 0, []float64{0, 1, 5, 6}},
		"not anywhere": {phalanx.TensorInfo{Name: "b", DType: "f32", Shape: []int{2}}, 0, nil},
	} {
		p, diff := New(v, items, []phalanx.TensorInfo{c.wanted}, Options{Rank: c.rank, Cast: true})
		if len(diff.Changed) > 0 {
			t.Fatal(diff)
		}
		var got []byte
		digest, err := p.Read(context.Background(), 0, func(off int64, b []byte) error {
			if off != int64(len(got)) {
				t.Errorf("%s: byte %d after %d", name, off, len(got))
			}
			got = append(got, bytes.Clone(b)...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if c.want == nil {
			if !digest.IsZero() || got != nil {
				t.Errorf("%s: %s of %d bytes", name, digest, len(got))
			}
			continue
		}
		var want []byte
		for _, x := range c.want {
			if c.wanted.DType == "f64" {
				want = binary.LittleEndian.AppendUint64(want, math.Float64bits(x))
			} else {
				want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(x)))
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if d := kernels.TensorDigest(0, kernels.Tensor{Name: c.wanted.Name, DType: c.wanted.DType, Shape: c.wanted.Shape, Data: want}); digest != d {
			t.Errorf("%s: digest %s, want %s", name, digest, d)
		}
	}
	// Bytes that are not those that were written are refused.
	file := filepath.Join(v.Files().Place(), "tensor-00000.bin")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[7] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	p, _ := New(v, items, []phalanx.TensorInfo{box("a", []int{6, 5}, []int{5, 0}, []int{1, 5})}, Options{})
	if _, err := p.Read(context.Background(), 0, func(int64, []byte) error { return nil }); err == nil {
		t.Error("damage is not seen")
	}
}
