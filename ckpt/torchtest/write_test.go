// SPDX-License-Identifier: Apache-2.0

//go:build torch

package torchtest

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"phalanx/ckpt/dcp"
	"phalanx/ckpt/dcp/dcptest"
)

func shapes() [][]int {
	return [][]int{{}, {0}, {1}, {3, 0, 2}, {0, 1 << 40, 3}, {7}, {2, 3}, {300, 2}, {2, 3, 5}, {2, 3, 5, 7}, {7000}, slices.Repeat([]int{1}, 32)}
}

// TestRecords: torch.load reads a record of each dtype and of many shapes, and finds the payload where it is promised.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	var want []dcptest.Tensor
	var paths []string
	for _, dtype := range torch.dtypes {
		for i, shape := range shapes() {
			tensor := dcptest.New(filepath.Join(dir, fmt.Sprint(dtype, "-", i)), dtype, shape...)
			record, err := dcptest.Record(dtype, shape, tensor.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(tensor.Name, record, 0o644); err != nil {
				t.Fatal(err)
			}
			want, paths = append(want, tensor), append(paths, tensor.Name)
		}
	}
	if len(torch.dtypes) < 19 {
		t.Errorf("PyTorch has only the dtypes %v", torch.dtypes)
	}
	var got []packed
	ask(t, map[string]any{"do": "records", "paths": paths}, &got)
	same(t, got, want)
	for _, g := range got {
		if g.At != dcp.PayloadAt {
			t.Errorf("%s: PyTorch finds the payload at %d", g.Name, g.At)
		}
	}
}

// TestRecordOf4GiB: sizes of more than 32 bits. The file has a hole instead of zeros.
func TestRecordOf4GiB(t *testing.T) {
	const payload = 1<<32 + 4096
	crc := crc32.NewIEEE()
	zeros := make([]byte, 1<<20)
	crc.Write([]byte{1})
	for left := payload - 2; left > 0; left -= len(zeros) {
		crc.Write(zeros[:min(left, len(zeros))])
	}
	crc.Write([]byte{2})
	header, err := dcp.RecordHeader("u8", []int{payload}, payload, crc.Sum32())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "record")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, b := range map[int64][]byte{
		0: header, dcp.PayloadAt: {1}, dcp.PayloadAt + payload - 1: {2},
		dcp.PayloadAt + payload: dcp.RecordTrailer("u8", []int{payload}, payload, crc.Sum32()),
	} {
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	info, err := dcp.ParseRecord(f, dcp.RecordLen(payload))
	if err != nil || info.At != dcp.PayloadAt || info.StorageBytes != payload || info.CRC32 != crc.Sum32() {
		t.Fatalf("read as %+v, %v", info, err)
	}
	var got struct {
		Shape                   []int
		First, Middle, Last, At int
	}
	ask(t, map[string]any{"do": "large", "path": path}, &got)
	if !slices.Equal(got.Shape, []int{payload}) || got.First != 1 || got.Middle != 0 || got.Last != 2 || got.At != dcp.PayloadAt {
		t.Errorf("PyTorch has %+v", got)
	}
}

// names are what people call tensors, and what they might.
var names = []string{
	"model.layers.0.weight", "a/b", "with space", "größe.重み.вес", "a.b", "a", "quote'\"\\", "..", ".", "🙂", "tab\tnewline\n",
	strings.Repeat("long", 100),
}

