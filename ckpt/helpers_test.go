// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/kernels"
)

// state is a training state in memory: a Source and a Sink.
type state struct {
	layout  []phalanx.TensorInfo
	content [][]byte
	mu      sync.Mutex
	written int64
}

// newState fills a layout with bytes that depend on the seed only.
func newState(layout []phalanx.TensorInfo, seed uint64) *state {
	s := blank(layout)
	random := rand.New(rand.NewPCG(seed, 1))
	for _, p := range s.content {
		for i := range p {
			p[i] = byte(random.Uint32())
		}
	}
	return s
}

func blank(layout []phalanx.TensorInfo) *state {
	s := &state{layout: layout}
	for _, t := range layout {
		s.content = append(s.content, make([]byte, t.Bytes()))
	}
	return s
}

func (s *state) Layout() []phalanx.TensorInfo { return s.layout }

func (s *state) ReadAt(tensor int, off int64, p []byte) error {
	if n := copy(p, s.content[tensor][off:]); n < len(p) {
		return fmt.Errorf("tensor %d: read of %d at %d", tensor, len(p), off)
	}
	return nil
}

func (s *state) Write(tensor int, off int64, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written += int64(copy(s.content[tensor][off:], p))
	return nil
}

func (s *state) digest() phalanx.Digest {
	var tensors []kernels.Tensor
	for i, t := range s.layout {
		tensors = append(tensors, kernels.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: s.content[i]})
	}
	return kernels.Digest(0, tensors)
}

func smallLayout() []phalanx.TensorInfo {
	return []phalanx.TensorInfo{
		{Name: "w", DType: "f32", Shape: []int{33, 100}},
		{Name: "b", DType: "bf16", Shape: []int{7}},
		{Name: "none", DType: "f32", Shape: []int{0, 4}},
		{Name: "scalar", DType: "i64", Shape: []int{}},
		{Name: "a", DType: "f32", Shape: []int{3, 1, 21_000}},
	}
}

func attempt(step int, generation, counter uint64) ckpt.Attempt {
	return ckpt.Attempt{Job: "job", Step: phalanx.Step(step), Generation: phalanx.Generation{Number: generation}, Term: 2, Counter: counter}
}

func publication(a ckpt.Attempt, coordinates int) ckpt.Publication {
	p := ckpt.Publication{Attempt: a, UnixNS: 1_000_000_007, Spec: json.RawMessage(`{"slots":8}`)}
	for c := range coordinates {
		p.Labels = append(p.Labels, phalanx.Label{Step: a.Step, Generation: a.Generation, Digest: phalanx.Digest{1, 2}, Coordinate: c})
	}
	return p
}

// shards writes all shards of a one-coordinate state by the given number of ranks.
func shards(t *testing.T, s ckpt.Store, a ckpt.Attempt, st *state, ranks int, o ckpt.PlanOptions) ([]ckpt.PartRef, error) {
	t.Helper()
	var all []phalanx.Rank
	for r := range ranks {
		all = append(all, phalanx.Rank(r))
	}
	plan, err := ckpt.NewPlan(0, st.layout, all, o)
	if err != nil {
		t.Fatal(err)
	}
	var refs []ckpt.PartRef
	for _, r := range all {
		ref, err := ckpt.WriteShard(t.Context(), s, a, r, plan, st)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// save writes and publishes.
func save(t *testing.T, s ckpt.Store, a ckpt.Attempt, st *state, ranks int) (ckpt.Record, error) {
	t.Helper()
	refs, err := shards(t, s, a, st, ranks, ckpt.PlanOptions{ObjectBytes: 100_000})
	if err != nil {
		return ckpt.Record{}, err
	}
	return ckpt.Publish(t.Context(), s, publication(a, 1), refs)
}

// flip changes the first occurrence of a text in a commit object and returns what it was.
func flip(t *testing.T, s ckpt.Store, number uint64, from, to string) []byte {
	t.Helper()
	key := ckpt.CommitKey("job", number)
	before, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	after := bytes.Replace(before, []byte(from), []byte(to), 1)
	if bytes.Equal(after, before) {
		t.Fatalf("%s has no %q:\n%s", key, from, before)
	}
	if err := s.Put(t.Context(), key, ckpt.Bytes(after)); err != nil {
		t.Fatal(err)
	}
	return before
}

// reseal gives a commit object that was changed the checksum that its bytes have, so that it reads well.
func reseal(t *testing.T, s ckpt.Store, number uint64) {
	t.Helper()
	key := ckpt.CommitKey("job", number)
	b, err := s.Get(t.Context(), key, 0, -1)
	if err == nil {
		err = s.Put(t.Context(), key, ckpt.Bytes(summed(string(b))))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mustRestore reads a whole state back and compares it bit for bit, by the digest too.
func mustRestore(t *testing.T, s ckpt.Store, c *ckpt.Commit, want *state) {
	t.Helper()
	cp, err := ckpt.Open(t.Context(), s, c)
	if err != nil {
		t.Fatal(err)
	}
	st := cp.State(0)
	reads, err := ckpt.PlanReads(st.Manifest, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := blank(st.Layout())
	for _, share := range ckpt.DealReads(reads, 3) {
		if err := st.Restore(t.Context(), share, 2, got); err != nil {
			t.Fatal(err)
		}
	}
	if got.digest() != want.digest() || st.Manifest.StateDigest != want.digest() {
		t.Fatalf("restored %s, the manifest says %s, saved %s", got.digest(), st.Manifest.StateDigest, want.digest())
	}
	if got.written != st.Manifest.Bytes {
		t.Fatalf("wrote %d bytes of %d", got.written, st.Manifest.Bytes)
	}
}
