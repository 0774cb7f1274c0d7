// SPDX-License-Identifier: Apache-2.0

package torchfile_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"phalanx/ckpt/torchfile"
)

func load(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func open(t testing.TB, content []byte) *torchfile.File {
	t.Helper()
	f, err := torchfile.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func find(t testing.TB, f *torchfile.File, name string) *torchfile.Tensor {
	t.Helper()
	i := slices.IndexFunc(f.Tensors, func(x torchfile.Tensor) bool { return x.Name == name })
	if i < 0 {
		t.Fatalf("no tensor %s", name)
	}
	return &f.Tensors[i]
}

// TestGolden compares every tensor of what PyTorch wrote with what PyTorch says it holds.
func TestGolden(t *testing.T) {
	for _, name := range []string{"types", "views", "put_off", "tensor_put_off", "nested", "protocol5", "tuple", "tensor", "unreadable", "little", "big", "zip64"} {
		t.Run(name, func(t *testing.T) {
			f := open(t, load(t, name+".pt"))
			var want map[string]string
			if err := json.Unmarshal(load(t, name+".json"), &want); err != nil {
				t.Fatal(err)
			}
			for i := range f.Tensors {
				tensor := &f.Tensors[i]
				digits, known := want[tensor.Name]
				delete(want, tensor.Name)
				if err := tensor.Readable(); err != nil {
					if !errors.Is(err, torchfile.ErrUnsupported) || known {
						t.Errorf("%s: %v", tensor.Name, err)
					}
					continue
				}
				var b bytes.Buffer
				if err := f.WriteTo(&b, tensor); err != nil {
					t.Errorf("%s: %v", tensor.Name, err)
				}
				if got := hex.EncodeToString(b.Bytes()); !known || got != digits || int64(b.Len()) != tensor.Bytes() {
					t.Errorf("%s: known %v, bytes %s, want %s", tensor.Name, known, got, digits)
				}
			}
			if len(want) > 0 {
				t.Errorf("not found: %v", want)
			}
		})
	}
}

func TestGoldenObjects(t *testing.T) {
	f := open(t, load(t, "nested.pt"))
	got := map[string]string{}
	for _, o := range f.Objects {
		got[o.Name] = torchfile.Text(o.Value, 60)
	}
	for name, want := range map[string]string{
		"step": "7", "big": "1208925819614629174706176", "name": `"a \"b\""`, "none": "None", "flag": "True", "lr": "0.001",
		"betas": "(0.9, 0.999)", "list.1": `"x"`, "plain": `[1, [2, 3], "y"]`, "lists.0": "[1, 2]", "dtype": "torch.bfloat16", "size": "<a torch.Size>", "device": "<a torch.device>",
		"optim.param_groups.0.eps": "1e-08", "optim.param_groups.0.params": "[0, 1, 2, 3]", "optim.param_groups.0.amsgrad": "False",
	} {
		if got[name] != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	for _, o := range open(t, load(t, "protocol5.pt")).Objects {
		if want := map[string]string{"raw": `b"\x00\xff"`, "set": "{1}"}[o.Name]; want != "" && torchfile.Text(o.Value, 60) != want {
			t.Errorf("%s is %s, want %s", o.Name, torchfile.Text(o.Value, 60), want)
		}
	}
	if p := find(t, f, "parameter"); !p.RequiresGrad {
		t.Error("a parameter without requires_grad")
	}
	if five := find(t, f, "5"); !slices.Equal(five.Path, []any{"5"}) {
		t.Error(five.Path)
	}
	if deep := find(t, f, "list.2.deep"); !slices.Equal(deep.Path, []any{"list", 2, "deep"}) {
		t.Error(deep.Path)
	}
	unreadable := open(t, load(t, "unreadable.pt"))
	names := map[string]bool{}
	for _, o := range unreadable.Objects {
		names[o.Name] = strings.HasPrefix(torchfile.Text(o.Value, 60), "<a torch._utils._rebuild_")
	}
	if !names["sparse"] || !names["quantized"] || !names["meta"] {
		t.Errorf("%v", names)
	}
	if f4 := find(t, unreadable, "f4"); f4.Readable() == nil || !errors.Is(unreadable.WriteTo(&bytes.Buffer{}, f4), torchfile.ErrUnsupported) {
		t.Errorf("%+v", f4)
	}
	module := open(t, load(t, "module.pt"))
	if len(module.Tensors) != 0 || len(module.Objects) != 1 || torchfile.Text(module.Objects[0].Value, 60) != "<a __main__.Net>" {
		t.Errorf("%+v", module)
	}
}

// TestSharedStorage: views of a storage say so, and only what they show is written.
func TestSharedStorage(t *testing.T) {
	f := open(t, load(t, "views.pt"))
	whole, column := find(t, f, "whole"), find(t, f, "column")
	if whole.Storage != column.Storage || column.Bytes() != 16 || column.StorageBytes != 96 || column.CRC32 != whole.CRC32 {
		t.Errorf("%+v, %+v", whole, column)
	}
	if one, err := f.Locate(whole); err != nil {
		t.Error(err)
	} else if two, err := f.Locate(column); err != nil || one != two || one%64 != 0 {
		t.Error(one, two, err)
	}
}

func TestForeignGolden(t *testing.T) {
	for name, want := range map[string]string{
		"legacy.pt":   "before 1.6",
		"script.pt":   "TorchScript",
		"deflated.pt": "is compressed (method 8)",
	} {
		content := load(t, name)
		f, err := torchfile.Open(bytes.NewReader(content), int64(len(content)))
		if !errors.Is(err, torchfile.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}
