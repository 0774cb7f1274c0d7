// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
)

func drawLayout(t *rapid.T) []phalanx.TensorInfo {
	n := rapid.IntRange(0, 8).Draw(t, "tensors")
	layout := []phalanx.TensorInfo{}
	for i := range n {
		layout = append(layout, phalanx.TensorInfo{
			Name:  fmt.Sprintf("t%d", i),
			DType: rapid.SampledFrom([]string{"f32", "bf16", "i64", "u8"}).Draw(t, "dtype"),
			Shape: rapid.SliceOfN(rapid.IntRange(0, 30), 0, 4).Draw(t, "shape"),
		})
	}
	return layout
}

func TestChunksCoverEveryElementOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := drawLayout(t)
		target := int64(rapid.SampledFrom([]int{1, 8, 64, 1000, 1 << 20}).Draw(t, "target"))
		var boxes []ckpt.Box
		for i, tensor := range layout {
			var at int64
			for _, b := range ckpt.Chunks(i, tensor, target) {
				off, length, err := b.Range(tensor)
				if err != nil {
					t.Fatalf("%v of %v: %v", b, tensor, err)
				}
				if off != at {
					t.Fatalf("%v of %v begins at %d, not %d", b, tensor, off, at)
				}
				if length > max(target, int64(phalanx.DTypeSize(tensor.DType))) {
					t.Fatalf("%v of %v has %d bytes, target %d", b, tensor, length, target)
				}
				at += length
				boxes = append(boxes, b)
			}
		}
		if err := ckpt.Cover(layout, boxes); err != nil {
			t.Fatal(err)
		}
		if len(boxes) == 0 {
			return
		}
		// Taking any box away, or giving it twice, is noticed and named.
		k := rapid.IntRange(0, len(boxes)-1).Draw(t, "k")
		var missing, twice *ckpt.CoverageError
		if err := ckpt.Cover(layout, slices.Delete(slices.Clone(boxes), k, k+1)); !errors.As(err, &missing) || missing.Twice {
			t.Fatalf("without box %d: %v", k, err)
		}
		if err := ckpt.Cover(layout, append(slices.Clone(boxes), boxes[k])); !errors.As(err, &twice) || !twice.Twice {
			t.Fatalf("with box %d twice: %v", k, err)
		}
		if missing.Tensor != layout[boxes[k].Tensor].Name || twice.Tensor != missing.Tensor {
			t.Fatalf("the wrong tensor is named: %v, %v", missing, twice)
		}
	})
}

func TestPlanCoversAndBalances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := drawLayout(t)
		if rapid.Bool().Draw(t, "large") {
			layout = append(layout, phalanx.TensorInfo{Name: "large", DType: "f32", Shape: []int{rapid.IntRange(1, 1000).Draw(t, "rows"), 500}})
		}
		ranks := []phalanx.Rank{}
		for r := range rapid.IntRange(1, 9).Draw(t, "ranks") {
			ranks = append(ranks, phalanx.Rank(2*r+1))
		}
		options := ckpt.PlanOptions{Container: ckpt.ContainerRaw, ObjectBytes: int64(rapid.SampledFrom([]int{64, 1 << 16, 1 << 20}).Draw(t, "object"))}
		plan, err := ckpt.NewPlan(0, layout, ranks, options)
		if err != nil {
			t.Fatal(err)
		}
		var boxes []ckpt.Box
		var largest, least, most int64 = 0, 1 << 60, 0
		digested := map[int]int{}
		for _, s := range plan.Shards {
			var bytes int64
			for _, b := range s.Boxes {
				_, length, _ := b.Range(layout[b.Tensor])
				bytes += length
				largest = max(largest, length)
				if !slices.Contains(s.Digests, b.Tensor) {
					t.Fatalf("rank %d writes tensor %d and does not digest it", s.Rank, b.Tensor)
				}
			}
			if bytes != s.Bytes || !slices.IsSorted(s.Digests) {
				t.Fatalf("shard %+v", s)
			}
			for _, i := range s.Digests {
				digested[i]++
			}
			least, most = min(least, bytes), max(most, bytes)
			boxes = append(boxes, s.Boxes...)
		}
		if err := ckpt.Cover(layout, boxes); err != nil {
			t.Fatal(err)
		}
		if most-least > 2*largest+int64(len(ranks)) {
			t.Fatalf("shares from %d to %d bytes, the largest chunk has %d", least, most, largest)
		}
		for i := range layout {
			if digested[i] < min(2, len(ranks)) {
				t.Fatalf("tensor %d is digested by %d of %d ranks", i, digested[i], len(ranks))
			}
		}
		slices.Reverse(ranks)
		again, err := ckpt.NewPlan(0, layout, ranks, options)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(plan) {
			t.Fatalf("the order of the ranks changed the plan (%v)", err)
		}
	})
}

