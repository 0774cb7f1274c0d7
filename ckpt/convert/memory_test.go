// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/view"
)

// TestConstantMemory: converting takes no more memory for a state of a gigabyte than for a small one: at most 256 MiB at any
// time, in every format, from chunks of 64 MiB, from shards by columns, and from one tensor that is larger than any file.
func TestConstantMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes gigabytes")
	}
	dir := t.TempDir()
	store, err := fs.New(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	const columns = 4
	var refs []ckpt.PartRef
	a := ckpt.Attempt{Job: "job", Step: 1, Generation: phalanx.Generation{Number: 1}, Term: 1, Counter: 1}
	publication := ckpt.Publication{Attempt: a, UnixNS: 1}
	for c := range columns {
		layout := []phalanx.TensorInfo{
			{Name: "wide", DType: "f32", Shape: []int{8192, 16384 / columns}, Global: &phalanx.Global{Shape: []int{8192, 16384}, Offset: []int{0, 16384 / columns * c}}},
			{Name: "tall", DType: "bf16", Shape: []int{16384, 8192}},
		}
		plan, err := ckpt.NewPlan(c, layout, []phalanx.Rank{phalanx.Rank(c)}, ckpt.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ref, err := ckpt.WriteShard(t.Context(), store, a, phalanx.Rank(c), plan, counting{layout})
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
		publication.Labels = append(publication.Labels, phalanx.Label{Step: 1, Generation: a.Generation, Coordinate: c})
	}
	if _, err := ckpt.Publish(t.Context(), store, publication, refs); err != nil {
		t.Fatal(err)
	}
	open := func(_ context.Context, place string) (ckpt.Store, error) { return fs.NewReadOnly(place) }
	source := filepath.Join(dir, "store", "job")
	for _, to := range []view.Format{view.DCP, view.Safetensors, view.Raw} {
		v, err := view.Open(t.Context(), source, open, view.Options{})
		if err != nil {
			t.Fatal(err)
		}
		items, err := Select(v, Selection{})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, string(to))
		target, err := NewFolder(path)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		peak := peakHeap(func() {
			if _, err = Run(t.Context(), v, items, target, Options{To: to}); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%s: %d MiB in %s, peak %d MiB", to, v.Bytes()>>20, time.Since(begin).Round(time.Millisecond), peak>>20)
		if peak > 256<<20 {
			t.Errorf("%s took %d MiB of memory", to, peak>>20)
		}
		if source != path && to != view.DCP {
			_ = os.RemoveAll(source) // the disk need not hold all of them
		}
		source = path
	}
}

// counting is a state without memory.
type counting struct{ layout []phalanx.TensorInfo }

func (c counting) Layout() []phalanx.TensorInfo { return c.layout }

func (c counting) ReadAt(tensor int, off int64, p []byte) error {
	for i := range p {
		p[i] = byte((off + int64(i)) >> 9 * int64(tensor+3))
	}
	return nil
}

// peakHeap runs f under a limit that makes the collector work early, and returns the most memory that Go held beyond what it
// held before.
func peakHeap(f func()) int64 {
	debug.FreeOSMemory()
	before := held()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(before + 200<<20))
	var peak atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends below
		defer close(ended)
		for {
			peak.Store(max(peak.Load(), held()-before))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-ended
	return peak.Load()
}

// held is what Go has of the system and did not give back.
func held() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(min(m.Sys-m.HeapReleased, math.MaxInt64)) //nolint:gosec // bounded
}
