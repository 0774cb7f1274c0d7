// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/pickle"
)

// handedBytes are the bytes of a program's boxes.
type handedBytes [][]byte

func (h handedBytes) Layout() []phalanx.TensorInfo { return nil }

func (h handedBytes) ReadAt(tensor int, off int64, p []byte) error {
	copy(p, h[tensor][off:])
	return nil
}

// hand writes one batch.
func hand(t *testing.T, s ckpt.Store, a ckpt.Attempt, writer phalanx.Rank, batch int, boxes []ckpt.SheetBox, content [][]byte) {
	t.Helper()
	if _, err := ckpt.WriteSheet(t.Context(), s, a, writer, batch, boxes, handedBytes(content), ckpt.PlanOptions{ObjectBytes: 4096}); err != nil {
		t.Fatal(err)
	}
}

func count(n, from int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(from + i)
	}
	return b
}

// handOver writes what two ranks have of a state: a tensor split by columns, one that rank 1 holds two boxes of, one whole, an
// empty one, and a value; and gives the index that names them.
func handOver(t *testing.T, s ckpt.Store, a ckpt.Attempt) *dcp.Metadata {
	t.Helper()
	hand(t, s, a, 0, 0, []ckpt.SheetBox{
		{File: "f0", At: 0, Length: 24, DType: "f32", Shape: []int{3, 2}},
		{File: "f0", At: 1, Length: 9000, DType: "u8", Shape: []int{9000}, Value: true},
		{File: "f0", At: 2, Length: 4, DType: "i16", Shape: []int{2}}, // named by nobody
	}, [][]byte{count(24, 1), count(9000, 2), count(4, 3)})
	hand(t, s, a, 1, 0, []ckpt.SheetBox{{File: "f1", At: 0, Length: 12, DType: "f32", Shape: []int{3, 1}}, {File: "f1", At: 1, Length: 8, DType: "i64", Shape: []int{}}},
		[][]byte{count(12, 50), count(8, 60)})
	hand(t, s, a, 1, 1, []ckpt.SheetBox{{File: "f2", At: 0, Length: 2, DType: "u8", Shape: []int{2}}, {File: "f2", At: 1, Length: 3, DType: "u8", Shape: []int{3}}},
		[][]byte{count(2, 70), count(3, 72)})
	return &dcp.Metadata{
		Tensors: []dcp.Tensor{
			{Name: "w", DType: "f32", Shape: []int{3, 3}, RequiresGrad: true, Chunks: []dcp.Chunk{
				{Offset: []int{0, 0}, Size: []int{3, 2}, File: "f0", At: 0, Length: 24}, {Offset: []int{0, 2}, Size: []int{3, 1}, File: "f1", At: 0, Length: 12}}},
			{Name: "s", DType: "i64", Shape: []int{}, Chunks: []dcp.Chunk{{Offset: []int{}, Size: []int{}, File: "f1", At: 1, Length: 8}}},
			{Name: "two", DType: "u8", Shape: []int{5}, Chunks: []dcp.Chunk{
				{Offset: []int{0}, Size: []int{2}, File: "f2", At: 0, Length: 2}, {Offset: []int{2}, Size: []int{3}, File: "f2", At: 1, Length: 3}}},
			{Name: "none", DType: "bf16", Shape: []int{0, 4}},
		},
		Objects: []dcp.Object{{Name: "extra", File: "f0", At: 1, Length: 9000}},
		Paths:   map[string][]any{"w": {"model", "w"}, "extra": {"list", 3}, "s": {"s"}},
	}
}

func publishHanded(t *testing.T, s ckpt.Store, a ckpt.Attempt, m *dcp.Metadata) (ckpt.Record, error) {
	t.Helper()
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return ckpt.PublishHanded(t.Context(), s, ckpt.Handed{Attempt: a, Index: b, UnixNS: 1})
}

