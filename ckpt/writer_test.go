// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// fickle is a source that says something else the second time.
type fickle struct {
	*state
	mu   sync.Mutex
	read map[int64]bool
}

func (f *fickle) ReadAt(tensor int, off int64, p []byte) error {
	if err := f.state.ReadAt(tensor, off, p); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read[off] && off == 0 {
		p[3] ^= 4
	}
	f.read[off] = true
	return nil
}

// A slab that is filled anew while it is saved must not become a checkpoint.
func TestStateThatChangesWhileItIsWrittenIsRefused(t *testing.T) {
	layout := []phalanx.TensorInfo{{Name: "w", DType: "f32", Shape: []int{300, 1000}}}
	plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0}, ckpt.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := mem.New()
	_, err = ckpt.WriteShard(t.Context(), s, attempt(1, 1, 1), 0, plan, &fickle{state: newState(layout, 1), read: map[int64]bool{}})
	if !errors.Is(err, ckpt.ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
	if all, err := ckpt.ListAll(t.Context(), s, ""); err != nil || len(all) > 0 {
		t.Fatalf("it left %v, %v", all, err)
	}
}

// keeper is a store that holds on to bodies, as the sender of a broken connection may.
type keeper struct {
	ckpt.Store
	mu     sync.Mutex
	bodies map[string]ckpt.Body
}

func (k *keeper) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	k.mu.Lock()
	k.bodies[key] = body
	k.mu.Unlock()
	// Reads of any size, across what the container adds, are those of the whole.
	whole, err := io.ReadAll(body.Reader())
	if err != nil {
		return err
	}
	for off := int64(0); off < body.Size; off += 777 {
		p := make([]byte, 1000)
		n, err := body.ReaderAt.ReadAt(p, off)
		if want := whole[off:min(off+1000, body.Size)]; !bytes.Equal(p[:n], want) || n < len(p) && !errors.Is(err, io.EOF) {
			return errors.New("a read in the middle differs from the whole")
		}
	}
	return k.Store.PutIfAbsent(ctx, key, body)
}

func TestNobodyReadsASourceAfterTheWrite(t *testing.T) {
	layout := []phalanx.TensorInfo{
		{Name: "a", DType: "u8", Shape: []int{5}}, {Name: "b", DType: "f32", Shape: []int{100, 33}}, {Name: "c", DType: "f64", Shape: []int{}},
	}
	st := newState(layout, 1)
	plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0}, ckpt.PlanOptions{ObjectBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{Store: mem.New(), bodies: map[string]ckpt.Body{}}
	a := attempt(1, 1, 1)
	part, err := ckpt.WriteShard(t.Context(), k, a, 0, plan, st)
	if err != nil {
		t.Fatal(err)
	}
	data := 0
	for key, body := range k.bodies {
		if key == a.Folder()+"/"+part.Name {
			continue // made of bytes, which stay
		}
		data++
		if n, err := body.ReaderAt.ReadAt(make([]byte, 1), 0); err == nil || n != 0 {
			t.Errorf("%s can still be read", key)
		}
	}
	if data < 2 {
		t.Errorf("%d objects", data)
	}
}

// reads takes bodies as a directory does and keeps nothing.
type reads struct{ ckpt.Store }

func (reads) PutIfAbsent(ctx context.Context, _ string, body ckpt.Body) error {
	return body.Pieces(ctx, func([]byte) error { return nil })
}

// What a share takes of memory does not depend on its size or that of its objects.
func TestWriteShardHoldsNoObject(t *testing.T) {
	layout := []phalanx.TensorInfo{{Name: "w", DType: "u8", Shape: []int{64, 1 << 20}}}
	st := newState(layout, 1)
	plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0}, ckpt.PlanOptions{ObjectBytes: 17 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := ckpt.WriteShard(t.Context(), reads{mem.New()}, attempt(1, 1, 1), 0, plan, st); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("writing 64 MiB took %d bytes of memory, all allocations together", took)
	}
}
