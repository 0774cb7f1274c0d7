// SPDX-License-Identifier: Apache-2.0

//go:build torch

package torchtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"phalanx/ckpt/dcp/dcptest"
	"phalanx/ckpt/pickle"
	"phalanx/ckpt/torchfile"
	"phalanx/ckpt/view"
)

// TestFilesOfPyTorch reads one torch.save file with every dtype in every order in memory.
func TestFilesOfPyTorch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.pt")
	var specs []packed
	for _, dtype := range torch.dtypes {
		for _, kind := range []string{"plain", "transposed", "sliced", "expanded", "parameter"} {
			if kind == "parameter" && dtype != "f32" { // few types can have gradients
				continue
			}
			spec := pack(dcptest.New(fmt.Sprint(dtype, " ", kind), dtype, 6, 5))
			spec.Kind = kind
			specs = append(specs, spec)
		}
	}
	image := pack(dcptest.New("image", "f32", 2, 3, 4, 5))
	image.Kind = "channels_last"
	specs = append(specs, image)
	for _, x := range []dcptest.Tensor{dcptest.New("scalar", "f64"), dcptest.New("empty", "i16", 0, 3)} {
		spec := pack(x)
		spec.Kind = "plain"
		specs = append(specs, spec)
	}
	var want []packed
	ask(t, map[string]any{"do": "torch_save_nested", "path": path, "tensors": specs}, &want)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := torchfile.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Tensors) != len(want) {
		t.Fatalf("%d tensors, want %d", len(f.Tensors), len(want))
	}
	v := openView(t, path)
	for i, w := range want {
		tensor, name := &f.Tensors[i], "model.layers.0."+w.Name
		if i == len(want)-1 {
			name = "tied"
		}
		at := slices.IndexFunc(v.Tensors, func(x view.Tensor) bool { return x.Name == name })
		if at < 0 {
			t.Errorf("%s: a view does not have it", name)
			continue
		}
		b := make([]byte, len(w.Bytes))
		if err := v.ReadBox(t.Context(), at, view.Whole(tensor.Shape), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tensor.Name != name || pickle.TorchName(tensor.DType) != w.DType || !slices.Equal(tensor.Shape, w.Shape) || !bytes.Equal(b, w.Bytes) {
			t.Errorf("%s %s %d % x, want %s %s %d % x", tensor.Name, tensor.DType, tensor.Shape, head(b), name, w.DType, w.Shape, head(w.Bytes))
		}
		if tensor.RequiresGrad != (specs[min(i, len(specs)-1)].Kind == "parameter" && name != "tied") {
			t.Errorf("%s: requires_grad %v", name, tensor.RequiresGrad)
		}
	}
	objects := map[string]string{}
	for _, o := range f.Objects {
		objects[o.Name] = torchfile.Text(o.Value, 40)
	}
	if fmt.Sprint(objects) != "map[other.3:None other.betas:(0.9, 0.95) other.lr:0.25 size:<a torch.Size>]" {
		t.Error(objects)
	}
	if first, last := f.Tensors[0], f.Tensors[len(f.Tensors)-1]; first.Storage != last.Storage {
		t.Errorf("tied tensors have the storages %s and %s", first.Storage, last.Storage)
	}
}

// TestCasts: the digests that package elem is tested with are those of this version of PyTorch.
func TestCasts(t *testing.T) {
	out := filepath.Join(t.TempDir(), "casts.json")
	script, err := filepath.Abs("../elem/testdata/write.py")
	if err != nil {
		t.Fatal(err)
	}
	ask(t, map[string]any{"do": "casts", "script": script, "out": out}, nil)
	var got, want map[string]string
	for path, sums := range map[string]*map[string]string{out: &got, "../elem/testdata/torch.json": &want} {
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, sums)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(got) < 100 {
		t.Errorf("only %d pairs of dtypes", len(got))
	}
	for pair, sum := range got {
		if sum != want[pair] {
			t.Errorf("%s: other elements than package elem is tested with", pair)
		}
	}
}
