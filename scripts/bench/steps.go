// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

// stepBytes is the gradient of a step with a reduction.
const stepBytes = 64 << 10

// stepWorlds are the numbers of ranks.
var stepWorlds = []int{4, 8}

// stepCost is what a step takes in which nothing is computed, in microseconds, over all ranks and steps.
type stepCost struct {
	Ranks    int     `json:"ranks"`
	Bare     bool    `json:"bare"`     // without a reduction
	Whole    summary `json:"whole"`    // from begin to begin
	Protocol summary `json:"protocol"` // begin, vote and apply, without reduction and digest
	Begin    summary `json:"begin"`    // from the end of a step until the next one is begun
	Reduce   summary `json:"reduce"`   // with the writing of a gradient; 0 without
	Digest   summary `json:"digest"`   // of the gradient; 0 without
	Vote     summary `json:"vote"`     // until the step is known to be committed
	Apply    summary `json:"apply"`
}

// measureProtocol runs empty steps, without a reduction and with one of 64 KiB.
func measureProtocol(ctx context.Context, p plan, dir string, r *results) error {
	for _, n := range stepWorlds {
		lives, err := runTrainers(ctx, p, filepath.Join(dir, fmt.Sprintf("protocol-%d", n)), n, "-slots", strconv.Itoa(n),
			"-elements", strconv.Itoa(stepBytes/4), "-warm", strconv.Itoa(warmSteps), "-bare", strconv.Itoa(p.steps), "-reduced", strconv.Itoa(p.steps))
		if err != nil {
			return fmt.Errorf("%d ranks: %w", n, err)
		}
		var bare, reduced [][]moment
		for _, all := range lives {
			cut := slices.IndexFunc(all, func(m moment) bool { return m.Step > int64(warmSteps+p.steps) })
			if cut < 0 || len(all) != warmSteps+2*p.steps {
				return fmt.Errorf("%d ranks: a trainer wrote down %d steps of %d", n, len(all), warmSteps+2*p.steps)
			}
			bare, reduced = append(bare, all[warmSteps:cut]), append(reduced, all[cut:])
		}
		r.Steps = append(r.Steps, costOf(n, true, bare), costOf(n, false, reduced))
	}
	return nil
}

// costOf pools the steps of all ranks.
func costOf(n int, bare bool, lives [][]moment) stepCost {
	var whole, protocol, begin, reduce, digest, vote, apply []float64
	us := func(from, to int64) float64 { return float64(to-from) / 1e3 }
	for _, moments := range lives {
		for i, m := range moments {
			reduce = append(reduce, us(m.Begun, m.Summed))
			digest = append(digest, us(m.Summed, m.Reduced))
			vote = append(vote, us(m.Reduced, m.Decided))
			apply = append(apply, us(m.Decided, m.Applied))
			if i > 0 {
				before := moments[i-1].Applied
				whole = append(whole, us(moments[i-1].Begun, m.Begun))
				begin = append(begin, us(before, m.Begun))
				protocol = append(protocol, us(before, m.Begun)+us(m.Reduced, m.Applied))
			}
		}
	}
	return stepCost{n, bare, summarise(whole), summarise(protocol), summarise(begin), summarise(reduce), summarise(digest), summarise(vote), summarise(apply)}
}