// TestPublishHanded: what programs wrote becomes a checkpoint like others: whole, verified, with an index that PyTorch reads.
func TestPublishHanded(t *testing.T) {
	s, a := mem.New(), attempt(4, 1, 1)
	m := handOver(t, s, a)
	if found, err := ckpt.Latest(t.Context(), s, "job"); !errors.Is(err, ckpt.ErrNoCheckpoint) {
		t.Fatalf("seen before it is published: %+v, %v", found, err)
	}
	r, err := publishHanded(t, s, a, m)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := publishHanded(t, s, a, m); err != nil || again.SHA256 != r.SHA256 {
		t.Errorf("published again: %v", err)
	}
	cp, err := ckpt.OpenLatest(t.Context(), s, "job")
	if err != nil {
		t.Fatal(err)
	}
	if len(cp.States()) != 3 { // rank 1 has two boxes of one tensor
		t.Errorf("%d coordinates", len(cp.States()))
	}
	report, err := cp.VerifyAll(t.Context(), nil)
	if err != nil || !report.OK() {
		t.Errorf("%v, %v", err, report.Err())
	}
	globals := map[string]ckpt.GlobalTensor{}
	for _, g := range cp.Globals() {
		globals[g.Name] = g
	}
	if g := globals["w"]; !reflect.DeepEqual(g.Path, ckpt.Path{"model", "w"}) || !g.RequiresGrad || len(g.Pieces) != 2 || g.Value {
		t.Errorf("%+v", g)
	}
	if g := globals["extra"]; !g.Value || !reflect.DeepEqual(g.Path, ckpt.Path{"list", 3}) || len(g.Pieces) != 1 {
		t.Errorf("%+v", g)
	}
	if g := globals["none"]; len(g.Pieces) != 0 || !slices.Equal(g.Shape, []int{0, 4}) {
		t.Errorf("%+v", g)
	}
	index, err := cp.ReadIndex(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := dcp.DecodeMetadata(index, pickle.Limits{})
	if err != nil || stored.PropertyItems != 5 || !reflect.DeepEqual(stored.Paths["extra"], []any{"list", 3}) {
		t.Fatalf("%+v, %v", stored, err)
	}
	o := stored.Objects[0]
	from, record, err := cp.ReadRecord(t.Context(), o.File, o.At)
	if err != nil || o.Length != 9000 || !bytes.Equal(record[o.At-from:][:9000], count(9000, 2)) {
		t.Errorf("the value as PyTorch finds it: %d bytes, %v", o.Length, err)
	}
	for _, x := range stored.Tensors {
		for _, c := range x.Chunks {
			from, record, err := cp.ReadRecord(t.Context(), c.File, c.At)
			if err != nil || from != c.At || int64(len(record)) != c.Length {
				t.Fatalf("%s: [%d, +%d), %v", x.Name, from, len(record), err)
			}
			info, err := dcp.ParseRecord(bytes.NewReader(record), c.Length)
			if err != nil || !slices.Equal(info.Shape, c.Size) {
				t.Errorf("%s: %+v, %v", x.Name, info, err)
			}
		}
	}
}

// TestAssembleRefuses: nothing is published of what the index and the sheets do not both say.
func TestAssembleRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *dcp.Metadata)
		says   string
		is     error
	}{
		"nobody wrote":   {func(m *dcp.Metadata) { m.Tensors[0].Chunks[1].At = 7 }, "where nobody wrote", ckpt.ErrIncomplete},
		"another dtype":  {func(m *dcp.Metadata) { m.Tensors[0].DType = "i32" }, "rank 0 wrote f32[3 2]", ckpt.ErrIncomplete},
		"another length": {func(m *dcp.Metadata) { m.Tensors[1].Chunks[0].Length = 9 }, "rank 1 wrote", ckpt.ErrIncomplete},
		"a gap":          {func(m *dcp.Metadata) { m.Tensors[0].Chunks = m.Tensors[0].Chunks[:1] }, "hold 6 of its 9", ckpt.ErrIncomplete},
		"an overlap": {func(m *dcp.Metadata) { m.Tensors[0].Shape = []int{3, 3}; m.Tensors[0].Chunks[1].Offset = []int{0, 1} },
			"both hold elements", ckpt.ErrIncomplete},
		"a value as a tensor": {func(m *dcp.Metadata) {
			m.Objects = nil
			m.Tensors[1] = dcp.Tensor{Name: "s", DType: "u8", Shape: []int{9000}, Chunks: []dcp.Chunk{{Offset: []int{0}, Size: []int{9000}, File: "f0", At: 1, Length: 9000}}}
		}, "where rank 0 wrote", ckpt.ErrIncomplete},
		"a tensor as a value": {func(m *dcp.Metadata) { m.Objects[0].At, m.Objects[0].Length = 2, 4 }, "where rank 0 wrote", ckpt.ErrIncomplete},
		"two names":           {func(m *dcp.Metadata) { x := m.Tensors[1]; x.Name = "again"; m.Tensors = append(m.Tensors, x) }, "two names", ckpt.ErrIncomplete},
		"transformed":         {func(m *dcp.Metadata) { m.Objects[0].Transforms = []string{"stream.zstd/1"} }, "without extensions", ckpt.ErrFormat},
		"a foreign dtype":     {func(m *dcp.Metadata) { m.Tensors[1].DType, m.Tensors[1].DTypeName = "", "qint8" }, "torch.qint8 cannot", ckpt.ErrFormat},
		"nothing":             {func(m *dcp.Metadata) { *m = dcp.Metadata{} }, "nothing to publish", ckpt.ErrIncomplete},
	} {
		s, a := mem.New(), attempt(4, 1, 1)
		m := handOver(t, s, a)
		c.change(m)
		_, err := publishHanded(t, s, a, m)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ckpt.Latest(t.Context(), s, "job"); !errors.Is(err, ckpt.ErrNoCheckpoint) {
			t.Errorf("%s: something is published: %v", name, err)
		}
	}
	s, a := mem.New(), attempt(4, 1, 1)
	handOver(t, s, a)
	if _, err := ckpt.PublishHanded(t.Context(), s, ckpt.Handed{Attempt: a, Index: []byte("cos\nsystem\n.")}); !errors.Is(err, ckpt.ErrFormat) {
		t.Errorf("an index that is none: %v", err)
	}
}

