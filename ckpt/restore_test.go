// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/mem"
)

// inMemory is a sink that is read into: nothing may come by Write but what it keeps out.
type inMemory struct {
	*state
	not    int // this tensor goes through Write
	direct atomic.Int64
}

func (s *inMemory) Memory(tensor int, off, n int64) []byte {
	if tensor == s.not {
		return nil
	}
	s.direct.Add(n)
	return s.content[tensor][off : off+n : off+n]
}

// A restore gives the same bytes through a copy and straight into memory, from a store that reads into memory and from one that
// does not; neither takes a byte that does not verify.
func TestRestoreIntoMemory(t *testing.T) {
	layout := []phalanx.TensorInfo{
		{Name: "large", DType: "f32", Shape: []int{700, 1024}}, {Name: "small", DType: "u8", Shape: []int{5}}, {Name: "scalar", DType: "f64", Shape: []int{}},
	}
	onDisk := filepath.Join(t.TempDir(), "store")
	folder, err := fs.New(onDisk)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]ckpt.Store{"fs": folder, "mem": mem.New()} {
		t.Run(name, func(t *testing.T) {
			st := newState(layout, 3)
			record, err := save(t, s, attempt(1, 1, 1), st, 2)
			if err != nil {
				t.Fatal(err)
			}
			mustRestore(t, s, record.Commit, st)
			cp, err := ckpt.Open(t.Context(), s, record.Commit)
			if err != nil {
				t.Fatal(err)
			}
			reads, err := ckpt.PlanReads(cp.State(0).Manifest, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := &inMemory{state: blank(layout), not: 1}
			if err := cp.State(0).Restore(t.Context(), reads, 3, got); err != nil {
				t.Fatal(err)
			}
			for i := range layout {
				if !bytes.Equal(got.content[i], st.content[i]) {
					t.Errorf("tensor %d differs", i)
				}
			}
			if got.written != layout[1].Bytes() || got.direct.Load() != layout[0].Bytes()+layout[2].Bytes() {
				t.Errorf("%d bytes were written and %d read into memory", got.written, got.direct.Load())
			}
			damaged := cp.State(0).Manifest.Tensors[0].Chunks[2]
			harm := func(change func([]byte) []byte) {
				key := record.Commit.Job + "/" + record.Commit.Attempt + "/" + damaged.Object
				p, err := s.Get(t.Context(), key, 0, -1)
				if err != nil {
					t.Fatal(err)
				}
				if name == "fs" { // behind the store's back
					err = os.WriteFile(filepath.Join(onDisk, filepath.FromSlash(key)), change(p), 0o644)
				} else {
					err = s.Put(t.Context(), key, ckpt.Bytes(change(p)))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			mustFail := func() {
				t.Helper()
				for _, sink := range []ckpt.Sink{blank(layout), &inMemory{state: blank(layout), not: 1}} {
					var damage *ckpt.DamageError
					err := cp.State(0).Restore(t.Context(), reads, 3, sink)
					if !errors.As(err, &damage) || damage.Tensor != "large" || damage.Off != damaged.Off || !errors.Is(err, ckpt.ErrCorrupt) {
						t.Errorf("%T: %v", sink, err)
					}
				}
			}
			harm(func(p []byte) []byte { p[damaged.At+damaged.Length-1] ^= 1; return p })
			mustFail()
			harm(func(p []byte) []byte { return p[:damaged.At+damaged.Length-1] })
			mustFail()
		})
	}
}

// A sink that gives the wrong amount of memory is refused, and not filled to another length.
func TestRestoreRefusesShortMemory(t *testing.T) {
	s := mem.New()
	st := newState(smallLayout(), 1)
	record, err := save(t, s, attempt(1, 1, 1), st, 1)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := ckpt.Open(t.Context(), s, record.Commit)
	if err != nil {
		t.Fatal(err)
	}
	reads, err := ckpt.PlanReads(cp.State(0).Manifest, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := cp.State(0).Restore(t.Context(), reads, 1, shortMemory{blank(smallLayout())}); err == nil {
		t.Fatal("memory that is too short was taken")
	}
}

type shortMemory struct{ *state }

func (s shortMemory) Memory(tensor int, off, n int64) []byte {
	return s.content[tensor][off : off+n-1]
}
