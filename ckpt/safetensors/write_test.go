// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt/safetensors"
)

// content is what the tests write for a tensor: it depends on the name, so that tensors which change places are noticed.
func content(t safetensors.Tensor, w io.Writer) error {
	p := make([]byte, t.Length)
	for i := range p {
		p[i] = byte(len(t.Name) + i + int(t.Name[i%len(t.Name)]))
	}
	_, err := w.Write(p)
	return err
}

func write(t testing.TB, infos []phalanx.TensorInfo, metadata map[string]string) []byte {
	t.Helper()
	f, err := safetensors.Layout(infos, metadata)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := f.WriteTo(&b, content); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writable() []string {
	return slices.DeleteFunc(phalanx.DTypes(), func(d string) bool { return d == "c128" })
}

var anyInfo = rapid.Custom(func(t *rapid.T) phalanx.TensorInfo {
	return phalanx.TensorInfo{
		Name:  rapid.StringMatching(`[a-z.\p{L}"\\<&\x01 /]{1,12}`).Draw(t, "name"),
		DType: rapid.SampledFrom(writable()).Draw(t, "dtype"),
		Shape: rapid.SliceOfN(rapid.IntRange(0, 9), 0, 4).Draw(t, "shape"),
	}
})

// TestWhatIsWrittenIsRead: any tensors are read as they were written, at aligned places, and written the same in any order.
func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		infos := rapid.SliceOfNDistinct(anyInfo, 0, 12, func(i phalanx.TensorInfo) string { return i.Name }).Draw(rt, "infos")
		metadata := rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(rt, "metadata")
		file := write(t, infos, metadata)
		f := read(t, file)
		if !maps.Equal(f.Metadata, metadata) || len(f.Tensors) != len(infos) || f.DataAt%64 != 0 {
			rt.Fatalf("metadata %q, %d tensors, buffer at %d", f.Metadata, len(f.Tensors), f.DataAt)
		}
		for _, info := range infos {
			got, found := f.Find(info.Name)
			if !found || got.DType != info.DType || !slices.Equal(got.Shape, info.Shape) || got.Length != info.Bytes() {
				rt.Fatalf("%+v is read as %+v, found %v", info, got, found)
			}
			if size := int64(phalanx.DTypeSize(info.DType)); got.At%size != 0 || got.Length%64 == 0 && got.At%64 != 0 {
				rt.Fatalf("%+v: not aligned", got)
			}
			var want bytes.Buffer
			if err := content(got, &want); err != nil || !bytes.Equal(file[got.At:][:got.Length], want.Bytes()) {
				rt.Fatalf("%+v: other bytes, %v", got, err)
			}
		}
		slices.Reverse(infos)
		if !bytes.Equal(write(t, infos, metadata), file) {
			rt.Fatal("the order of the tensors changes the file")
		}
	})
}

