// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/open"
	"phalanx/kernels"
)

const layerVerb = "layer"

// layerTimes are what the checkpoint layer takes in a process that does nothing else, beside what the machine does without
// it with the same bytes in turn. Seconds of every repetition.
type layerTimes struct {
	Bytes    int64     `json:"bytes"`         // of the state
	Stored   int64     `json:"stored_bytes"`  // by us
	Copy     []float64 `json:"copy"`          // the state in memory, on one core
	CopyAll  []float64 `json:"copy_all"`      // on all
	RawWrite []float64 `json:"raw_write"`     // objects of the same size, as many at once, synced where that means something
	Save     []float64 `json:"save"`          // WriteShard and Publish
	RawRead  []float64 `json:"raw_read"`      // into memory that is there
	Load     []float64 `json:"verified_load"` // open, restore, every chunk's checksum and every tensor's digest verified
	Verify   []float64 `json:"verify"`        // VerifyAll
	SaveMiB  float64   `json:"save_mib"`      // peak of anonymous memory over the state, while saving
	LoadMiB  float64   `json:"load_mib"`      // over the target, while loading

	Windows map[string][][2]float64 `json:"windows,omitempty"` // of saves and loads, for the memory's watcher
}

// measureLayer runs the layer in a process of its own and adds to what there is.
func (p ckptPlan) measureLayer(ctx context.Context, c *cell, reps int) error {
	if reps < 1 {
		return nil
	}
	place := p.place(c, "alone-"+c.Name)
	defer os.RemoveAll(place) // of an URL: nothing
	var told layerTimes
	samples, err := tell(ctx, &told, p.self, layerVerb, "-store", place, "-mib", strconv.Itoa(c.MiB), "-dtype", c.DType, "-reps", strconv.Itoa(reps))
	if err != nil {
		return err
	}
	told.SaveMiB, told.LoadMiB = samples.growth(told.Windows["save"]), samples.growth(told.Windows["load"])
	told.Windows = nil
	if c.Alone == nil {
		c.Alone = &told
		return nil
	}
	a := c.Alone
	for _, v := range []struct{ to, from *[]float64 }{
		{&a.Copy, &told.Copy}, {&a.CopyAll, &told.CopyAll}, {&a.RawWrite, &told.RawWrite}, {&a.Save, &told.Save},
		{&a.RawRead, &told.RawRead}, {&a.Load, &told.Load}, {&a.Verify, &told.Verify},
	} {
		*v.to = append(*v.to, *v.from...)
	}
	a.SaveMiB, a.LoadMiB = max(a.SaveMiB, told.SaveMiB), max(a.LoadMiB, told.LoadMiB)
	return nil
}

// memoryState is a state in this process's memory: source of saves and target of loads.
type memoryState struct {
	layout []phalanx.TensorInfo
	data   [][]byte
}

// newState makes the tensors that the rivals' scripts make: rows of 1024 elements, of random bits.
func newState(mib int, dtype string, seed uint64) *memoryState {
	const tensors, width = 16, 1024
	size := map[string]int{"f32": 4, "bf16": 2}[dtype]
	rows := mib << 20 / size / width / tensors
	s := &memoryState{}
	for i := range tensors {
		t := phalanx.TensorInfo{Name: "m.t" + strconv.Itoa(i), DType: dtype, Shape: []int{rows, width}}
		b := make([]byte, rows*width*size)
		fillRandom(b, seed+uint64(i))
		s.layout, s.data = append(s.layout, t), append(s.data, b)
	}
	return s
}

// fillRandom writes numbers whose exponents are those of weights, so that nothing finds them easy.
func fillRandom(b []byte, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	words := kernels.I64s(b)
	for i := range words {
		words[i] = int64(random.Uint64() & 0xbfffffffbfffffff)
	}
}

// Layout implements ckpt.Source.
func (s *memoryState) Layout() []phalanx.TensorInfo { return s.layout }

// ReadAt implements ckpt.Source.
func (s *memoryState) ReadAt(tensor int, off int64, p []byte) error {
	copy(p, s.data[tensor][off:])
	return nil
}

// Write implements ckpt.Sink.
func (s *memoryState) Write(tensor int, off int64, p []byte) error {
	copy(s.data[tensor][off:], p)
	return nil
}

// Memory implements ckpt.MemorySink.
func (s *memoryState) Memory(tensor int, off, n int64) []byte { return s.data[tensor][off : off+n] }

func (s *memoryState) bytes() (n int64) {
	for _, b := range s.data {
		n += int64(len(b))
	}
	return n
}