// TestHandedCrash: a publisher that is stopped before any of its writes leaves nothing that is seen, and the next one finishes.
func TestHandedCrash(t *testing.T) {
	for after := range 20 {
		s, a := mem.New(), attempt(4, 1, 1)
		m := handOver(t, s, a)
		stops := &stopping{Store: s}
		stops.left.Store(int64(after))
		if _, err := publishHanded(t, stops, a, m); err == nil {
			if after < 4 { // parts of three coordinates, the index, the commit
				t.Errorf("published with %d writes", after)
			}
			return
		}
		if _, err := ckpt.Latest(t.Context(), s, "job"); !errors.Is(err, ckpt.ErrNoCheckpoint) {
			t.Errorf("after %d writes: %v", after, err)
		}
		if _, err := publishHanded(t, s, a, m); err != nil {
			t.Errorf("after %d writes, again: %v", after, err)
		}
	}
	t.Error("never published")
}

// stopping fails after some writes.
type stopping struct {
	ckpt.Store
	left atomic.Int64 // several writes are under way at a time
}

func (s *stopping) PutIfAbsent(ctx context.Context, key string, b ckpt.Body) error {
	if s.left.Add(-1) < 0 {
		return ckpt.ErrReadOnly
	}
	return s.Store.PutIfAbsent(ctx, key, b)
}

