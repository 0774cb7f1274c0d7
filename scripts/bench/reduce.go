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

// Sizes of a reduction, in bytes.
const (
	small = 64 << 10
	large = 64 << 20
)

// stepCost is what a step takes in which nothing is computed, in microseconds, over all ranks and steps.
type stepCost struct {
	Whole  summary `json:"whole"`  // from begin to begin
	Begin  summary `json:"begin"`  // from the end of a step until the next one is begun
	Reduce summary `json:"reduce"` // with the writing of a gradient; 0 without
	Vote   summary `json:"vote"`   // until the step is known to be committed
	Apply  summary `json:"apply"`
}

// reduceCost is one size of all-reduce.
type reduceCost struct {
	Bytes   int     `json:"bytes"`
	Call    summary `json:"call_ms"`    // of all ranks
	Slowest summary `json:"slowest_ms"` // of the ranks, for each reduction
	Bound   float64 `json:"bound_ms"`   // what its copies and adds need on one core, as measured in this run
	Ratio   float64 `json:"ratio"`      // median of Call over Bound
}

// measureProtocol runs empty steps, without a reduction and with one of 64 KiB.
func measureProtocol(ctx context.Context, p plan, dir string, r *results) error {
	moments, err := runTrainers(ctx, p, filepath.Join(dir, "protocol"), "-elements", strconv.Itoa(small/4),
		"-warm", strconv.Itoa(warmSteps), "-bare", strconv.Itoa(p.steps), "-reduced", strconv.Itoa(p.steps))
	if err != nil {
		return err
	}
	var bare, reduced [][]moment
	for _, all := range moments {
		cut := slices.IndexFunc(all, func(m moment) bool { return m.Step > int64(warmSteps+p.steps) })
		if cut < 0 || len(all) != warmSteps+2*p.steps {
			return fmt.Errorf("a trainer wrote down %d steps of %d", len(all), warmSteps+2*p.steps)
		}
		bare, reduced = append(bare, all[warmSteps:cut]), append(reduced, all[cut:])
	}
	r.Bare, r.Reduced = costOf(bare), costOf(reduced)
	return nil
}

// costOf pools the steps of all ranks.
func costOf(ranks [][]moment) *stepCost {
	var whole, begin, reduce, vote, apply []float64
	for _, moments := range ranks {
		for i, m := range moments {
			reduce = append(reduce, float64(m.Reduced-m.Begun)/1e3)
			vote = append(vote, float64(m.Decided-m.Reduced)/1e3)
			apply = append(apply, float64(m.Applied-m.Decided)/1e3)
			if i > 0 {
				whole = append(whole, float64(m.Begun-moments[i-1].Begun)/1e3)
				begin = append(begin, float64(m.Begun-moments[i-1].Applied)/1e3)
			}
		}
	}
	return &stepCost{summarise(whole), summarise(begin), summarise(reduce), summarise(vote), summarise(apply)}
}

// measureReduce reduces in a loop inside of one step, small and large, and then looks at the raw limits again.
func measureReduce(ctx context.Context, p plan, dir string, r *results) error {
	for _, size := range []struct {
		bytes, loops, warm int
	}{{small, p.loops, warmSteps}, {large, max(1, p.loops/3), 2}} {
		folder := filepath.Join(dir, fmt.Sprintf("reduce-%d", size.bytes))
		if _, err := runTrainers(ctx, p, folder, "-elements", strconv.Itoa(size.bytes/4),
			"-loops", strconv.Itoa(size.loops), "-warm", strconv.Itoa(size.warm)); err != nil {
			return err
		}
		cost := reduceCost{Bytes: size.bytes}
		slowest := make([]float64, size.loops)
		var calls []float64
		for rank := range ranks {
			took, err := readLoops(filepath.Join(folder, fmt.Sprintf("%d.loops", rank)))
			if err != nil {
				return err
			}
			if len(took) != size.loops {
				return fmt.Errorf("rank %d wrote down %d reductions of %d", rank, len(took), size.loops)
			}
			for i, ms := range took {
				slowest[i] = max(slowest[i], ms)
			}
			calls = append(calls, took...)
		}
		cost.Call, cost.Slowest = summarise(calls), summarise(slowest)
		r.Reduce = append(r.Reduce, cost)
	}
	if err := measureLimits(ctx, p, dir, r); err != nil {
		return err
	}
	for i := range r.Reduce {
		c := &r.Reduce[i]
		// Four inputs are added up three times, and every rank copies the sum into its own memory.
		c.Bound = float64(c.Bytes) / 1e6 * ((ranks-1)/r.Limits.AddGBs + ranks/r.Limits.CopyGBs)
		c.Ratio = c.Call.P50 / c.Bound
	}
	return nil
}

// warmSteps are run before anything is measured.
const warmSteps = 20

// runTrainers runs a job that ends by itself and returns what each trainer wrote.
func runTrainers(ctx context.Context, p plan, folder string, args ...string) ([][]moment, error) {
	j, err := start(p, folder, append([]string{p.self, trainerVerb, "-out", folder}, args...)...)
	if err != nil {
		return nil, err
	}
	defer j.end()
	if err := j.finish(ctx, time.Minute); err != nil {
		return nil, err
	}
	names, _ := filepath.Glob(filepath.Join(folder, "*.moments"))
	if len(names) != ranks {
		return nil, fmt.Errorf("%d lives of trainers in a run without a kill", len(names))
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
