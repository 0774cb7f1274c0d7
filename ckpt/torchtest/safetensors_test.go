// SPDX-License-Identifier: Apache-2.0

//go:build torch

package torchtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt/dcp/dcptest"
	"phalanx/ckpt/safetensors"
)

// storable are the dtypes that both this version of PyTorch and the format have.
func storable(t *testing.T) (dtypes []string) {
	t.Helper()
	for _, d := range torch.dtypes {
		if _, err := safetensors.DTypeName(d); err == nil {
			dtypes = append(dtypes, d)
		}
	}
	if len(dtypes) < 18 {
		t.Fatalf("only %v", dtypes)
	}
	return dtypes
}

// needsHF skips a test of what a version of PyTorch does not have.
func needsHF(t *testing.T) {
	t.Helper()
	if *version == "2.6" {
		t.Skip("PyTorch 2.6 has no HuggingFaceStorageReader")
	}
}

func samples(t *testing.T) (tensors []dcptest.Tensor) {
	t.Helper()
	for _, dtype := range storable(t) {
		for i, shape := range [][]int{{}, {0, 3}, {5}, {64}, {4, 6}, {3, 2, 2}} {
			tensors = append(tensors, dcptest.New(fmt.Sprintf("layer %d/ü.%s", i, dtype), dtype, shape...))
		}
	}
	slices.SortFunc(tensors, func(a, b dcptest.Tensor) int { return strings.Compare(a.Name, b.Name) })
	return tensors
}

func infos(tensors []dcptest.Tensor) (list []phalanx.TensorInfo) {
	for _, t := range tensors {
		list = append(list, phalanx.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	return list
}

// writeFile writes boxes of tensors as one file; boxes nil are whole ones.
func writeFile(t *testing.T, path string, tensors []dcptest.Tensor, metadata map[string]string) {
	t.Helper()
	f, err := safetensors.Layout(infos(tensors), metadata)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = f.WriteTo(&b, func(s safetensors.Tensor, w io.Writer) error {
		i := slices.IndexFunc(tensors, func(x dcptest.Tensor) bool { return x.Name == s.Name })
		_, err := w.Write(tensors[i].Bytes)
		return err
	})
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func packAll(tensors []dcptest.Tensor) (all []packed) {
	for _, t := range tensors {
		all = append(all, pack(t))
	}
	return all
}

func TestSafetensorsForPython(t *testing.T) {
	path, tensors, metadata := filepath.Join(t.TempDir(), "model.safetensors"), samples(t), map[string]string{"format": "pt", "a": "ü\n"}
	writeFile(t, path, tensors, metadata)
	var got struct {
		Tensors  []packed
		Metadata map[string]string
	}
	ask(t, map[string]any{"do": "safetensors_load", "path": path}, &got)
	same(t, got.Tensors, tensors)
	if !maps.Equal(got.Metadata, metadata) {
		t.Errorf("metadata %q", got.Metadata)
	}
}

// folder is a local folder.
type folder string

func (l folder) Files(context.Context) (map[string]int64, error) {
	sizes := map[string]int64{}
	err := filepath.WalkDir(string(l), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		name, _ := filepath.Rel(string(l), path)
		sizes[name] = info.Size()
		return err
	})
	return sizes, err
}

func (l folder) Get(_ context.Context, name string, off, n int64) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(string(l), name))
	if err != nil {
		return nil, err
	}
	return content[off:min(off+n, int64(len(content)))], nil
}

