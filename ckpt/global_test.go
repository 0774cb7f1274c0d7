// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/pickle"
)

// publishStates writes one state for each coordinate, by as many groups as asked, and publishes them.
func publishStates(t tester, s ckpt.Store, a ckpt.Attempt, states []*state, groups int) (ckpt.Record, error) {
	t.Helper()
	var refs []ckpt.PartRef
	for c, st := range states {
		var ranks []phalanx.Rank
		for g := range groups {
			ranks = append(ranks, phalanx.Rank(g*len(states)+c))
		}
		plan, err := ckpt.NewPlan(c, st.layout, ranks, ckpt.PlanOptions{ObjectBytes: 8192})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range ranks {
			ref, err := ckpt.WriteShard(t.Context(), s, a, r, plan, st)
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, ref)
		}
	}
	return ckpt.Publish(t.Context(), s, publication(a, len(states)), refs)
}

// cut cuts a shape into boxes, one for each of n coordinates, some of them empty: along one dimension, at random places.
func cut(t *rapid.T, shape []int, n int) (offsets, sizes [][]int) {
	d := rapid.IntRange(0, len(shape)-1).Draw(t, "dimension")
	places := []int{0, shape[d]}
	for range n - 1 {
		places = append(places, rapid.IntRange(0, shape[d]).Draw(t, "place"))
	}
	slices.Sort(places)
	for c := range n {
		offset, size := make([]int, len(shape)), slices.Clone(shape)
		offset[d], size[d] = places[c], places[c+1]-places[c]
		offsets, sizes = append(offsets, offset), append(sizes, size)
	}
	return offsets, sizes
}

// Whatever the cut, the pieces of a larger tensor hold every element of it once, at its place.
func TestGlobalTensorsOfAnyCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		coordinates := rapid.IntRange(1, 4).Draw(t, "coordinates")
		shape := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 3).Draw(t, "shape")
		whole := blank([]phalanx.TensorInfo{{Name: "w", DType: "i32", Shape: shape}})
		for i := range whole.content[0] {
			whole.content[0][i] = byte(i * 7)
		}
		offsets, sizes := cut(t, shape, coordinates)
		var states []*state
		for c := range coordinates {
			st := blank([]phalanx.TensorInfo{
				{Name: "step", DType: "i64", Shape: []int{}},
				{Name: "w", DType: "i32", Shape: sizes[c], Global: &phalanx.Global{Shape: shape, Offset: offsets[c]}},
			})
			copyBox(st.content[1], sizes[c], make([]int, len(shape)), whole.content[0], shape, offsets[c], sizes[c], 4)
			states = append(states, st)
		}
		s := mem.New()
		r, err := publishStates(t, s, attempt(1, 1, 1), states, rapid.IntRange(1, 2).Draw(t, "groups"))
		if err != nil {
			t.Fatal(err)
		}
		cp, err := ckpt.Open(t.Context(), s, r.Commit)
		if err != nil {
			t.Fatal(err)
		}
		globals := cp.Globals()
		if len(globals) != 2 || globals[1].Name != "w" || !slices.Equal(globals[1].Shape, shape) {
			t.Fatalf("%+v", globals)
		}
		got := make([]byte, len(whole.content[0]))
		folder := r.Attempt().Folder() + "/"
		for _, p := range globals[1].Pieces {
			b, err := s.Get(t.Context(), folder+p.Chunk.Object, p.Chunk.At, p.Chunk.Length)
			if err != nil {
				t.Fatal(err)
			}
			copyBox(got, shape, p.Offset, b, p.Size, make([]int, len(shape)), p.Size, 4)
		}
		if !bytes.Equal(got, whole.content[0]) {
			t.Fatalf("pieces %+v give %v, want %v", globals[1].Pieces, got, whole.content[0])
		}
		// PyTorch's index says the same, and each record is a zip with the piece.
		b, err := s.Get(t.Context(), folder+ckpt.MetadataName, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		m, err := dcp.DecodeMetadata(b, pickle.Limits{})
		if err != nil || len(m.Tensors) != 2 {
			t.Fatal(m, err)
		}
		for i, c := range m.Tensors[1].Chunks {
			p := globals[1].Pieces[i]
			record, err := s.Get(t.Context(), folder+c.File, c.At, c.Length)
			if err != nil || !slices.Equal(c.Offset, p.Offset) || !slices.Equal(c.Size, p.Size) || c.File != p.Chunk.Object {
				t.Fatalf("chunk %+v, piece %+v: %v", c, p, err)
			}
			z, err := zip.NewReader(bytes.NewReader(record), int64(len(record)))
			if err != nil {
				t.Fatal(err)
			}
			f, err := z.Open("archive/data/0")
			if err != nil {
				t.Fatal(err)
			}
			payload, err := io.ReadAll(f)
			if err != nil || int64(len(payload)) != p.Chunk.Length || !bytes.Equal(payload, record[dcp.PayloadAt:][:p.Chunk.Length]) {
				t.Fatal(len(payload), err)
			}
		}
	})
}

