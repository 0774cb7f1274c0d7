// SPDX-License-Identifier: Apache-2.0

//go:build torch

package torchtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx/ckpt/dcp"
	"phalanx/ckpt/dcp/dcptest"
	"phalanx/ckpt/pickle"
)

// kinds are tensors of all dtypes, with their elements in memory in the ways that PyTorch has.
func kinds() (tensors []packed) {
	add := func(t dcptest.Tensor, kind string, place ...string) {
		p := pack(t)
		p.Kind, p.Place = kind, place
		tensors = append(tensors, p)
	}
	for _, dtype := range torch.dtypes {
		add(dcptest.New("plain."+dtype, dtype, 3, 4), "plain")
		add(dcptest.New("transposed."+dtype, dtype, 3, 4), "transposed")
	}
	add(dcptest.New("scalar", "f64"), "plain")
	add(dcptest.New("empty", "f32", 0, 3), "plain")
	add(dcptest.New("sliced", "i32", 5, 7), "sliced")
	add(dcptest.New("expanded", "f32", 2, 5), "expanded")
	add(dcptest.New("parameter", "bf16", 6), "parameter")
	add(dcptest.New("channels", "f32", 2, 3, 4, 5), "channels_last")
	return tensors
}

// TestReadCheckpoint: what torch.distributed.checkpoint.save writes at one rank and at four is read here.
func TestReadCheckpoint(t *testing.T) {
	for _, ranks := range []int{1, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			tensors := kinds()
			if ranks > 1 {
				for _, place := range [][]string{{"0"}, {"1"}, {"R"}, {"0", "1"}, {"1", "R"}} {
					p := pack(dcptest.New("cut."+strings.Join(place, "."), "f32", 7, 6))
					p.Kind, p.Place = "plain", place
					tensors = append(tensors, p)
				}
				p := pack(dcptest.New("fewer rows than ranks", "f32", 3, 2))
				p.Kind, p.Place = "plain", []string{"0"}
				tensors = append(tensors, p)
			}
			dir := t.TempDir()
			var want []packed
			ask(t, map[string]any{"do": "save", "path": dir, "tensors": tensors, "ranks": ranks}, &want)
			m, err := dcptest.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			if items := map[string]int{"2.15": 6}[*version]; m.PropertyItems != max(items, 5) || len(m.Foreign) > 0 {
				t.Errorf("%d properties, foreign %v", m.PropertyItems, m.Foreign)
			}
			got, objects, err := dcptest.ReadAll(dir, m)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Errorf("%d tensors, want %d", len(got), len(want))
			}
			for _, w := range want {
				name := "model.layers.0." + w.Name
				if g := got[name]; pickle.TorchName(g.DType) != w.DType || fmt.Sprint(g.Shape) != fmt.Sprint(w.Shape) || !bytes.Equal(g.Bytes, w.Bytes) {
					t.Errorf("%q: %s %v % x, want %s %v % x", w.Name, g.DType, g.Shape, head(g.Bytes), w.DType, w.Shape, head(w.Bytes))
				}
				if path := fmt.Sprint(m.Paths[name]...); path != fmt.Sprint("model", "layers", 0, w.Name) {
					t.Errorf("%q has the path %v", name, m.Paths[name])
				}
			}
			if objects["other.lr"] != 0.25 || objects["other.name"] != "ü" || fmt.Sprint(objects["other.big"]) != "1180591620717411303424" {
				t.Errorf("objects %v", objects)
			}
			rewrite(t, dir, m, want)
		})
	}
}