// TestBegin: who could never publish is told so before it writes, and a branch may go back.
func TestBegin(t *testing.T) {
	s := mem.New()
	begin := func(step phalanx.Step, o ckpt.BeginOptions) (ckpt.Begun, error) {
		return ckpt.Begin(t.Context(), s, "job", step, o)
	}
	first, err := begin(4, ckpt.BeginOptions{Term: 1 << 61, Generation: 3})
	if err != nil || first.Attempt.Generation != (phalanx.Generation{Number: 3}) {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := begin(4, ckpt.BeginOptions{Term: 1<<61 + 1, Generation: 3})
	if err != nil || second.Attempt == first.Attempt {
		t.Fatalf("%+v, %v", second, err)
	}
	m, n := handOver(t, s, first.Attempt), handOver(t, s, second.Attempt)
	if _, err := publishHanded(t, s, first.Attempt, m); err != nil {
		t.Fatal(err)
	}
	if _, err := publishHanded(t, s, second.Attempt, n); !errors.Is(err, ckpt.ErrFenced) || !strings.Contains(err.Error(), "step 4 of this branch is published") {
		t.Errorf("the second of one step: %v", err)
	}
	if err := ckpt.Abort(t.Context(), s, first.Attempt); !errors.Is(err, ckpt.ErrPublished) {
		t.Errorf("the first is given up: %v", err)
	}
	if err := ckpt.Abort(t.Context(), s, second.Attempt); err != nil {
		t.Error(err)
	}
	if left, err := ckpt.ListAll(t.Context(), s, second.Attempt.Folder()); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	for name, c := range map[string]struct {
		step phalanx.Step
		o    ckpt.BeginOptions
		want phalanx.Generation
	}{
		"the same step":        {4, ckpt.BeginOptions{}, phalanx.Generation{}},
		"an older generation":  {5, ckpt.BeginOptions{Generation: 2}, phalanx.Generation{}},
		"the next step":        {5, ckpt.BeginOptions{}, phalanx.Generation{Number: 3}},
		"the next generation":  {5, ckpt.BeginOptions{Generation: 4}, phalanx.Generation{Number: 4}},
		"back, on a branch":    {1, ckpt.BeginOptions{NewBranch: true, Generation: 1}, phalanx.Generation{Epoch: 1, Number: 1}},
		"back, without branch": {1, ckpt.BeginOptions{Generation: 9}, phalanx.Generation{}},
	} {
		b, err := begin(c.step, c.o)
		if c.want == (phalanx.Generation{}) {
			if !errors.Is(err, ckpt.ErrFenced) {
				t.Errorf("%s: %+v, %v", name, b, err)
			}
			continue
		}
		if err != nil || b.Attempt.Generation != c.want {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	b, err := begin(1, ckpt.BeginOptions{NewBranch: true, Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	r, err := func() (ckpt.Record, error) {
		content, err := handOver(t, s, b.Attempt).Encode()
		if err != nil {
			t.Fatal(err)
		}
		return ckpt.PublishHanded(t.Context(), s, ckpt.Handed{Attempt: b.Attempt, Branch: b.Branch, Index: content})
	}()
	if err != nil || r.Branch() != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if next, err := begin(2, ckpt.BeginOptions{Generation: 1}); err != nil || next.Branch != 1 {
		t.Errorf("after the branch: %+v, %v", next, err)
	}
}

// FuzzSheet: what is read is consistent, and comes back from its own bytes.
func FuzzSheet(f *testing.F) {
	s, a := mem.New(), attempt(4, 1, 1)
	sheet, err := ckpt.WriteSheet(f.Context(), s, a, 2, 1, []ckpt.SheetBox{{File: "f", Length: 8, DType: "f32", Shape: []int{2}},
		{File: "f", At: 9, Length: 3, DType: "u8", Shape: []int{3}, Value: true}}, handedBytes{count(8, 0), count(3, 0)}, ckpt.PlanOptions{})
	if err != nil {
		f.Fatal(err)
	}
	b, err := sheet.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":3,"attempt":"step-1-g1-a1.0","writer":0,"batch":0,"entries":[],"objects":[],"chunks":[]}`))
	index := &dcp.Metadata{Tensors: []dcp.Tensor{{Name: "t", DType: "f32", Shape: []int{2}, Chunks: []dcp.Chunk{{Offset: []int{0}, Size: []int{2}, File: "f", Length: 8}}}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		sheet, err := ckpt.DecodeSheet(b)
		if err != nil {
			return
		}
		again, err := sheet.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ckpt.DecodeSheet(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		parts, err := ckpt.Assemble(a, []*ckpt.Sheet{sheet}, index)
		if err != nil {
			return
		}
		if _, err := ckpt.Merge(parts); err != nil {
			t.Fatalf("parts of a sheet do not merge: %v", err)
		}
	})
}
