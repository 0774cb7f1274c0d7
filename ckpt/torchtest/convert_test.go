// SPDX-License-Identifier: Apache-2.0

//go:build torch

package torchtest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/dcp/dcptest"
	"phalanx/ckpt/view"
)

// contents are the tensors of a checkpoint, as this program reads them, in the order of their names.
func contents(t *testing.T, v *view.View) []dcptest.Tensor {
	t.Helper()
	var out []dcptest.Tensor
	for i := range v.Tensors {
		x := dcptest.Tensor{Name: v.Tensors[i].Name, DType: v.Tensors[i].DType, Shape: v.Tensors[i].Shape, Bytes: make([]byte, v.Tensors[i].Bytes())}
		if err := v.ReadBox(t.Context(), i, view.Whole(x.Shape), x.Bytes); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(torch.dtypes, x.DType) {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b dcptest.Tensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func openView(t *testing.T, path string) *view.View {
	t.Helper()
	v, err := view.Open(t.Context(), path, nil, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// converted writes a checkpoint as another format and returns where.
func converted(t *testing.T, v *view.View, o convert.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	items, err := convert.Select(v, convert.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := convert.NewFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := convert.Run(context.Background(), v, items, to, o); err != nil {
		t.Fatal(err)
	}
	return path
}

// loads lets PyTorch load a DCP folder into blank tensors.
func loads(t *testing.T, path string, want []dcptest.Tensor) {
	t.Helper()
	var got []packed
	ask(t, map[string]any{"do": "load", "path": path, "tensors": packAll(want)}, &got)
	same(t, got, want)
}

// TestConvertedGolden: checkpoints of PyTorch 2.11 and 2.15 that were converted load in this PyTorch with equal values: as DCP
// cut into small files, as DCP with its index alone rewritten, as safetensors, and as DCP made of that.
func TestConvertedGolden(t *testing.T) {
	for _, golden := range []string{"dcp-2.11/d1", "dcp-2.11/d2", "dcp-2.11/d4", "dcp-2.15/d1", "dcp-2.15/d2", "dcp-2.15/d4"} {
		t.Run(golden, func(t *testing.T) {
			v := openView(t, filepath.Join("../dcp/testdata", golden))
			want := contents(t, v)
			loads(t, converted(t, v, convert.Options{To: view.DCP, ShardBytes: 2500}), want)

			rewritten := filepath.Join(t.TempDir(), "rewritten")
			to, err := convert.NewFolder(rewritten)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := convert.Rewrite(t.Context(), v, to, nil); err != nil {
				t.Fatal(err)
			}
			loads(t, rewritten, want)
			var values any
			ask(t, map[string]any{"do": "load_nested", "path": rewritten, "file": filepath.Join(t.TempDir(), "file")}, &values)

			folder := converted(t, v, convert.Options{To: view.Safetensors})
			var got struct{ Tensors []packed }
			ask(t, map[string]any{"do": "safetensors_load", "path": filepath.Join(folder, "model.safetensors")}, &got)
			same(t, got.Tensors, want)
			loads(t, converted(t, openView(t, folder), convert.Options{To: view.DCP}), want)
		})
	}
}

// TestConvertedEveryDType: a state with each dtype and awkward names and shapes goes from raw bytes through DCP and safetensors,
// cut into files in the midst of tensors, into PyTorch.
func TestConvertedEveryDType(t *testing.T) {
	var tensors []dcptest.Tensor
	for i, dtype := range torch.dtypes {
		if dtype == "c128" {
			continue // safetensors have no name for it
		}
		for k, shape := range [][]int{{}, {0, 3}, {7, 5}, {2, 3, 11}} {
			tensors = append(tensors, dcptest.New(fmt.Sprintf("a.b/%02d %d ü", i, k), dtype, shape...))
		}
	}
	dir := t.TempDir()
	target, err := convert.NewFolder(filepath.Join(dir, "raw"))
	if err != nil {
		t.Fatal(err)
	}
	index := &view.RawIndex{}
	for i, x := range tensors {
		name := fmt.Sprintf("%d.bin", i)
		write(t, target, name, x.Bytes)
		index.Tensors = append(index.Tensors, view.RawTensor{Name: x.Name, DType: x.DType, Shape: x.Shape, File: name, Size: int64(len(x.Bytes)), CRC64NVME: ckpt.Checksum(x.Bytes)})
	}
	b, err := index.Encode()
	if err != nil {
		t.Fatal(err)
	}
	write(t, target, view.RawIndexName, b)
	if err := target.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := openView(t, filepath.Join(dir, "raw"))
	want := contents(t, v)
	loads(t, converted(t, v, convert.Options{To: view.DCP, ShardBytes: 1600}), want)
	folder := converted(t, v, convert.Options{To: view.Safetensors, ShardBytes: 500})
	loads(t, converted(t, openView(t, folder), convert.Options{To: view.DCP}), want)
}

func write(t *testing.T, to convert.Target, name string, b []byte) {
	t.Helper()
	f, err := to.Create(t.Context(), name, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
