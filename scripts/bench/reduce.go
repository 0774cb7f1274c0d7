// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// large is the size of what the machine's limits are measured with.
const large = 64 << 20

// reduceSizes are the sizes of a gradient, in bytes, and how much less often than the small ones they are reduced.
var reduceSizes = []struct{ bytes, fewer, warm int }{{4 << 10, 1, 20}, {64 << 10, 1, 20}, {1 << 20, 3, 10}, {large, 20, 2}}

// reduceWorlds are the numbers of ranks.
func (p plan) reduceWorlds() []int {
	all := []int{2, 4, 8}
	if p.worlds == "" {
		return all
	}
	chosen := strings.Split(p.worlds, ",")
	return slices.DeleteFunc(all, func(n int) bool { return !slices.Contains(chosen, strconv.Itoa(n)) })
}

// reduceCost is one size of all-reduce in one world.
type reduceCost struct {
	Ranks   int     `json:"ranks"`
	Bytes   int     `json:"bytes"`
	Call    summary `json:"call_ms"`    // of all ranks
	Slowest summary `json:"slowest_ms"` // of the ranks, for each reduction
	Bound   float64 `json:"bound_ms"`   // what its bytes need at the bandwidth of the machine, as measured in this run
}

// Share is how much of the machine's bandwidth is used, in percent.
func (c reduceCost) Share() float64 { return 100 * c.Bound / c.Call.P50 }

// bound is the time that the bytes of a reduction need, in milliseconds: each of n inputs is read once and the sum written
// once, and n−1 ranks copy the shards of the others. A copy at full speed on all cores moves two bytes for each one copied.
func bound(l limits, n, bytes int) float64 {
	moved := float64(n+1+2*(n-1)) * float64(bytes)
	return moved / (2 * l.CopyAllGBs * 1e6)
}

// measureReduce reduces in a loop inside of one step, for each size and world.
func measureReduce(ctx context.Context, p plan, dir string, r *results) error {
	for _, n := range p.reduceWorlds() {
		for _, size := range reduceSizes {
			cost, _, err := p.reduce(ctx, filepath.Join(dir, fmt.Sprintf("reduce-%d-%d", n, size.bytes)), n, size.bytes, max(3, p.loops/size.fewer), size.warm)
			if err != nil {
				return fmt.Errorf("%d ranks, %d bytes: %w", n, size.bytes, err)
			}
			cost.Bound = bound(r.Limits, n, size.bytes)
			r.Reduce = append(r.Reduce, *cost)
		}
	}
	return nil
}

// reduce runs one job of n ranks that reduces a gradient of some bytes so many times. It returns every call too.
func (p plan) reduce(ctx context.Context, folder string, n, bytes, loops, warm int) (*reduceCost, []float64, error) {
	if _, err := runTrainers(ctx, p, folder, n, "-slots", strconv.Itoa(n), "-elements", strconv.Itoa(bytes/4),
		"-loops", strconv.Itoa(loops), "-warm", strconv.Itoa(warm)); err != nil {
		return nil, nil, err
	}
	slowest := make([]float64, loops)
	var calls []float64
	for rank := range n {
		took, err := readLoops(filepath.Join(folder, fmt.Sprintf("%d.loops", rank)))
		if err != nil {
			return nil, nil, err
		}
		if len(took) != loops {
			return nil, nil, fmt.Errorf("rank %d wrote down %d reductions of %d", rank, len(took), loops)
		}
		for i, ms := range took {
			slowest[i] = max(slowest[i], ms)
		}
		calls = append(calls, took...)
	}
	return &reduceCost{Ranks: n, Bytes: bytes, Call: summarise(calls), Slowest: summarise(slowest)}, calls, nil
}

// warmSteps are run before anything is measured.
const warmSteps = 20

// runTrainers runs a job that ends by itself and returns what each trainer wrote.
func runTrainers(ctx context.Context, p plan, folder string, n int, args ...string) ([][]moment, error) {
	j, err := start(p, folder, n, nil, append([]string{p.self, trainerVerb, "-out", folder}, args...)...)
	if err != nil {
		return nil, err
	}
	defer j.end()
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	if err := j.Finish(ctx); err != nil {
		return nil, err
	}
	names, _ := filepath.Glob(filepath.Join(folder, "*.moments"))
	if len(names) != n {
		return nil, fmt.Errorf("%d lives of trainers in a run of %d ranks without a kill", len(names), n)
	}
	var out [][]moment
	for _, name := range names {
		m, err := readMoments(name)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// readLoops returns the durations of reductions in milliseconds.
func readLoops(name string) ([]float64, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var out []float64
	for _, line := range strings.Fields(string(text)) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		out = append(out, float64(ns)/1e6)
	}
	return out, nil
}
