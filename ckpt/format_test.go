// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/mem"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden-dcp-v2 anew")

const (
	golden   = "testdata/golden-dcp-v2"
	goldenV1 = "testdata/golden-raw-v1" // written by an earlier release
)

// saveGolden writes a checkpoint that is fixed in every byte: two commits and a stub's worth of variety in a few kilobytes.
func saveGolden(t *testing.T, s ckpt.Store) (first, second *state) {
	t.Helper()
	layout := []phalanx.TensorInfo{
		{Name: "layers.0.weight", DType: "f32", Shape: []int{10, 16}},
		{Name: "layers.0.bias", DType: "bf16", Shape: []int{7}},
		{Name: "empty", DType: "u8", Shape: []int{0}},
		{Name: "steps \"é\"", DType: "i64", Shape: nil},
	}
	ramp := func(k byte) *state {
		st := blank(layout)
		for _, p := range st.content {
			for i := range p {
				p[i] = byte(i)*3 + k
			}
		}
		return st
	}
	first, second = ramp(1), ramp(2)
	for i, st := range []*state{first, second} {
		a := attempt(100*(i+1), uint64(i)+4, uint64(i))
		refs, err := shards(t, s, a, st, 2, ckpt.PlanOptions{ObjectBytes: 4096})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ckpt.Publish(t.Context(), s, publication(a, 1), refs); err != nil {
			t.Fatal(err)
		}
	}
	return first, second
}