func TestWriterCounts(t *testing.T) {
	f, err := safetensors.Layout([]phalanx.TensorInfo{{Name: "a", DType: "u8", Shape: []int{4}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, n := range map[string]int{`tensor "a": 1 bytes more`: 5, `tensor "a": 1 of 4 bytes are missing`: 3} {
		err := f.WriteTo(io.Discard, func(_ safetensors.Tensor, w io.Writer) error { _, err := w.Write(make([]byte, n)); return err })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := f.WriteTo(io.Discard, func(_ safetensors.Tensor, w io.Writer) error { return io.ErrClosedPipe }); err == nil {
		t.Error("an error of the content is lost")
	}
}

// TestBoxesAreFound: a tensor that is cut along its dimensions, in any number of files, is whole again; without one of its
// boxes, or with one twice, the folder is refused, unless the box is at the far end.
func TestBoxesAreFound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(1, 6), 1, 3).Draw(rt, "shape")
		boxes := [][2][]int{{make([]int, len(shape)), shape}}
		for range rapid.IntRange(0, 6).Draw(rt, "cuts") {
			i, d := rapid.IntRange(0, len(boxes)-1).Draw(rt, "box"), rapid.IntRange(0, len(shape)-1).Draw(rt, "dimension")
			at := rapid.IntRange(0, boxes[i][1][d]).Draw(rt, "at")
			first, second := [2][]int{slices.Clone(boxes[i][0]), slices.Clone(boxes[i][1])}, [2][]int{slices.Clone(boxes[i][0]), slices.Clone(boxes[i][1])}
			first[1][d], second[0][d], second[1][d] = at, second[0][d]+at, second[1][d]-at
			boxes = append(slices.Delete(boxes, i, i+1), first, second)
		}
		folder := files{}
		for i, b := range boxes {
			folder[safetensors.ShardName(i+1, 1, 1)] = boxFile(t, b[0], b[1])
		}
		set, err := safetensors.OpenFolder(t.Context(), folder)
		if err != nil {
			rt.Fatal(err)
		}
		if !slices.Equal(set.Tensors[0].Shape, shape) || len(set.Tensors[0].Pieces) != len(boxes) || !set.Boxes {
			rt.Fatalf("%+v", set)
		}
		victim := rapid.IntRange(0, len(boxes)-1).Draw(rt, "victim")
		elements := func(size []int) int {
			n := 1
			for _, s := range size {
				n *= s
			}
			return n
		}
		if elements(boxes[victim][1]) == 0 {
			return
		}
		folder["again.safetensors"] = folder[safetensors.ShardName(victim+1, 1, 1)]
		if _, err := safetensors.OpenFolder(t.Context(), folder); err == nil {
			rt.Fatal("a box that is there twice is not noticed")
		}
		delete(folder, "again.safetensors")
		delete(folder, safetensors.ShardName(victim+1, 1, 1))
		set, err = safetensors.OpenFolder(t.Context(), folder)
		if err == nil && elements(set.Tensors[0].Shape) != elements(shape)-elements(boxes[victim][1]) {
			rt.Fatal("a missing box is not noticed")
		}
	})
}

func TestTied(t *testing.T) {
	infos := []phalanx.TensorInfo{
		{Name: "out", DType: "f32", Shape: []int{2, 3}},
		{Name: "in", DType: "f32", Shape: []int{2, 3}},
		{Name: "flat", DType: "f32", Shape: []int{6}},
		{Name: "zero.1", DType: "f32", Shape: []int{2, 3}},
		{Name: "zero.2", DType: "f32", Shape: []int{2, 3}},
		{Name: "third", DType: "f32", Shape: []int{2, 3}},
	}
	written, aliases := safetensors.Tied(infos, []string{"x", "x", "x", "", "", "x"})
	if !slices.Equal(written, []int{1, 2, 3, 4}) || !slices.Equal(aliases, []safetensors.Alias{{Name: "out", Of: "in"}, {Name: "third", Of: "in"}}) {
		t.Fatal(written, aliases)
	}
	metadata, err := safetensors.AliasMetadata(map[string]string{"format": "pt"}, aliases)
	if err != nil {
		t.Fatal(err)
	}
	var kept []phalanx.TensorInfo
	for _, i := range written {
		kept = append(kept, infos[i])
	}
	f := read(t, write(t, kept, metadata))
	if got := f.Aliases(); !slices.Equal(got, aliases) || f.Metadata["format"] != "pt" {
		t.Fatalf("%+v, metadata %q", got, f.Metadata)
	}
	if _, err := safetensors.AliasMetadata(map[string]string{"out": "pt"}, aliases); err == nil || !strings.Contains(err.Error(), "key of the metadata") {
		t.Fatal(err)
	}
}

func TestSplit(t *testing.T) {
	var infos []phalanx.TensorInfo
	for i, n := range []int{4, 4, 20, 2, 0, 8, 1} {
		infos = append(infos, phalanx.TensorInfo{Name: fmt.Sprint(i), DType: "u8", Shape: []int{n}})
	}
	if got := fmt.Sprint(safetensors.Split(infos, 10)); got != "[[0 1] [2] [3 4 5] [6]]" {
		t.Error(got)
	}
	if got := safetensors.Split(nil, 10); len(got) != 1 || len(got[0]) != 0 {
		t.Error(got)
	}
	if a, b := safetensors.ModelName(2, 12), safetensors.ShardName(3, 2, 12); a != "model-00002-of-00012.safetensors" || b != "shard-00003-model-00002-of-00012.safetensors" {
		t.Error(a, b)
	}
}
