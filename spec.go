// SPDX-License-Identifier: Apache-2.0

package phalanx

import (
	"fmt"
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
	DType string `json:"dtype"` // f32, f64, f16, bf16, i64, i32, u8
	Shape []int  `json:"shape"`
}

// Bytes is the size of the tensor, row-major without padding. Unknown dtypes have none.
func (t TensorInfo) Bytes() int64 {
	n := int64(DTypeSize(t.DType))
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// DTypeSize is the bytes of one element, 0 for an unknown dtype.
func DTypeSize(dtype string) int {
	switch dtype {
	case "f64", "i64":
		return 8
	case "f32", "i32":
		return 4
	case "f16", "bf16":
		return 2
	case "u8":
		return 1
	}
	return 0
}