func layerMain(args []string) int {
	var l layer
	f := flag.NewFlagSet(layerVerb, flag.ContinueOnError)
	f.StringVar(&l.place, "store", "", "folder or URL")
	f.IntVar(&l.mib, "mib", 64, "size of the state")
	f.StringVar(&l.dtype, "dtype", "f32", "f32 or bf16")
	f.IntVar(&l.reps, "reps", 1, "repetitions")
	f.BoolVar(&l.loadOnly, "load", false, "load the newest checkpoint of job bench, and save nothing")
	f.BoolVar(&l.keep, "keep", false, "leave the last checkpoint")
	profile := f.String("cpuprofile", "", "write a profile of saves and loads to this file")
	if err := f.Parse(args); err != nil {
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if *profile != "" {
		out, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(out)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench layer: %v\n", err)
			return 1
		}
		defer pprof.StopCPUProfile()
	}
	if err := l.measure(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "bench layer: %v\n", err)
		return 1
	}
	b, err := json.Marshal(l.times)
	if err != nil {
		return 1
	}
	fmt.Printf("RESULT %s\n", b)
	return 0
}

// layer measures the checkpoint layer in this process.
type layer struct {
	place, dtype string
	mib, reps    int
	loadOnly     bool
	keep         bool

	times         layerTimes
	store         ckpt.Store
	source, spare *memoryState
	targets       []*memoryState // of loads, one for each share
	attempts      uint64
}

