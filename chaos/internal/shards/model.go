// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"phalanx"
	"phalanx/kernels"
)

// whole is a tensor of the model and how it is cut.
type whole struct {
	name  string
	shape []int
	cut   int // dimension
}

// wholes are the tensors: by rows and by columns, with fewer rows than ranks, and one of several pieces of a heal.
var wholes = []whole{
	{"rows", []int{7, 33}, 0},
	{"columns", []int{5, 10}, 1},
	{"bias", []int{2}, 0},
	{"scalar", []int{}, -1},
	{"large", []int{4099, 80}, 0},
}

// shard is what a rank holds of a tensor, its weights and their momentum.
type shard struct {
	whole
	offset, size []int
	w, m         []float32
	wide         []float64 // the weights, of a tensor that is kept as f64
}

// model is the part of the model at one coordinate.
type model struct {
	groupSize, coordinate int
	seed                  uint64
	shards                []shard
	count                 []int64 // steps
	own                   []byte  // each rank's own
}

// newModel cuts the model as PyTorch's chunk does: all parts but the last ones have the same size.
func newModel(o *options, coordinate int) *model {
	m := &model{groupSize: o.spec.GroupSize, coordinate: coordinate, seed: o.spec.Seed, count: []int64{0}}
	if o.own {
		m.own = []byte(fmt.Sprintf("%-16.16s", os.Getenv("PHALANX_MEMBER")))
	}
	list := wholes
	if o.extra {
		list = append(list[:len(list):len(list)], whole{"extra", []int{3}, 0})
	}
	for i, t := range list {
		s := shard{whole: t, offset: make([]int, len(t.shape)), size: append([]int{}, t.shape...)}
		if t.cut >= 0 {
			n := t.shape[t.cut]
			each := (n + m.groupSize - 1) / m.groupSize
			first := min(coordinate*each, n)
			s.offset[t.cut], s.size[t.cut] = first, min(each, n-first)
		}
		n := 1
		for _, d := range s.size {
			n *= d
		}
		s.w, s.m = make([]float32, n), make([]float32, n)
		if o.wide && t.name == "columns" {
			s.wide = make([]float64, n)
		}
		s.each(func(k int, at uint64) { s.set(k, noise(m.seed, uint64(i), at, 0, 0)) })
		m.shards = append(m.shards, s)
	}
	return m
}

func (s *shard) set(k int, v float32) {
	if s.wide != nil {
		s.wide[k] = float64(v)
		return
	}
	s.w[k] = v
}

func (s *shard) weight(k int) float32 {
	if s.wide != nil {
		return float32(s.wide[k])
	}
	return s.w[k]
}

// each visits the elements of a shard with their places in the whole tensor.
func (s *shard) each(visit func(k int, at uint64)) {
	for k := range s.w {
		rest, at, stride := k, 0, 1
		for d := len(s.size) - 1; d >= 0; d-- {
			at += (rest%s.size[d] + s.offset[d]) * stride
			rest /= s.size[d]
			stride *= s.shape[d]
		}
		visit(k, uint64(at))
	}
}

// noise is a number between -1/2 and 1/2.
func noise(words ...uint64) float32 {
	x := uint64(0x9e3779b97f4a7c15)
	for _, w := range words {
		x ^= w + 0x9e3779b97f4a7c15 + x<<6 + x>>2
		x = (x ^ x>>31) * 0xbf58476d1ce4e5b9
		x ^= x >> 29
	}
	return float32(int32(x>>40)-1<<23) / (1 << 24)
}

// backward adds the gradient of a slot.
func (m *model) backward(step phalanx.Step, slot phalanx.Slot, into []float32) {
	for i := range m.shards {
		s := &m.shards[i]
		s.each(func(k int, at uint64) {
			into[k] += noise(m.seed, uint64(i), at, uint64(step), uint64(slot)+1) + float32(0.01*s.weight(k))
		})
		into = into[len(s.w):]
	}
}

func (m *model) apply(step phalanx.Step, gradient []float32) {
	for i := range m.shards {
		s := &m.shards[i]
		for k := range s.w {
			s.m[k] = float32(0.9*s.m[k]) + gradient[k]
			s.set(k, s.weight(k)-float32(0.1*s.m[k]))
		}
		gradient = gradient[len(s.w):]
	}
	m.count[0] = int64(step)
	if m.own != nil {
		m.own[15]++
	}
}

func (m *model) elements() (n int) {
	for i := range m.shards {
		n += len(m.shards[i].w)
	}
	return n
}

func (m *model) state() []kernels.Tensor {
	state := []kernels.Tensor{{Name: "count", DType: "i64", Shape: []int{1}, Data: kernels.Bytes(m.count)}}
	if m.own != nil {
		state = append(state, kernels.Tensor{Name: "own", DType: "u8", Shape: []int{len(m.own)}, Data: m.own})
	}
	for i := range m.shards {
		s := &m.shards[i]
		w := kernels.Tensor{Name: s.name, DType: "f32", Shape: s.size, Data: kernels.Bytes(s.w)}
		if s.wide != nil {
			w.DType, w.Data = "f64", kernels.Bytes(s.wide)
		}
		state = append(state, w, kernels.Tensor{Name: "momentum." + s.name, DType: "f32", Shape: s.size, Data: kernels.Bytes(s.m)})
	}
	return state
}

// boxes says where the shards lie. A model in one piece has none.
func (m *model) boxes() map[string]phalanx.Global {
	boxes := map[string]phalanx.Global{}
	if m.groupSize == 1 {
		return boxes
	}
	for i := range m.shards {
		if s := &m.shards[i]; s.cut >= 0 {
			g := phalanx.Global{Shape: s.shape, Offset: s.offset}
			boxes[s.name], boxes["momentum."+s.name] = g, g
		}
	}
	return boxes
}