func TestGolden(t *testing.T) {
	if *rewrite {
		if err := os.RemoveAll(golden); err != nil {
			t.Fatal(err)
		}
		s, err := fs.New(golden)
		if err != nil {
			t.Fatal(err)
		}
		saveGolden(t, s)
		if err := os.Remove(filepath.Join(golden, ".tmp")); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := fs.NewReadOnly(golden)
	if err != nil {
		t.Fatal(err)
	}
	now := mem.New()
	first, second := saveGolden(t, now)

	// Today's reader reads it, and what the release before wrote.
	old, err := fs.NewReadOnly(goldenV1)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []ckpt.Store{stored, old} {
		records, problems, err := ckpt.List(t.Context(), from, "job")
		if err != nil || len(problems) > 0 || len(records) != 2 {
			t.Fatal(records, problems, err)
		}
		for i, st := range []*state{first, second} {
			mustRestore(t, from, records[i].Commit, st)
			cp, err := ckpt.Open(t.Context(), from, records[i].Commit)
			if err != nil {
				t.Fatal(err)
			}
			report, err := cp.VerifyAll(t.Context(), nil)
			if err != nil || report.Err() != nil {
				t.Fatal(err, report.Err())
			}
		}
	}
	// Today's writer writes it, byte for byte.
	a, err := ckpt.ListAll(t.Context(), stored, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := ckpt.ListAll(t.Context(), now, "")
	if err != nil || len(a) != len(b) {
		t.Fatalf("%d objects are stored, %d are written: %v", len(a), len(b), err)
	}
	for i := range a {
		p, err := stored.Get(t.Context(), a[i].Key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		q, err := now.Get(t.Context(), b[i].Key, 0, -1)
		if err != nil || a[i].Key != b[i].Key || !bytes.Equal(p, q) {
			t.Fatalf("%s is stored, %s is written, and they differ (%v)", a[i].Key, b[i].Key, err)
		}
	}
}

func TestAttemptNames(t *testing.T) {
	a := ckpt.Attempt{Job: "j", Step: 7, Generation: phalanx.Generation{Epoch: 2, Number: 5}, Term: 12, Counter: 3}
	if a.Name() != "step-7-g2.5-a12.3" {
		t.Fatal(a.Name())
	}
	if b, err := ckpt.ParseAttempt("j", a.Name()); err != nil || b != a {
		t.Fatal(b, err)
	}
	for _, bad := range []string{"", "step-7", "step-7-g5", "step-7-g5-a1", "step-07-g5-a1.2", "step-7-g0.5-a1.2", "step-+7-g5-a1.2",
		"step-7-g5-a1.2.3", "step--1-g5-a1.2", "step-7-g5-a1.2/x", "step-99999999999999999999-g5-a1.2"} {
		if a, err := ckpt.ParseAttempt("j", bad); err == nil {
			t.Errorf("%q is %+v", bad, a)
		}
	}
	if (ckpt.Attempt{Job: "a/b"}).Validate() == nil || (ckpt.Attempt{}).Validate() == nil {
		t.Error("bad job names are taken")
	}
}

// goldenFiles gives the stored files whose names contain part.
func goldenFiles(tb testing.TB, part string) [][]byte {
	var found [][]byte
	err := filepath.WalkDir(golden, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, part) {
			var b []byte
			b, err = os.ReadFile(path)
			found = append(found, b)
		}
		return err
	})
	if err != nil || len(found) == 0 {
		tb.Fatalf("no golden file %s: %v", part, err)
	}
	return found
}

func TestDecodersRefuse(t *testing.T) {
	part := string(goldenFiles(t, "part-0.json")[0])
	for name, edit := range map[string][2]string{
		"newer format":   {`"format":2`, `"format":4`},
		"value":          {`"index":0`, `"value":true,"index":0`},
		"path":           {`"index":0`, `"path":["a"],"index":0`},
		"container":      {`"container":"dcp"`, `"container":"zip"`},
		"unknown field":  {`"format":2`, `"format":2,"extra":1`},
		"attempt":        {`"attempt":"step-100`, `"attempt":"../step-100`},
		"codec":          {`"codec":"raw"`, `"codec":"huff0"`},
		"unaligned":      {`"at":1024`, `"at":1032`},
		"negative":       {`"at":1024`, `"at":-64`},
		"beyond":         {`"at":1024`, `"at":64000`},
		"length":         {`"length":`, `"length":1`},
		"object":         {`"object":0`, `"object":7`},
		"object name":    {`"name":"__0`, `"name":"../__0`},
		"checksum":       {`"crc64nvme":"`, `"crc64nvme":"zz`},
		"not contiguous": {`"offset":[0,0]`, `"offset":[0,1]`},
		"dtype":          {`"dtype":"f32"`, `"dtype":"f31"`},
		"rank":           {`"rank":0`, `"rank":-1`},
		"trailing":       {"}\n", "} {}"},
	} {
		if !strings.Contains(part, edit[0]) {
			t.Fatalf("%s: the golden part has no %s", name, edit[0])
		}
		if _, err := ckpt.DecodePart([]byte(strings.Replace(part, edit[0], edit[1], 1))); !errors.Is(err, ckpt.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	commit := string(goldenFiles(t, "000000000002.json")[0])
	for name, edit := range map[string][2]string{
		"newer format": {`"format": 2`, `"format": 3`},
		"kind":         {`"kind": "commit"`, `"kind": "merge"`},
		"number":       {`"number": 2`, `"number": 0`},
		"first":        {`"number": 2`, `"number": 1`},
		"step":         {`"step": 200`, `"step": 201`},
		"job":          {`"job": "job"`, `"job": "a/b"`},
		"predecessor":  {`"predecessor": "`, `"predecessor": "0`},
		"part name":    {`"name": "part-0.json"`, `"name": "part-1.json"`},
		"part rank":    {`"rank": 1`, `"rank": 0`},
		"coordinate":   {`"coordinate": 0`, `"coordinate": 5`},
	} {
		if !strings.Contains(commit, edit[0]) {
			t.Fatalf("%s: the golden commit has no %s", name, edit[0])
		}
		edited := strings.Replace(commit, edit[0], edit[1], 1)
		if _, err := ckpt.DecodeRecord([]byte(edited)); !errors.Is(err, ckpt.ErrCorrupt) && name != "newer format" && name != "kind" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ckpt.DecodeRecord(summed(edited)); !errors.Is(err, ckpt.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// summed gives a commit object the checksum that its bytes have.
func summed(commit string) []byte {
	at := strings.LastIndex(commit, `"sum": "`) + len(`"sum": "`)
	zeroed := commit[:at] + strings.Repeat("0", 16) + commit[at+16:]
	return []byte(zeroed[:at] + ckpt.Checksum([]byte(zeroed)).String() + zeroed[at+16:])
}

// One changed bit anywhere in a commit object is noticed, also where the value would still make sense.
func TestEveryFlippedBitOfACommitObjectIsFound(t *testing.T) {
	commit := goldenFiles(t, "000000000002.json")[0]
	for i := range commit {
		for bit := range 8 {
			flipped := bytes.Clone(commit)
			flipped[i] ^= 1 << bit
			if r, err := ckpt.DecodeRecord(flipped); err == nil {
				t.Fatalf("bit %d of byte %d is not missed: %+v", bit, i, r)
			}
		}
	}
}

func FuzzPart(f *testing.F) {
	for _, b := range goldenFiles(f, "part-") {
		f.Add(b)
	}
	f.Add([]byte(`{"format":3,"container":"dcp","attempt":"step-1-g1-a1.0","rank":0,"coordinate":0,"layout":"` + strings.Repeat("0", 64) +
		`","tensors":[{"index":0,"name":"v","dtype":"u8","shape":[1],"d1":"` + strings.Repeat("0", 32) + `","value":true,"path":["a",1]}],"objects":[],"chunks":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ckpt.DecodePart(b)
		if err != nil {
			return
		}
		c, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ckpt.DecodePart(c); err != nil {
			t.Fatalf("what was decoded and encoded is refused: %v", err)
		}
		if _, err := ckpt.Merge([]*ckpt.Part{p}); err == nil {
			var covered int64
			for _, chunk := range p.Chunks {
				covered += chunk.Length
			}
			for _, tensor := range p.Tensors {
				covered -= tensor.Bytes()
			}
			if covered != 0 {
				t.Fatalf("merged with %d bytes too many", covered)
			}
		}
	})
}

func FuzzManifest(f *testing.F) {
	parts := goldenFiles(f, "part-")
	f.Add(parts[0], parts[1])
	f.Fuzz(func(t *testing.T, a, b []byte) {
		p, err := ckpt.DecodePart(a)
		if err != nil {
			return
		}
		q, err := ckpt.DecodePart(b)
		if err != nil {
			return
		}
		if manifests, err := ckpt.Merge([]*ckpt.Part{p, q}); err == nil {
			for _, m := range manifests {
				if _, err := ckpt.PlanReads(m, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func FuzzRecord(f *testing.F) {
	for _, b := range goldenFiles(f, "commits") {
		f.Add(b)
	}
	stub, err := json.Marshal(ckpt.Stub{Format: 1, Kind: "stub", Number: 1, Job: "job", Attempt: "step-1-g1-a1.1", Step: 1,
		Generation: phalanx.Generation{Number: 1}, SHA256: strings.Repeat("0", 64)})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := ckpt.DecodeRecord(stub); err != nil {
		f.Fatal(err)
	}
	f.Add(stub)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ckpt.DecodeRecord(b)
		if err != nil {
			return
		}
		if (r.Commit == nil) == (r.Stub == nil) || r.Number == 0 {
			t.Fatalf("%+v", r)
		}
		if a := r.Attempt(); a.Validate() != nil {
			t.Fatalf("attempt %+v", a)
		}
		r.Branch()
		r.Predecessor()
	})
}

func FuzzAttempt(f *testing.F) {
	f.Add("step-7-g2.5-a12.3")
	f.Fuzz(func(t *testing.T, name string) {
		if a, err := ckpt.ParseAttempt("job", name); err == nil && a.Name() != name {
			t.Fatalf("%q became %q", name, a.Name())
		}
	})
}
