// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"phalanx/ckpt"
)

// TestTouching: the tree finds what comparing with every shard finds.
func TestTouching(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(1, 40), 0, 3).Draw(t, "shape")
		tensor := Tensor{Name: "t", DType: "u8", Shape: shape}
		for range rapid.IntRange(0, 60).Draw(t, "shards") { // they may overlap
			tensor.Shards = append(tensor.Shards, Shard{Box: drawBox(t, shape, "shard")})
		}
		v := &View{Tensors: []Tensor{tensor}}
		for range 4 {
			box := drawBox(t, shape, "box")
			var want []int
			for i := range tensor.Shards {
				if _, meet := tensor.Shards[i].Intersect(box); meet {
					want = append(want, i)
				}
			}
			if got := v.touching(0, box); !slices.Equal(got, want) {
				t.Fatalf("box %v meets %v, want %v", box, got, want)
			}
		}
		overlapping := false
		for i := range tensor.Shards {
			for k := range i {
				_, meet := tensor.Shards[i].Intersect(tensor.Shards[k].Box)
				overlapping = overlapping || meet
			}
		}
		if err := v.CheckCover(); errors.Is(err, ckpt.ErrCorrupt) != overlapping {
			t.Fatalf("cover: %v, overlap %v", err, overlapping)
		}
	})
}

// processorTime is what this process has used, in seconds.
func processorTime(t *testing.T) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// TestManyShards: the cover of a tensor in very many shards is proven in a few seconds, however it is cut.
func TestManyShards(t *testing.T) {
	const most = 10.0
	n := 300_000
	if raceDetector {
		n = 30_000
	}
	tall := make([]Shard, 0, n) // one column over all rows, and cells beside it
	tall = append(tall, Shard{Box: Box{[]int{0, 0}, []int{n - 1, 1}}})
	rows, columns, cells := make([]Shard, 0, n), make([]Shard, 0, n), make([]Shard, 0, n)
	for i := range n {
		rows = append(rows, Shard{Box: Box{[]int{i, 0}, []int{1, 2}}})
		columns = append(columns, Shard{Box: Box{[]int{0, i}, []int{2, 1}}})
		cells = append(cells, Shard{Box: Box{[]int{i / 600, i % 600, 0}, []int{1, 1, 2}}})
		if i > 0 {
			tall = append(tall, Shard{Box: Box{[]int{i - 1, 1}, []int{1, 1}}})
		}
	}
	for name, tensor := range map[string]Tensor{
		"rows":    {Shape: []int{n, 2}, Shards: rows},
		"columns": {Shape: []int{2, n}, Shards: columns},
		"cells":   {Shape: []int{n / 600, 600, 2}, Shards: cells},
		"tall":    {Shape: []int{n - 1, 2}, Shards: tall},
	} {
		v := &View{Tensors: []Tensor{tensor}}
		begin := processorTime(t)
		if err := v.CheckCover(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := processorTime(t) - begin; took > most {
			t.Errorf("%s: %d shards took %.1f s of processor time, at most %.0f", name, n, took, most)
		}
		if name != "cells" {
			continue
		}
		doubled := slices.Clone(tensor.Shards)
		doubled[n/2] = doubled[n/2+1]
		if err := (&View{Tensors: []Tensor{{Shape: tensor.Shape, Shards: doubled}}}).CheckCover(); !errors.Is(err, ckpt.ErrCorrupt) {
			t.Errorf("%s: a shard that is there twice: %v", name, err)
		}
	}
}

// TestLost: every tensor with a part in a damaged range is named, and very many damaged ranges cost little each.
func TestLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := &View{}
		for i := range rapid.IntRange(0, 12).Draw(t, "tensors") {
			shard := Shard{Object: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "object"), At: rapid.Int64Range(0, 40).Draw(t, "at"), Length: rapid.Int64Range(0, 30).Draw(t, "length")}
			v.Tensors = append(v.Tensors, Tensor{Name: string(rune('A' + i)), Shards: []Shard{shard}})
		}
		for range 4 {
			object, at, length := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "in"), rapid.Int64Range(0, 60).Draw(t, "from"), rapid.Int64Range(0, 20).Draw(t, "bytes")
			var want []string
			for _, x := range v.Tensors {
				if s := x.Shards[0]; s.Object == object && s.At < at+length && at < s.At+s.Length {
					want = append(want, x.Name)
				}
			}
			if got := v.Lost(object, at, length); !slices.Equal(got, want) {
				t.Fatalf("[%d, %d) of %s: %v, want %v", at, at+length, object, got, want)
			}
		}
	})
	n := 300_000
	v := &View{Tensors: []Tensor{{Name: "t"}}}
	for i := range n {
		v.Tensors[0].Shards = append(v.Tensors[0].Shards, Shard{Object: "o", At: int64(8 * i), Length: 8})
	}
	begin := processorTime(t)
	for i := range n {
		if lost := v.Lost("o", int64(8*i), 8); len(lost) != 1 {
			t.Fatalf("range %d: %v", i, lost)
		}
	}
	if took := processorTime(t) - begin; took > 10 {
		t.Errorf("%d damaged ranges took %.1f s of processor time", n, took)
	}
}
