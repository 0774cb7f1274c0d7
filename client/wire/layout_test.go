// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"phalanx"
	"phalanx/client/wire/gen/layout"
)

var update = flag.Bool("update", false, "write testdata anew")

func TestGeneratedFilesAreCurrent(t *testing.T) {
	text, err := os.ReadFile("page.toml")
	if err != nil {
		t.Fatal(err)
	}
	files, err := layout.Generate(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s does not come from page.toml; run go generate ./client/wire", name)
		}
	}
}

func TestGeneratorRefuses(t *testing.T) {
	text, err := os.ReadFile("page.toml")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"unknown key":  {"minor = ", "minr = 1\nminor = "},
		"unknown type": {`"step step", "sequence u64", "abort bool"`, `"step stp"`},
		"no type":      {`"step step", "sequence u64", "abort bool"`, `"step"`},
		"equal names":  {`"step step", "sequence u64", "abort bool"`, `"at step"`},
		"full region":  {"offset = 64\nend = 24576", "offset = 64\nend = 1024"},
		"enumeration":  {`"park 0 wait`, `"park zero wait`},
	} {
		broken := bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(broken, text) {
			t.Fatalf("%s: nothing was changed", name)
		}
		if _, err := layout.Generate(broken); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Nothing overlaps, cells start at 64-byte boundaries, and what was released stays where it is.
func TestPlaces(t *testing.T) {
	owner := make([]string, PageBytes)
	for _, p := range Places {
		if p.Name == "S_HEADER" {
			continue
		}
		if p.Offset%64 != 0 || p.Cell && (p.Stride%64 != 0 || 8+16*p.Words > p.Stride) {
			t.Errorf("%+v is not aligned or does not fit", p)
		}
		for at := p.Offset; at < p.Offset+p.Count*p.Stride; at++ {
			if owner[at] != "" || at < 64 {
				t.Fatalf("%s overlaps %q at byte %d", p.Name, owner[at], at)
			}
			owner[at] = p.Name
		}
	}
	const file = "testdata/offsets.json"
	if *update {
		writeJSON(t, file, Places)
	}
	var released []Place
	readJSON(t, file, &released)
	now := map[string]Place{}
	for _, p := range Places {
		now[p.Name] = p
	}
	for _, p := range released {
		if now[p.Name] != p {
			t.Errorf("released as %+v, now %+v: raise the major version or put new cells last", p, now[p.Name])
		}
	}
}

func TestEnumerationsPrint(t *testing.T) {
	for got, want := range map[string]string{
		ActionRun.String(): "run", PhaseBegin.String(): "begin", OpAllReduce.String(): "all_reduce", DTypeBF16.String(): "bf16",
		StatusRevoked.String(): "revoked", Status(9).String(): "status 9", SlabStateFull.String(): "full", WhyVoteNotOK.String(): "vote_not_ok",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestLayoutSlab(t *testing.T) {
	l, err := LayoutSlab([]phalanx.TensorInfo{{Name: "w", DType: "f32", Shape: []int{3, 5}}, {Name: "empty", DType: "f16", Shape: []int{0, 1 << 40}}, {Name: "n", DType: "i64"}})
	if err != nil {
		t.Fatal(err)
	}
	if l.Offsets[0] != 4096 || l.Sizes[0] != 60 || l.Offsets[1] != 4160 || l.Sizes[1] != 0 || l.Offsets[2] != 4160 || l.Sizes[2] != 8 || l.Total != 4224 {
		t.Errorf("layout %+v", l)
	}
	slab, err := NewSlab(make([]byte, l.Total), l)
	if err != nil {
		t.Fatal(err)
	}
	if len(slab.Tensor(0)) != 60 || cap(slab.Tensor(0)) != 60 {
		t.Errorf("tensor of %d bytes, capacity %d", len(slab.Tensor(0)), cap(slab.Tensor(0)))
	}
	if _, err := NewSlab(make([]byte, l.Total-1), l); err == nil {
		t.Error("a slab that is too small was taken")
	}
	want := SlabHeader{LabelStep: 7, State: SlabStateFull, LayoutHash: l.Hash, Coordinate: 2}
	slab.WriteHeader(want)
	if got, n := slab.ReadHeader(); got != want || n != 1 {
		t.Errorf("header %+v, %d", got, n)
	}
	for _, bad := range []phalanx.TensorInfo{{DType: "f31"}, {DType: "f32", Shape: []int{-1}}, {DType: "f64", Shape: []int{1 << 40, 1 << 40}}} {
		if _, err := LayoutSlab([]phalanx.TensorInfo{bad}); err == nil {
			t.Errorf("%+v was placed", bad)
		}
	}
}

func writeJSON(t *testing.T, file string, v any) {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}