func (l *layer) measure(ctx context.Context) (err error) {
	if l.store, err = openStore(ctx, l.place); err != nil {
		return err
	}
	l.times.Windows = map[string][][2]float64{}
	if l.loadOnly {
		if err := l.prepareTargets(ctx); err != nil {
			return err
		}
		for range l.reps {
			if err := l.load(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	l.source, l.spare = newState(l.mib, l.dtype, 1), newState(l.mib, l.dtype, 2)
	l.targets = []*memoryState{l.spare}
	l.times.Bytes = l.source.bytes()
	l.attempts = uint64(time.Now().UnixMilli()) // a second process goes on in the same store
	raw, err := newRawPlace(l.place)
	if err != nil {
		return err
	}
	for rep := range l.reps {
		for _, step := range []struct {
			name string
			into *[]float64
			do   func(context.Context) error
		}{
			{"copy", &l.times.Copy, func(context.Context) error { return l.copy(1) }},
			{"copy on all cores", &l.times.CopyAll, func(context.Context) error { return l.copy(puts()) }},
			{"raw write", &l.times.RawWrite, func(ctx context.Context) error { return raw.write(ctx, l.source) }},
			{"save", &l.times.Save, l.save},
			{"raw read", &l.times.RawRead, func(ctx context.Context) error { return raw.read(ctx, l.spare) }},
			{"load", nil, l.load},
			{"verify", &l.times.Verify, l.verify},
		} {
			began := time.Now()
			if err := step.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			if step.into != nil {
				*step.into = append(*step.into, time.Since(began).Seconds())
			}
			if step.name == "save" {
				l.times.Windows["save"] = append(l.times.Windows["save"], [2]float64{unix(began), unix(time.Now())})
			}
		}
		if err := raw.remove(ctx); err != nil {
			return err
		}
		if l.keep && rep == l.reps-1 {
			break
		}
		if err := l.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// copy moves the state in memory.
func (l *layer) copy(workers int) error {
	return l.pieces(workers, func(i int, off, end int64) error {
		copy(l.spare.data[i][off:end], l.source.data[i][off:end])
		return nil
	})
}

// pieces deals 4 MiB pieces of the state to workers.
func (l *layer) pieces(workers int, do func(tensor int, off, end int64) error) error {
	return eachPiece(l.source, 4<<20, workers, do)
}

func eachPiece(s *memoryState, size int64, workers int, do func(tensor int, off, end int64) error) error {
	type piece struct {
		tensor   int
		off, end int64
	}
	var all []piece
	for i, b := range s.data {
		for off := int64(0); off < int64(len(b)); off += size {
			all = append(all, piece{i, off, min(off+size, int64(len(b)))})
		}
	}
	var next atomic.Int64
	var group errgroup.Group
	for range workers {
		group.Go(func() error {
			for {
				k := int(next.Add(1)) - 1
				if k >= len(all) {
					return nil
				}
				if err := do(all[k].tensor, all[k].off, all[k].end); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// benchJob is the name of the job in the store.
const benchJob = "bench"

// save writes and publishes.
func (l *layer) save(ctx context.Context) error {
	l.attempts++
	a := ckpt.Attempt{Job: benchJob, Step: phalanx.Step(l.attempts), Generation: phalanx.Generation{Number: 1}, Term: 1, Counter: l.attempts}
	plan, err := ckpt.NewPlan(0, l.source.layout, []phalanx.Rank{0}, ckpt.PlanOptions{})
	if err != nil {
		return err
	}
	part, err := ckpt.WriteShard(ctx, l.store, a, 0, plan, l.source)
	if err != nil {
		return err
	}
	label := phalanx.Label{Step: a.Step, Generation: a.Generation, Digest: phalanx.Digest{l.attempts}}
	_, err = ckpt.Publish(ctx, l.store, ckpt.Publication{Attempt: a, Labels: []phalanx.Label{label}, UnixNS: time.Now().UnixNano()}, []ckpt.PartRef{part})
	return err
}

// load restores the shares of all ranks of the newest checkpoint and verifies every digest. The target's memory exists, as a
// trainer's does.
func (l *layer) load(ctx context.Context) error {
	began := time.Now()
	cp, err := ckpt.OpenLatest(ctx, l.store, benchJob)
	if err != nil {
		return err
	}
	for i, st := range shares(cp) {
		if err := restoreInto(ctx, st, l.targets[i]); err != nil {
			return err
		}
	}
	l.times.Load = append(l.times.Load, time.Since(began).Seconds())
	l.times.Windows["load"] = append(l.times.Windows["load"], [2]float64{unix(began), unix(time.Now())})
	if l.source != nil {
		for i := range l.source.data {
			if !bytes.Equal(l.source.data[i], l.spare.data[i]) {
				return fmt.Errorf("tensor %d: what was restored differs", i)
			}
		}
	}
	return nil
}

// shares are what the ranks of a checkpoint have to restore: all of it once, or each its own.
func shares(cp *ckpt.Checkpoint) (out []*ckpt.State) {
	for _, st := range cp.States() {
		if len(st.Manifest.Tensors[0].Copies) == 0 {
			out = append(out, st)
		}
		for _, own := range st.Manifest.Tensors[0].Copies {
			out = append(out, st.ForRank(own.Rank))
		}
	}
	return out
}

// prepareTargets makes memory for all ranks of the newest checkpoint.
func (l *layer) prepareTargets(ctx context.Context) error {
	cp, err := ckpt.OpenLatest(ctx, l.store, benchJob)
	if err != nil {
		return err
	}
	objects, err := ckpt.ListAll(ctx, l.store, benchJob+"/"+cp.Commit.Attempt+"/")
	if err != nil {
		return err
	}
	for _, o := range objects {
		l.times.Stored += o.Size
	}
	for _, st := range shares(cp) {
		t := &memoryState{layout: st.Layout()}
		for _, info := range t.layout {
			b := make([]byte, info.Bytes())
			fillRandom(b, 1) // its pages exist then
			t.data = append(t.data, b)
		}
		l.targets = append(l.targets, t)
		l.times.Bytes += t.bytes()
	}
	return nil
}

// restoreInto restores a state and digests what arrived, as a member does that resumes.
func restoreInto(ctx context.Context, st *ckpt.State, target *memoryState) error {
	reads, err := ckpt.PlanReads(st.Manifest, nil)
	if err != nil {
		return err
	}
	if err := st.Restore(ctx, reads, 2*puts(), target); err != nil {
		return err
	}
	want := st.Digests()
	for i, t := range target.layout {
		got := kernels.TensorDigest(0, kernels.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: target.data[i]})
		if got != want[i] {
			return fmt.Errorf("tensor %s: digest %s, expected %s: %w", t.Name, got, want[i], ckpt.ErrCorrupt)
		}
	}
	return nil
}

func (l *layer) verify(ctx context.Context) error {
	cp, err := ckpt.OpenLatest(ctx, l.store, benchJob)
	if err != nil {
		return err
	}
	report, err := cp.VerifyAll(ctx, nil)
	if err != nil {
		return err
	}
	return report.Err()
}

// remove empties the store of data, so that memory holds one checkpoint at a time; commit objects stay.
func (l *layer) remove(ctx context.Context) error {
	objects, err := ckpt.ListAll(ctx, l.store, benchJob+"/step-")
	if err != nil {
		return err
	}
	l.times.Stored = 0
	for _, o := range objects {
		l.times.Stored += o.Size
		if err := l.store.Delete(ctx, o.Key); err != nil {
			return err
		}
	}
	return nil
}

// openStore opens what -store names, as a daemon does.
func openStore(ctx context.Context, place string) (ckpt.Store, error) {
	return open.Store(ctx, place, open.Write, open.Options{})
}