// tester is what *testing.T and *rapid.T have in common here.
type tester interface {
	rapid.TB
	Context() context.Context
}

// copyBox copies a box between two row-major tensors.
func copyBox(to []byte, toShape, toOffset []int, from []byte, fromShape, fromOffset, size []int, width int) {
	index := make([]int, len(size))
	if slices.Contains(size, 0) {
		return
	}
	at := func(shape, offset []int) int {
		k := 0
		for d := range shape {
			k = k*shape[d] + offset[d] + index[d]
		}
		return k * width
	}
	for {
		copy(to[at(toShape, toOffset):][:width], from[at(fromShape, fromOffset):][:width])
		d := len(size) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < size[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

func TestLargerTensorsThatAreNotWholeAreNotPublished(t *testing.T) {
	box := func(rows, first, of int) phalanx.TensorInfo {
		return phalanx.TensorInfo{Name: "w", DType: "u8", Shape: []int{rows, 3}, Global: &phalanx.Global{Shape: []int{of, 3}, Offset: []int{first, 0}}}
	}
	plain := phalanx.TensorInfo{Name: "w", DType: "u8", Shape: []int{2, 3}}
	for name, c := range map[string]struct {
		a, b  phalanx.TensorInfo
		words string
	}{
		"gap":           {box(2, 0, 5), box(2, 3, 5), "hold 12 of its 15 elements"},
		"overlap":       {box(3, 0, 5), box(3, 2, 5), "coordinates 0 and 1 both hold"},
		"another shape": {box(2, 0, 4), box(2, 2, 5), "in one coordinate"},
		"half declared": {box(2, 0, 2), plain, "in one coordinate"},
		"replicated":    {plain, plain, "coordinate 0 has"},
		"same box":      {box(2, 0, 2), box(2, 0, 2), "coordinate 1 has"},
	} {
		states := []*state{newState([]phalanx.TensorInfo{c.a}, 1), newState([]phalanx.TensorInfo{c.b}, 2)}
		s := mem.New()
		_, err := publishStates(t, s, attempt(1, 1, 1), states, 1)
		if !errors.Is(err, ckpt.ErrIncomplete) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ckpt.Latest(t.Context(), s, "job"); !errors.Is(err, ckpt.ErrNoCheckpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Equal copies are one tensor.
	states := []*state{newState([]phalanx.TensorInfo{plain}, 1), newState([]phalanx.TensorInfo{plain}, 1)}
	s := mem.New()
	r, err := publishStates(t, s, attempt(1, 1, 1), states, 1)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := ckpt.Open(t.Context(), s, r.Commit)
	if err != nil || len(cp.Globals()) != 1 || len(cp.Globals()[0].Pieces) != 1 {
		t.Fatal(cp, err)
	}
}

// What each rank has of its own comes back to each rank.
func TestPerRankTensors(t *testing.T) {
	layout := []phalanx.TensorInfo{
		{Name: "w", DType: "f32", Shape: []int{5, 7}},
		{Name: "random", DType: "u8", Shape: []int{100}, PerRank: true},
	}
	ranks := []phalanx.Rank{0, 1, 2}
	plan, err := ckpt.NewPlan(0, layout, ranks, ckpt.PlanOptions{})
	if err != nil || plan.Transferable() {
		t.Fatal(plan, err)
	}
	s, a := mem.New(), attempt(1, 1, 1)
	var refs []ckpt.PartRef
	var states []*state
	for _, r := range ranks {
		st := newState(layout, 1)
		st.content[1] = newState(layout, 10+uint64(r)).content[1]
		states = append(states, st)
		ref, err := ckpt.WriteShard(t.Context(), s, a, r, plan, st)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	r, err := ckpt.Publish(t.Context(), s, publication(a, 1), refs)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := ckpt.Open(t.Context(), s, r.Commit)
	if err != nil {
		t.Fatal(err)
	}
	report, err := cp.VerifyAll(t.Context(), nil)
	if err != nil || report.Err() != nil || report.Bytes != 5*7*4+3*100 {
		t.Fatal(report, err)
	}
	for i, rank := range append(ranks, 7) { // 7 has none: the world has grown
		got := make([]byte, 100)
		if err := cp.State(0).ForRank(rank).ReadRange(t.Context(), 1, 0, got); err != nil || !bytes.Equal(got, states[i%3].content[1]) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	var names []string
	for _, g := range cp.Globals() {
		names = append(names, g.Name)
	}
	if fmt.Sprint(names) != "[w random@rank-0 random@rank-1 random@rank-2]" {
		t.Error(names)
	}
}
