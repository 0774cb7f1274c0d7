// SPDX-License-Identifier: Apache-2.0

package phalanx

import (
	"fmt"
	"slices"
	"strings"
)

// JobSpec is what every trainer of a job must agree on before the first step. The first hello proposes it, the log commits
// it, and a trainer that starts with another one is refused with the difference.
type JobSpec struct {
	LastStep    Step   `json:"last_step"`    // the job is done when this step is committed
	Seed        uint64 `json:"seed"`         // of initial state, data order and random streams
	Slots       int    `json:"slots"`        // S
	GlobalBatch int    `json:"global_batch"` // samples a step; Slots divides it
	DataLength  int64  `json:"data_length"`  // bytes or samples in the data set
	DataHash    string `json:"data_hash,omitempty"`
	GroupSize   int    `json:"group_size"` // G, ranks that hold one copy of the model together
	Threads     int    `json:"threads"`    // compute threads of a trainer
	Settings    string `json:"settings,omitempty"`
}

// MaxSlots bounds the slots of a job: sixteen for each of a million ranks, and far from where the tree's arithmetic ends.
const MaxSlots = 1 << 24

// Validate reports the first thing that makes the spec unusable.
func (s JobSpec) Validate() error {
	switch {
	case s.LastStep == 0:
		return fmt.Errorf("job spec: last step is 0; give the number of steps to train")
	case s.Slots <= 0:
		return fmt.Errorf("job spec: %d slots; give at least one slot per replica group", s.Slots)
	case s.Slots > MaxSlots:
		return fmt.Errorf("job spec: %d slots; give at most %d", s.Slots, MaxSlots)
	case s.GlobalBatch <= 0 || s.GlobalBatch%s.Slots != 0:
		return fmt.Errorf("job spec: %d slots do not divide the global batch of %d samples; choose a multiple of the slots", s.Slots, s.GlobalBatch)
	case s.GroupSize <= 0:
		return fmt.Errorf("job spec: group size is %d; it is 1 for plain data parallelism", s.GroupSize)
	}
	return nil
}

// Diff names the fields in which t differs from s, "" when they agree.
func (s JobSpec) Diff(t JobSpec) string {
	var d []string
	add := func(name string, a, b any) {
		if a != b {
			d = append(d, fmt.Sprintf("%s is %v, the job has %v", name, b, a))
		}
	}
	add("last_step", s.LastStep, t.LastStep)
	add("seed", s.Seed, t.Seed)
	add("slots", s.Slots, t.Slots)
	add("global_batch", s.GlobalBatch, t.GlobalBatch)
	add("data_length", s.DataLength, t.DataLength)
	add("data_hash", s.DataHash, t.DataHash)
	add("group_size", s.GroupSize, t.GroupSize)
	add("threads", s.Threads, t.Threads)
	add("settings", s.Settings, t.Settings)
	return strings.Join(d, "; ")
}

// TensorInfo describes one registered tensor of the training state.
type TensorInfo struct {
	Name  string `json:"name"`
	DType string `json:"dtype"` // one of DTypes
	Shape []int  `json:"shape"` // of what this rank holds
	// Global is set when what this rank holds is a box of a larger tensor that its replica group holds together. Without
	// it the tensor is replicated: every rank that names it holds the same bytes.
	Global *Global `json:"global,omitempty"`
	// PerRank: every rank has content of its own, such as the state of a random generator. It is saved once for each rank.
	PerRank bool `json:"per_rank,omitempty"`
}

// Global says where a box lies in the tensor that it is a part of. Both have one number for each dimension of the tensor, and
// the box's own size is the TensorInfo's Shape.
type Global struct {
	Shape  []int `json:"shape"`
	Offset []int `json:"offset"`
}

// Equal reports whether two tensors are described alike.
func (t TensorInfo) Equal(o TensorInfo) bool {
	if t.Name != o.Name || t.DType != o.DType || t.PerRank != o.PerRank || !slices.Equal(t.Shape, o.Shape) || (t.Global == nil) != (o.Global == nil) {
		return false
	}
	return t.Global == nil || slices.Equal(t.Global.Shape, o.Global.Shape) && slices.Equal(t.Global.Offset, o.Global.Offset)
}

// Bytes is the size of the tensor, row-major without padding. Unknown dtypes have none.
func (t TensorInfo) Bytes() int64 {
	n := int64(DTypeSize(t.DType))
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// dtypes are the element types that can be stored, with their bytes. Sums take fewer, see package collective.
var dtypes = []struct {
	name string
	size int
}{
	{"f64", 8}, {"f32", 4}, {"f16", 2}, {"bf16", 2},
	{"f8_e4m3fn", 1}, {"f8_e5m2", 1}, {"f8_e4m3fnuz", 1}, {"f8_e5m2fnuz", 1}, {"f8_e8m0fnu", 1},
	{"c64", 8}, {"c128", 16},
	{"i64", 8}, {"i32", 4}, {"i16", 2}, {"i8", 1},
	{"u64", 8}, {"u32", 4}, {"u16", 2}, {"u8", 1},
	{"bool", 1},
}

// DTypes lists the element types that a state may have: floats by width, bf16, the 8-bit floats of PyTorch by its names,
// complex numbers of two floats (c64 is two f32), integers, and bool (a byte, 0 or 1).
func DTypes() []string {
	names := make([]string, len(dtypes))
	for i, d := range dtypes {
		names[i] = d.name
	}
	return names
}

// DTypeSize is the bytes of one element, 0 for an unknown dtype.
func DTypeSize(dtype string) int {
	for _, d := range dtypes {
		if d.name == dtype {
			return d.size
		}
	}
	return 0
}