// rewrite puts an index that is written here in the place of PyTorch's, and lets PyTorch read the checkpoint again.
func rewrite(t *testing.T, dir string, m *dcp.Metadata, want []packed) {
	t.Helper()
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, dcp.MetadataName), b, 0o644); err != nil {
		t.Fatal(err)
	}
	var values struct {
		Model struct{ Layers []map[string]packed }
		Other struct {
			LR   float64
			Name string
		}
	}
	ask(t, map[string]any{"do": "load_nested", "path": dir, "file": filepath.Join(t.TempDir(), "file")}, &values)
	if len(values.Model.Layers) != 1 || values.Other.LR != 0.25 || values.Other.Name != "ü" {
		t.Fatalf("PyTorch has %+v", values)
	}
	for _, w := range want {
		if g := values.Model.Layers[0][w.Name]; g.DType != w.DType || fmt.Sprint(g.Shape) != fmt.Sprint(w.Shape) || !bytes.Equal(g.Bytes, w.Bytes) {
			t.Errorf("%q: PyTorch has %s %v % x, want %s %v % x", w.Name, g.DType, g.Shape, head(g.Bytes), w.DType, w.Shape, head(w.Bytes))
		}
	}
}

// TestGolden: checkpoints that PyTorch 2.0, 2.11 and 2.15 wrote, with an index written here, are read by any version. Without it
// the ones of 2.15 are not: it is what the five properties are for.
func TestGolden(t *testing.T) {
	for _, folder := range []string{"dcp-2.0/d1", "dcp-2.11/d1", "dcp-2.11/d2", "dcp-2.11/d4", "dcp-2.15/d1", "dcp-2.15/d2", "dcp-2.15/d4"} {
		t.Run(folder, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("../dcp/testdata", folder))); err != nil {
				t.Fatal(err)
			}
			m, err := dcptest.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			tensors, _, err := dcptest.ReadAll(dir, m)
			if err != nil {
				t.Fatal(err)
			}
			var want []dcptest.Tensor
			var blanks []packed
			for _, tensor := range m.Tensors {
				w := tensors[tensor.Name]
				want = append(want, w)
				w.Bytes = nil
				blanks = append(blanks, pack(w))
			}
			load := map[string]any{"do": "load", "path": dir, "tensors": blanks}
			tooNew := strings.HasPrefix(folder, "dcp-2.15") && *version != "2.15"
			if err := torch.do(load, nil); (err != nil) != tooNew {
				t.Errorf("with its own index: %v", err)
			}
			b, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, dcp.MetadataName), b, 0o644); err != nil {
				t.Fatal(err)
			}
			var got []packed
			ask(t, load, &got)
			same(t, got, want)
		})
	}
}

// TestReadRecords: files of torch.save with one tensor are records.
func TestReadRecords(t *testing.T) {
	dir := t.TempDir()
	var want []packed
	ask(t, map[string]any{"do": "torch_save", "path": dir, "tensors": kinds()}, &want)
	for i, w := range want {
		record, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := dcptest.Elements(record, pickle.DType(w.DType), w.Shape)
		if err != nil || !bytes.Equal(got, w.Bytes) {
			t.Errorf("%s: % x, want % x, %v", w.Name, head(got), head(w.Bytes), err)
		}
	}
}

// TestReadObjects: what is no tensor is read as data.
func TestReadObjects(t *testing.T) {
	dir := t.TempDir()
	ask(t, map[string]any{"do": "pickle_objects", "path": dir}, nil)
	for name, check := range map[string]func(any) bool{
		"number": func(v any) bool { return v == any(int64(3)) },
		"text":   func(v any) bool { return v == any("ü") },
		"list": func(v any) bool {
			list, ok := v.(*pickle.List)
			if !ok || len(list.Items) != 2 || list.Items[0] != any(int64(1)) {
				return false
			}
			tuple, ok := list.Items[1].(*pickle.Tuple)
			return ok && len(tuple.Items) == 2 && tuple.Items[0] == any(2.5) && tuple.Items[1] == nil
		},
		"dict": func(v any) bool {
			dict, ok := v.(*pickle.Dict)
			if !ok {
				return false
			}
			a, _ := dict.Get("a")
			tensor, _ := dict.Get("t")
			described, err := pickle.AsTensor(tensor)
			return a == any(true) && err == nil && described.DType == "f32" && described.Storage == "0"
		},
	} {
		record, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		v, err := dcp.ReadObject(bytes.NewReader(record), int64(len(record)))
		if err != nil || !check(v) {
			t.Errorf("%s is %s, %v", name, pickle.Describe(v), err)
		}
	}
}