// checkpoint writes a checkpoint of many tensors into a folder, whole and cut into boxes.
func checkpoint(t *testing.T, dir string) []dcptest.Tensor {
	t.Helper()
	var w dcptest.Writer
	var want []dcptest.Tensor
	files := []string{"__0_0.distcp", "__1_0.distcp", "deep/er/__2_0.distcp"}
	add := func(tensor dcptest.Tensor, boxes ...dcptest.Box) {
		if len(boxes) == 0 {
			boxes = []dcptest.Box{tensor.Whole()}
		}
		if err := w.Add(tensor, files, boxes...); err != nil {
			t.Fatal(err)
		}
		want = append(want, tensor)
	}
	for _, dtype := range torch.dtypes {
		add(dcptest.New("whole."+dtype, dtype, 3, 5))
		add(dcptest.New("cut."+dtype, dtype, 5, 4), quarters(5, 4, 2, 3)...)
		add(dcptest.New("scalar."+dtype, dtype))
	}
	for i, name := range names {
		add(dcptest.New(name, "f32", i+1))
	}
	add(dcptest.New("empty", "f32", 0))
	add(dcptest.New("empty.3d", "bf16", 4, 0, 3))
	add(dcptest.New("empty.cut", "f32", 0, 4), dcptest.Box{Offset: []int{0, 0}, Size: []int{0, 2}}, dcptest.Box{Offset: []int{0, 2}, Size: []int{0, 2}})
	rows := func(from, n int) dcptest.Box { return dcptest.Box{Offset: []int{from, 0}, Size: []int{n, 4}} }
	// Ranks without a share have boxes without elements: at the end, where another box begins, and within one.
	add(dcptest.New("size0.end", "f32", 3, 4), rows(0, 2), rows(2, 1), rows(3, 0), rows(3, 0))
	add(dcptest.New("size0.same", "f32", 3, 4), rows(0, 0), rows(0, 2), rows(2, 0), rows(2, 1))
	add(dcptest.New("size0.within", "f32", 3, 4), rows(0, 3), rows(1, 0))
	var boxes []dcptest.Box
	for i := range 2 * 3 * 2 {
		boxes = append(boxes, dcptest.Box{Offset: []int{i / 6 * 2, i / 2 % 3 * 2, i % 2 * 3}, Size: []int{2, 2, 3}})
	}
	add(dcptest.New("cut.3d", "i32", 4, 6, 6), boxes...)
	add(dcptest.New("cut.small", "u8", 70), lines(70)...)
	if err := w.Write(dir); err != nil {
		t.Fatal(err)
	}
	return want
}

// quarters cuts a matrix in two rows and two columns of boxes, of which the last are the smaller ones.
func quarters(rows, columns, row, column int) (boxes []dcptest.Box) {
	for _, r := range [][2]int{{0, row}, {row, rows - row}} {
		for _, c := range [][2]int{{0, column}, {column, columns - column}} {
			boxes = append(boxes, dcptest.Box{Offset: []int{r[0], c[0]}, Size: []int{r[1], c[1]}})
		}
	}
	return boxes
}

// lines cuts a vector into boxes of one element.
func lines(n int) (boxes []dcptest.Box) {
	for i := range n {
		boxes = append(boxes, dcptest.Box{Offset: []int{i}, Size: []int{1}})
	}
	return boxes
}

// TestLoad: plain torch.distributed.checkpoint.load reads what is written here, by its readers for local folders and for
// fsspec's file systems.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	want := checkpoint(t, dir)
	var blanks []packed
	for _, w := range want {
		w.Bytes = nil
		blanks = append(blanks, pack(w))
	}
	for _, reader := range []string{"", "files", "fsspec"} {
		var got []packed
		ask(t, map[string]any{"do": "load", "path": dir, "tensors": blanks, "reader": reader}, &got)
		same(t, got, want)
	}
	// And it is read here as what it is.
	m, err := dcptest.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	tensors, _, err := dcptest.ReadAll(dir, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if got := tensors[w.Name]; got.DType != w.DType || string(got.Bytes) != string(w.Bytes) {
			t.Errorf("%q is read as %s % x", w.Name, got.DType, head(got.Bytes))
		}
	}
}

// TestLoadSharded: ranks load what other numbers of ranks would have written, cut in other ways.
func TestLoadSharded(t *testing.T) {
	dir := t.TempDir()
	want := []dcptest.Tensor{dcptest.New("m.a", "f32", 10, 6), dcptest.New("m.b", "bf16", 7, 5), dcptest.New("m.c", "i64", 3), dcptest.New("m.d", "f32", 9, 8)}
	var w dcptest.Writer
	files := []string{"__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}
	cuts := [][]dcptest.Box{quarters(10, 6, 3, 5), quarters(7, 5, 4, 2), lines(3), {want[3].Whole()}}
	var specs []packed
	for i, tensor := range want {
		if err := w.Add(tensor, files, cuts[i]...); err != nil {
			t.Fatal(err)
		}
		p := pack(tensor)
		p.Bytes, p.Place = nil, [][]string{{"0", "1"}, {"1", "R"}, {"R", "0"}, {"1", "0"}}[i]
		specs = append(specs, p)
	}
	if err := w.Write(dir); err != nil {
		t.Fatal(err)
	}
	var got []packed
	ask(t, map[string]any{"do": "load_sharded", "path": dir, "tensors": specs, "mesh": []int{2, 2}, "out": filepath.Join(t.TempDir(), "out")}, &got)
	same(t, got, want)
}