// readFolder reads all tensors of a folder, whole, and compares them.
func readFolder(t *testing.T, path string, want []dcptest.Tensor) *safetensors.Set {
	t.Helper()
	set, err := safetensors.OpenFolder(t.Context(), folder(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Tensors) != len(want) {
		t.Fatalf("%d tensors, want %d", len(set.Tensors), len(want))
	}
	for i, w := range set.Tensors {
		got := dcptest.New(w.Name, w.DType, w.Shape...)
		for _, p := range w.Pieces {
			content, err := folder(path).Get(t.Context(), p.File, p.At, p.Length)
			if err != nil {
				t.Fatal(err)
			}
			got.SetBox(dcptest.Box{Offset: p.Offset, Size: p.Size}, content)
		}
		if x := want[i]; got.Name != x.Name || got.DType != x.DType || !slices.Equal(got.Shape, x.Shape) || !bytes.Equal(got.Bytes, x.Bytes) {
			t.Errorf("%s %s %d % x, want %s %s %d % x", got.Name, got.DType, got.Shape, head(got.Bytes), x.Name, x.DType, x.Shape, head(x.Bytes))
		}
	}
	return set
}

func TestSafetensorsOfPython(t *testing.T) {
	dir, tensors := t.TempDir(), samples(t)
	ask(t, map[string]any{"do": "safetensors_save", "path": dir + "/model.safetensors", "tensors": packAll(tensors), "metadata": map[string]string{"a": "ü"}}, nil)
	if set := readFolder(t, dir, tensors); set.Files["model.safetensors"].Metadata["a"] != "ü" {
		t.Errorf("%q", set.Files["model.safetensors"].Metadata)
	}
}

// hfSamples are tensors of all dtypes that PyTorch's readers of these folders know.
func hfSamples(t *testing.T) []dcptest.Tensor {
	return slices.DeleteFunc(samples(t), func(x dcptest.Tensor) bool { return !safetensors.ReadByPyTorch(x.DType) })
}

// TestFoldersForPyTorch: whole tensors in several files with an index.
func TestFoldersForPyTorch(t *testing.T) {
	needsHF(t)
	dir, tensors := t.TempDir(), hfSamples(t)
	split := safetensors.Split(infos(tensors), 1500)
	if len(split) < 3 {
		t.Fatal(len(split))
	}
	index := safetensors.Index{WeightMap: map[string]string{}}
	for i, places := range split {
		var part []dcptest.Tensor
		name := safetensors.ModelName(i+1, len(split))
		for _, k := range places {
			part = append(part, tensors[k])
			index.WeightMap[tensors[k].Name] = name
			index.TotalSize += int64(len(tensors[k].Bytes))
		}
		writeFile(t, filepath.Join(dir, name), part, map[string]string{"format": "pt"})
	}
	if err := os.WriteFile(filepath.Join(dir, safetensors.IndexName), index.Encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	readFolder(t, dir, tensors)
	var got []packed
	ask(t, map[string]any{"do": "hf_load", "path": dir, "tensors": packAll(tensors)}, &got)
	same(t, got, tensors)
}

// TestBoxesForPyTorch: boxes in the files of several ranks.
func TestBoxesForPyTorch(t *testing.T) {
	needsHF(t)
	dir, tensors := t.TempDir(), hfSamples(t)
	writeBoxes(t, dir, tensors)
	if set := readFolder(t, dir, tensors); !set.Boxes {
		t.Error("no boxes")
	}
	var got []packed
	ask(t, map[string]any{"do": "hf_load", "path": dir, "tensors": packAll(tensors)}, &got)
	same(t, got, tensors)
}

// TestConsolidatedByPyTorch: PyTorch makes whole tensors of boxes, where it can.
func TestConsolidatedByPyTorch(t *testing.T) {
	needsHF(t)
	dir, out := t.TempDir(), t.TempDir()
	tensors := slices.DeleteFunc(samples(t), func(x dcptest.Tensor) bool {
		return !safetensors.ConsolidatedByPyTorch(x.DType) || len(x.Shape) == 0 // it writes zeros for scalars
	})
	writeBoxes(t, dir, tensors)
	files := map[string]int{}
	for i, x := range tensors {
		files[x.Name] = 1 + i%2
	}
	ask(t, map[string]any{"do": "hf_consolidate", "path": dir, "out": out, "files": files}, nil)
	if set := readFolder(t, out, tensors); !set.Indexed {
		t.Error("no index")
	}
}

// writeBoxes writes tensors as three ranks would.
func writeBoxes(t *testing.T, dir string, tensors []dcptest.Tensor) {
	t.Helper()
	const ranks = 3
	for rank := range ranks {
		var part []dcptest.Tensor
		offsets := map[string][]int{}
		for i, x := range tensors {
			box := x.Whole()
			if d := len(x.Shape) - 1; d >= 0 && x.Shape[d] >= ranks { // the last dimension, unevenly
				from, to := x.Shape[d]*rank/ranks, x.Shape[d]*(rank+1)/ranks
				box = dcptest.Box{Offset: make([]int, d+1), Size: slices.Clone(x.Shape)}
				box.Offset[d], box.Size[d] = from, to-from
			} else if i%ranks != rank {
				continue
			}
			part = append(part, dcptest.Tensor{Name: x.Name, DType: x.DType, Shape: box.Size, Bytes: x.Box(box)})
			offsets[x.Name] = box.Offset
		}
		writeFile(t, filepath.Join(dir, safetensors.ShardName(rank+1, 1, 1)), part, safetensors.ShardingMetadata(offsets))
	}
}

// TestFoldersOfPyTorch: what PyTorch writes at four ranks, and at one with an index.
func TestFoldersOfPyTorch(t *testing.T) {
	needsHF(t)
	var specs []packed
	var tensors []dcptest.Tensor
	files := map[string]int{}
	for i, dtype := range []string{"f32", "bf16", "i64"} {
		for k, place := range [][]string{{"0"}, {"1"}, {"R"}, {"0", "1"}, {"1", "0"}, nil} {
			x := dcptest.New(fmt.Sprint(dtype, ".", k), dtype, 7, 10)
			files[x.Name] = 1 + i
			spec := pack(x)
			spec.Place = place
			specs, tensors = append(specs, spec), append(tensors, x)
		}
	}
	slices.SortFunc(tensors, func(a, b dcptest.Tensor) int { return strings.Compare(a.Name, b.Name) })
	for _, ranks := range []int{1, 4} {
		dir := t.TempDir()
		ask(t, map[string]any{"do": "hf_save", "path": dir, "tensors": specs, "ranks": ranks, "files": files}, nil)
		if set := readFolder(t, dir, tensors); set.Indexed != (ranks == 1) || ranks > 1 && len(set.Files) < 9 {
			t.Errorf("%d ranks: indexed %v, %d files", ranks, set.Indexed, len(set.Files))
		}
	}
}

// holds reports whether the one tensor of a folder has the right bytes.
func holds(t *testing.T, path string, x dcptest.Tensor) bool {
	t.Helper()
	set, err := safetensors.OpenFolder(t.Context(), folder(path))
	if err != nil || len(set.Tensors) != 1 || len(set.Tensors[0].Pieces) != 1 {
		return false
	}
	p := set.Tensors[0].Pieces[0]
	content, err := folder(path).Get(t.Context(), p.File, p.At, p.Length)
	return err == nil && bytes.Equal(content, x.Bytes)
}

// TestTypesForPyTorch holds what is said of the types that PyTorch does not know.
func TestTypesForPyTorch(t *testing.T) {
	needsHF(t)
	for _, dtype := range storable(t) {
		dir, out, x := t.TempDir(), t.TempDir(), dcptest.New("x", dtype, 6, 2)
		writeFile(t, filepath.Join(dir, safetensors.FileName), []dcptest.Tensor{x}, safetensors.ShardingMetadata(map[string][]int{"x": {0, 0}}))
		var got []packed
		err := torch.do(map[string]any{"do": "hf_load", "path": dir, "tensors": packAll([]dcptest.Tensor{x})}, &got)
		read := err == nil && len(got) == 1 && bytes.Equal(got[0].Bytes, x.Bytes)
		if read != safetensors.ReadByPyTorch(dtype) {
			t.Errorf("%s: read %v, ReadByPyTorch says %v: %v", dtype, read, safetensors.ReadByPyTorch(dtype), err)
		}
		err = torch.do(map[string]any{"do": "hf_consolidate", "path": dir, "out": out, "files": map[string]int{"x": 1}}, nil)
		if whole := err == nil && holds(t, out, x); whole != safetensors.ConsolidatedByPyTorch(dtype) {
			t.Errorf("%s: consolidated %v, ConsolidatedByPyTorch says %v: %v", dtype, whole, safetensors.ConsolidatedByPyTorch(dtype), err)
		}
	}
}
