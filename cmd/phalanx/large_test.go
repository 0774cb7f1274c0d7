// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
)

// TestInspectIsFast: inspect answers within a second for a checkpoint of a terabyte: 8 coordinates, 64 ranks, a model of 84
// billion parameters with its optimizer. Only what describes it is there, which is all that inspect may need.
func TestInspectIsFast(t *testing.T) {
	const coordinates, ranks, layers = 8, 64, 98
	dir := t.TempDir()
	store, err := fs.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	a := ckpt.Attempt{Job: "big", Step: 9, Generation: phalanx.Generation{Number: 1}, Term: 1, Counter: 1}
	commit := &ckpt.Commit{Format: ckpt.FormatVersion, Kind: "commit", Number: 1, Job: a.Job, Attempt: a.Name(), Step: a.Step, Generation: a.Generation, Container: ckpt.ContainerRaw, UnixNS: 1}
	var total int64
	parts := map[phalanx.Rank]ckpt.PartRef{}
	for c := range coordinates {
		layout := largeLayout(c, coordinates, layers)
		digests := make([]phalanx.Digest, len(layout))
		for i := range digests {
			digests[i] = phalanx.Digest{uint64(c + 1), uint64(i)}
		}
		var own []phalanx.Rank
		for r := c; r < ranks; r += coordinates {
			own = append(own, phalanx.Rank(r))
		}
		plan, err := ckpt.NewPlan(c, layout, own, ckpt.PlanOptions{Container: ckpt.ContainerRaw})
		if err != nil {
			t.Fatal(err)
		}
		state := ckpt.StoredState{Label: phalanx.Label{Step: a.Step, Generation: a.Generation, Coordinate: c}, Digest: ckpt.StateDigest(layout, digests), Tensors: len(layout)}
		for _, s := range plan.Shards {
			state.Bytes += s.Bytes
			parts[s.Rank] = largePart(t, store, a, plan, &s, digests)
		}
		total += state.Bytes
		commit.States = append(commit.States, state)
	}
	for r := range phalanx.Rank(ranks) {
		commit.Parts = append(commit.Parts, parts[r])
	}
	b, err := commit.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.PutIfAbsent(t.Context(), ckpt.CommitKey(a.Job, 1), ckpt.Bytes(b)); err != nil {
		t.Fatal(err)
	}
	if total < 1e12 {
		t.Fatalf("%d bytes are no terabyte", total)
	}
	folder := filepath.Join(dir, a.Folder())
	best := time.Hour
	for range 5 {
		var out, errs bytes.Buffer
		begin, worked := time.Now(), processorTime(t)
		if code := execute(context.Background(), []string{"ckpt", "inspect", folder, "--json"}, app{&out, &errs, nil}); code != 0 {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		// The machine has other things to do as well: what this process did not get is not its fault, but one processor has
		// to be enough.
		best = min(best, time.Since(begin), processorTime(t)-worked)
		var answer struct {
			Bytes   int64 `json:"size_bytes"`
			Tensors []struct {
				Shards []struct{ Range [2]int64 }
			}
		}
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		shards := 0
		for _, tensor := range answer.Tensors {
			shards += len(tensor.Shards)
		}
		if answer.Bytes != total || len(answer.Tensors) != 3*9*layers || shards < 16_000 {
			t.Fatalf("%d bytes of %d, %d tensors, %d shards", answer.Bytes, total, len(answer.Tensors), shards)
		}
	}
	t.Logf("inspect of %d bytes took %s", total, best)
	if best > time.Second && !raceEnabled { // the race detector takes ten times as long
		t.Errorf("inspect took %s", best)
	}
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// largeLayout is what one of n coordinates holds: rows of every tensor, as fully sharded data parallelism deals them.
func largeLayout(coordinate, n, layers int) []phalanx.TensorInfo {
	shapes := [][2]int{{8192, 8192}, {1024, 8192}, {1024, 8192}, {8192, 8192}, {28672, 8192}, {28672, 8192}, {8192, 28672}, {8192, 1}, {8192, 1}}
	var layout []phalanx.TensorInfo
	for l := range layers {
		for k, shape := range shapes {
			for _, what := range []string{"model", "optimizer.m", "optimizer.v"} {
				rows := shape[0] / n
				layout = append(layout, phalanx.TensorInfo{
					Name: fmt.Sprintf("%s.layers.%d.%d.weight", what, l, k), DType: "f32", Shape: []int{rows, shape[1]},
					Global: &phalanx.Global{Shape: []int{shape[0], shape[1]}, Offset: []int{coordinate * rows, 0}},
				})
			}
		}
	}
	return layout
}

// largePart writes the part file of a rank whose data nobody wrote.
func largePart(t *testing.T, store ckpt.Store, a ckpt.Attempt, plan *ckpt.Plan, s *ckpt.Shard, digests []phalanx.Digest) ckpt.PartRef {
	t.Helper()
	h := sha256.New()
	for _, info := range plan.Layout {
		line, err := json.Marshal([]any{info.Name, info.DType, info.Shape, info.Global, info.PerRank})
		if err != nil {
			t.Fatal(err)
		}
		h.Write(append(line, '\n'))
	}
	p := ckpt.Part{Format: ckpt.FormatVersion, Container: plan.Container, Attempt: a.Name(), Rank: s.Rank, Coordinate: plan.Coordinate, Layout: hex.EncodeToString(h.Sum(nil))}
	for _, i := range s.Digests {
		p.Tensors = append(p.Tensors, ckpt.PartTensor{Index: i, TensorInfo: plan.Layout[i], D1: digests[i]})
	}
	for _, b := range s.Boxes {
		_, n, err := b.Range(plan.Layout[b.Tensor])
		if err != nil {
			t.Fatal(err)
		}
		k := len(p.Objects) - 1
		if k < 0 || p.Objects[k].Size+n > plan.ObjectBytes {
			p.Objects = append(p.Objects, ckpt.Object{Name: fmt.Sprintf("rank-%d-%05d.raw", s.Rank, len(p.Objects))})
			k++
		}
		at := (p.Objects[k].Size + 63) / 64 * 64
		p.Objects[k].Size = at + n
		p.Chunks = append(p.Chunks, ckpt.StoredChunk{Box: b, Object: k, At: at, Length: n, Codec: ckpt.CodecRaw})
	}
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("part-%d.json", s.Rank)
	if err := store.PutIfAbsent(t.Context(), a.Folder()+"/"+name, ckpt.Bytes(b)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return ckpt.PartRef{Name: name, Rank: s.Rank, Coordinate: plan.Coordinate, Size: int64(len(b)), CRC64NVME: ckpt.Checksum(b), SHA256: hex.EncodeToString(sum[:])}
}