func TestBoxRangeRefuses(t *testing.T) {
	tensor := phalanx.TensorInfo{Name: "t", DType: "f32", Shape: []int{4, 5}}
	for _, b := range []ckpt.Box{
		{Offset: []int{0}, Size: []int{4}},
		{Offset: []int{0, 0}, Size: []int{4}},
		{Offset: []int{0, 0}, Size: []int{5, 5}},
		{Offset: []int{0, 0}, Size: []int{0, 5}},
		{Offset: []int{-1, 0}, Size: []int{1, 5}},
		{Offset: []int{3, 0}, Size: []int{2, 5}},
		{Offset: []int{0, 1}, Size: []int{2, 4}}, // not contiguous
		{Offset: []int{1 << 62, 0}, Size: []int{1 << 62, 5}},
	} {
		if _, _, err := b.Range(tensor); err == nil {
			t.Errorf("%+v was taken", b)
		}
	}
	if off, length, err := (ckpt.Box{Offset: []int{2, 1}, Size: []int{1, 3}}).Range(tensor); err != nil || off != 44 || length != 12 {
		t.Errorf("got %d, %d, %v", off, length, err)
	}
}

func TestPlanRefuses(t *testing.T) {
	good := []phalanx.TensorInfo{{Name: "a", DType: "f32", Shape: []int{2}}}
	one := []phalanx.Rank{0}
	for name, run := range map[string]func() (*ckpt.Plan, error){
		"twice":   func() (*ckpt.Plan, error) { return ckpt.NewPlan(0, append(good, good...), one, ckpt.PlanOptions{}) },
		"noranks": func() (*ckpt.Plan, error) { return ckpt.NewPlan(0, good, nil, ckpt.PlanOptions{}) },
		"tworank": func() (*ckpt.Plan, error) { return ckpt.NewPlan(0, good, []phalanx.Rank{1, 1}, ckpt.PlanOptions{}) },
		"dtype": func() (*ckpt.Plan, error) {
			return ckpt.NewPlan(0, []phalanx.TensorInfo{{Name: "a", DType: "f31"}}, one, ckpt.PlanOptions{})
		},
		"huge": func() (*ckpt.Plan, error) {
			return ckpt.NewPlan(0, []phalanx.TensorInfo{{Name: "a", DType: "u8", Shape: []int{1 << 40, 1 << 40}}}, one, ckpt.PlanOptions{})
		},
		"small": func() (*ckpt.Plan, error) { return ckpt.NewPlan(0, good, one, ckpt.PlanOptions{ObjectBytes: 8}) },
	} {
		if _, err := run(); err == nil {
			t.Errorf("%s was planned", name)
		}
	}
}

func TestCompareLayouts(t *testing.T) {
	stored := []phalanx.TensorInfo{{Name: "a", DType: "f32", Shape: []int{2}}, {Name: "b", DType: "f32", Shape: []int{2}}, {Name: "c", DType: "f32", Shape: []int{2}}}
	wanted := []phalanx.TensorInfo{{Name: "c", DType: "f32", Shape: []int{3}}, {Name: "b", DType: "f32", Shape: []int{2}}, {Name: "d", DType: "f32", Shape: []int{2}}}
	d := ckpt.CompareLayouts(stored, wanted)
	if fmt.Sprint(d.Missing, d.Unexpected, len(d.Changed)) != "[d] [a] 1" || d.Empty() {
		t.Fatalf("%+v", d)
	}
	if !ckpt.CompareLayouts(stored, []phalanx.TensorInfo{stored[2], stored[0], stored[1]}).Empty() {
		t.Fatal("order matters")
	}
}

// What each rank has of its own is not cut for a balance that it does not need.
func TestOwnTensorsAreNotCutSmall(t *testing.T) {
	layout := []phalanx.TensorInfo{{Name: "own", DType: "f32", Shape: []int{4096, 1024}, PerRank: true}, {Name: "b", DType: "f32", Shape: []int{8}}}
	plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0, 1}, ckpt.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range plan.Shards {
		own := slices.DeleteFunc(slices.Clone(s.Boxes), func(b ckpt.Box) bool { return b.Tensor != 0 })
		if len(own) != 1 {
			t.Errorf("rank %d writes 16 MiB of its own in %d chunks", s.Rank, len(own))
		}
	}
}
