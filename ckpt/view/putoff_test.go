// SPDX-License-Identifier: Apache-2.0

package view

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx/ckpt"
)

// TestPutOff: conjugates and negatives that PyTorch had put off when it saved are read as what they are, whole and in parts.
func TestPutOff(t *testing.T) {
	const folder = "../torchfile/testdata/golden/"
	content, err := os.ReadFile(folder + "put_off.json")
	if err != nil {
		t.Fatal(err)
	}
	var digits map[string]string
	if err := json.Unmarshal(content, &digits); err != nil {
		t.Fatal(err)
	}
	ofDCP := map[string]string{}
	for _, name := range []string{"conj", "imag", "plain"} {
		ofDCP[name] = digits[name]
	}
	// The adjoint in complex64: rows of real parts 0 3, 1 4, 2 5 and imaginary parts one more.
	ofDCP["adjoint"] = "000000000000803f" + "0000404000008040" + "0000803f00000040" + "000080400000a040" + "0000004000004040" + "0000a0400000c040"
	for place, want := range map[string]map[string]string{folder + "put_off.pt": digits, "../dcp/testdata/dcp-2.15/put-off": ofDCP} {
		v, err := Open(t.Context(), place, openDirectory, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Tensors) != len(want) {
			t.Errorf("%s: %d tensors, want %d", place, len(v.Tensors), len(want))
		}
		got := make([]string, len(v.Tensors))
		all := make([]int, len(v.Tensors))
		for i := range all {
			all[i] = i
		}
		if err := v.Stream(t.Context(), all, func(i int, _ int64, p []byte) error {
			got[i] += hex.EncodeToString(p)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i := range v.Tensors {
			x := &v.Tensors[i]
			if got[i] != want[x.Name] {
				t.Errorf("%s: %s is %s, want %s", place, x.Name, got[i], want[x.Name])
			}
			if len(x.Shape) == 0 || x.Shape[0] < 2 {
				continue
			}
			box := Whole(x.Shape)
			box = Box{Offset: append([]int{1}, box.Offset[1:]...), Shape: append([]int{x.Shape[0] - 1}, x.Shape[1:]...)}
			p := make([]byte, x.Bytes()/int64(x.Shape[0])*int64(x.Shape[0]-1))
			if err := v.ReadBox(t.Context(), i, box, p); err != nil || !strings.HasSuffix(want[x.Name], hex.EncodeToString(p)) {
				t.Errorf("%s: all but the first of %s are %x, %v", place, x.Name, p, err)
			}
		}
		conj, plain := v.Tensor("conj"), v.Tensor("plain")
		for i := range v.Tensors[conj].Shards { // as an index has them that knows where the elements are
			if a, err := v.located(t.Context(), conj, i); err != nil {
				t.Fatal(err)
			} else if b, err := v.located(t.Context(), plain, i); err != nil {
				t.Fatal(err)
			} else {
				x, y := v.Tensors[conj], v.Tensors[plain]
				x.Shards, y.Shards = []Shard{a}, []Shard{b}
				if Judge(&x, &y) != Unknown {
					t.Errorf("%s: a tensor and its conjugate are judged by what is stored of both", place)
				}
			}
		}
	}
}

// TestUnknownProperty: a tensor with a property that is not known cannot be read, which is no damage; the others can.
func TestUnknownProperty(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../dcp/testdata/dcp-2.15/put-off")); err != nil {
		t.Fatal(err)
	}
	v, err := Open(t.Context(), dir, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	i := v.Tensor("conj")
	s := v.Tensors[i].Shards[0]
	path := filepath.Join(dir, s.Object)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	record := content[s.At : s.At+s.Length]
	z, err := zip.NewReader(bytes.NewReader(record), s.Length)
	if err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(z, "archive/data.pkl")
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Replace(text, []byte("conj"), []byte("even"), 1)
	sum := func(p []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(p)) }
	changed := bytes.ReplaceAll(bytes.Replace(record, text, other, 1), sum(text), sum(other))
	copy(record, changed)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(name string) error {
		i := v.Tensor(name)
		return v.ReadBox(t.Context(), i, Whole(v.Tensors[i].Shape), make([]byte, v.Tensors[i].Bytes()))
	}
	if err := read("conj"); !errors.Is(err, ckpt.ErrFormat) || errors.Is(err, ckpt.ErrCorrupt) || !strings.Contains(err.Error(), `tensor "conj": its record`) || !strings.Contains(err.Error(), `the property "even"`) {
		t.Error(err)
	}
	if err := read("imag"); err != nil {
		t.Error(err)
	}
}

// TestStructureIsNotASum: what is no damage that a checksum found does not say so, and ends with the same code.
func TestStructureIsNotASum(t *testing.T) {
	for name, content := range map[string]string{
		".metadata":   "]q\x00h\x00a.",
		"cut.pt":      "PK\x03\x04 and no more",
		"cut.tensors": "\x20\x00\x00\x00\x00\x00\x00\x00{\"a\":",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		place := filepath.Join(dir, name)
		if name == ".metadata" {
			place = dir
		}
		_, err := Open(t.Context(), place, nil, Options{})
		if !errors.Is(err, ckpt.ErrCorrupt) || strings.Contains(err.Error(), ckpt.ErrCorrupt.Error()) || !strings.HasSuffix(err.Error(), ": damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
