// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// Config is what a trainer registers.
type Config struct {
	// Spec is what all trainers of the job agree on.
	Spec phalanx.JobSpec
	// State lists every tensor of the training state: weights, optimizer, step count, random streams. The memory is live:
	// the library reads it for heals and saves and writes it when this member heals. Names are unique; all members list
	// the same tensors in the same order, or, with Pin, all members of one coordinate.
	State []kernels.Tensor
	// Global says of tensors of State, by name, that they are boxes of larger tensors, which the ranks of a replica group hold
	// together. Checkpoints hold the larger ones and can be restored into any other cut.
	Global map[string]phalanx.Global
	// Pin is the coordinate at which alone this member may sit, because State is the shard of that one: phalanx.PinTo of what
	// Client.Place says. Without it State must be the same at every coordinate.
	Pin phalanx.Pin
	// PerRank names tensors of State that each rank has of its own; all others are equal on all ranks with one coordinate.
	PerRank map[string]bool
	// GradientElements is the number of float32 that one step reduces.
	GradientElements int
	// CountElements is the largest number of int64 for AllReduceI64; 0 means DefaultCountElements.
	CountElements int
	// ExtraSegmentBytes reserves shared memory for Extra, Broadcast and AllGather.
	ExtraSegmentBytes int64
	// Apply is the optimizer: it turns the state of step - 1 into that of step. It reads nothing but the reduced gradient
	// and the state, and communicates with nobody: a roll forward happens in another world. It may run inside Begin.
	Apply func(step phalanx.Step) error
	// Coordinate, if set, is told the shard coordinate before the first step and before the first byte of a heal, and
	// whenever it changes.
	Coordinate func(coordinate int) error
	// Logger receives changes, never steps. nil discards them.
	Logger *slog.Logger
}

const (
	// DefaultCountElements is used for Config.CountElements = 0.
	DefaultCountElements = 64
	// OrphanAfter is how long a client waits without a living daemon.
	OrphanAfter = 60 * time.Second
	// FinishGrace is how long Finish waits for the daemon's stop once the last state is staged.
	FinishGrace = 10 * time.Second
	// RevokeGrace is how long a collective waits for its completion once a newer generation is seen: the daemon may
	// still write to the segment.
	RevokeGrace = 5 * time.Second
	// waitSlice bounds one wait on the bell, so that a lost daemon is seen.
	waitSlice = time.Second
)

// Memory is what client and daemon share.
type Memory struct {
	Page    *wire.Page
	Own     wire.Bell // the trainer's
	Daemon  wire.Bell
	Segment []byte
	Slabs   [][]byte // by turns; none: the job does not stage
	// TrainerStart is the start time of this process; fields with another one are void.
	TrainerStart uint64
	// Alive says whether a daemon runs, nil means wire.Alive.
	Alive func(pid int, start uint64) bool
	// BoottimeNS is the clock of signs of life, nil means wire.BoottimeNS.
	BoottimeNS func() int64
}

// validate reports the first mistake and returns the tensors as they are announced.
func (cfg *Config) validate() ([]phalanx.TensorInfo, error) {
	if err := cfg.Spec.Validate(); err != nil {
		return nil, err
	}
	switch {
	case !cfg.Pin.Valid(cfg.Spec.GroupSize):
		return nil, fmt.Errorf("pinned to %s in groups of %d; ask Place for it", cfg.Pin, cfg.Spec.GroupSize)
	case cfg.Apply == nil:
		return nil, errors.New("no Apply: register the optimizer")
	case cfg.GradientElements < 0 || cfg.CountElements < 0 || cfg.ExtraSegmentBytes < 0:
		return nil, fmt.Errorf("negative sizes: %d gradient elements, %d counts, %d extra bytes", cfg.GradientElements, cfg.CountElements, cfg.ExtraSegmentBytes)
	}
	seen := map[string]bool{}
	infos := make([]phalanx.TensorInfo, len(cfg.State))
	for i, t := range cfg.State {
		infos[i] = phalanx.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape, PerRank: cfg.PerRank[t.Name]}
		if g, found := cfg.Global[t.Name]; found {
			infos[i].Global = &g
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("two tensors are called %q", t.Name)
		}
		seen[t.Name] = true
	}
	layout, err := wire.LayoutSlab(infos)
	if err != nil {
		return nil, err
	}
	for i, t := range cfg.State {
		if int64(len(t.Data)) != layout.Sizes[i] {
			return nil, fmt.Errorf("tensor %q has %d bytes, its shape %v of %s needs %d", t.Name, len(t.Data), t.Shape, t.DType, layout.Sizes[i])
		}
	}
	if cfg.CountElements == 0 {
		cfg.CountElements = DefaultCountElements
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return infos, nil
}

// segmentPlan is where the trainer's buffers lie in its segment, each at a 64-byte boundary.
type segmentPlan struct {
	buffers      int   // gradient buffers: the most nodes that a fold holds, and the leaf in work
	stride       int64 // bytes between two gradient buffers, which start at 0
	out          int64 // the reduced gradient
	counts       int64 // buffers for counts
	countStride  int64
	countBuffers int
	countOut     int64
	extra        int64
	bytes        int64
}

// planSegment places the buffers. While slots are folded in order, the finished nodes are the cover of a range, so a fold
// needs one buffer more than the largest cover.
func planSegment(cfg Config) segmentPlan {
	cover := phalanx.SlotTree{Slots: cfg.Spec.Slots}.MaxCover()
	p := segmentPlan{buffers: cover + 1, countBuffers: cover}
	p.stride = align64(4 * int64(cfg.GradientElements))
	p.countStride = align64(8 * int64(cfg.CountElements))
	p.out = int64(p.buffers) * p.stride
	p.counts = p.out + p.stride
	p.countOut = p.counts + int64(p.countBuffers)*p.countStride
	p.extra = p.countOut + p.countStride
	p.bytes = p.extra + align64(cfg.ExtraSegmentBytes)
	return p
}

func align64(n int64) int64 { return (n + 63) &^ 63 }
