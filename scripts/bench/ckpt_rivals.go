// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
)

// measureRival runs one of scripts/rivals over variants of saving and loading. Each variant's first save is told apart.
func (p ckptPlan) measureRival(ctx context.Context, c *cell, r *ckptResults, who, script string, variants []string) error {
	var told struct {
		Version  string `json:"version"`
		Variants map[string]struct {
			Saves  []save    `json:"saves"`
			Quiet  []float64 `json:"quiet_ms"`
			Shared float64   `json:"shared_mib"`
		} `json:"variants"`
	}
	place, _, _ := strings.Cut(p.place(c, "rival-"+c.Name), "?") // of an URL: its parameters are in the environment
	args := []string{
		filepath.Join("scripts", "rivals", script), place, strconv.Itoa(c.Ranks), strconv.Itoa(c.MiB), c.DType,
		strconv.Itoa(p.reps), strconv.FormatFloat(c.StepMS, 'g', -1, 64),
	}
	seen, err := tell(ctx, &told, p.python, append(args, variants...)...)
	if err != nil {
		return err
	}
	r.Versions[who] = told.Version
	for _, name := range variants {
		v := told.Variants[name]
		by := savesOf{Who: who, What: name, Load: name == "load", Saves: v.Saves, Quiet: summarise(v.Quiet), SharedMiB: v.Shared}
		var windows [][2]float64
		for _, s := range v.Saves {
			windows = append(windows, [2]float64{s.Begin, s.End})
		}
		by.TrainerMiB = seen.growth(windows)
		c.By = append(c.By, by)
	}
	return nil
}
