// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

//go:embed ckpt.md.tmpl
var pageCkpt string

// ckptPlan is where checkpoints are measured, and with whom.
type ckptPlan struct {
	plan
	python string // that has the rivals, "": ours alone
	tmpfs  string // folders for checkpoints
	disk   string
	s3     string // URL of an empty bucket or prefix, "": none
	server string // program that serves a bucket when there is no s3, "": none
	mib    int    // instead of a cell's own size, 0: as it is
	reps   int    // saves after the first one
}

// cell is one kind of state at one kind of store, measured by all in turn.
type cell struct {
	Name   string  `json:"name"`
	Target string  `json:"target"` // tmpfs, disk or s3
	Ranks  int     `json:"ranks"`
	MiB    int     `json:"mib"`
	DType  string  `json:"dtype"`
	StepMS float64 `json:"step_ms"` // compute of a step

	// What of the rivals is measured here, and whether the layer alone is.
	dcp, other []string
	layer      bool

	Alone *layerTimes `json:"alone,omitempty"` // ckpt in one process, without a job
	By    []savesOf   `json:"by"`              // ours first
}

// Title tells a cell on the page.
func (c *cell) Title() string {
	name := map[string]string{"f32": "float32", "bf16": "bfloat16"}[c.DType]
	return fmt.Sprintf("%s %s, %d %s, %s, steps of %.0f ms", mibs(c.MiB), name, c.Ranks, plural(c.Ranks, "rank"), c.Target, c.StepMS)
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func mibs(n int) string {
	if n%1024 == 0 {
		return fmt.Sprintf("%d GiB", n/1024)
	}
	return fmt.Sprintf("%d MiB", n)
}

// cells are the combinations that are worth their time: one of everything, and a second value of each property beside it.
func (p ckptPlan) cells() []*cell {
	async := []string{"save", "async-stager", "load"}
	all := []*cell{
		{Name: "main", Target: "tmpfs", Ranks: 1, MiB: 1024, DType: "f32", StepMS: 10, layer: true,
			dcp: []string{"save", "save-threads", "async", "async-stager", "async-process", "async-process-shm", "load"}, other: []string{"sync", "async", "load"}},
		{Name: "overlap", Target: "tmpfs", Ranks: 1, MiB: 256, DType: "f32", StepMS: 50, dcp: []string{"async-stager"}, other: []string{"async"}},
		{Name: "small", Target: "tmpfs", Ranks: 1, MiB: 256, DType: "f32", StepMS: 10, layer: true, dcp: async},
		{Name: "large", Target: "tmpfs", Ranks: 1, MiB: 2048, DType: "bf16", StepMS: 10, layer: true, dcp: async},
		{Name: "ranks-2", Target: "tmpfs", Ranks: 2, MiB: 1024, DType: "bf16", StepMS: 10, dcp: async},
		{Name: "ranks-4", Target: "tmpfs", Ranks: 4, MiB: 1024, DType: "f32", StepMS: 10, dcp: async, other: []string{"async"}},
		{Name: "disk", Target: "disk", Ranks: 1, MiB: 1024, DType: "f32", StepMS: 10, layer: true, dcp: async},
		{Name: "s3", Target: "s3", Ranks: 1, MiB: 1024, DType: "f32", StepMS: 10, layer: true, dcp: []string{"save", "load"}},
	}
	if p.quick {
		all = slices.DeleteFunc(all, func(c *cell) bool { return slices.Contains([]string{"small", "large", "ranks-4"}, c.Name) })
	}
	var out []*cell
	for _, c := range all {
		switch {
		case p.only != "" && !slices.Contains(strings.Split(p.only, ","), c.Name), c.Target == "s3" && p.s3 == "" && p.server == "":
			continue
		case p.quick:
			c.MiB /= 16
			if c.Name != "main" {
				c.dcp, c.other = nil, nil // starting Python takes most of a minute
			}
			c.dcp, c.other = c.dcp[:min(1, len(c.dcp))], nil
		}
		if p.mib > 0 {
			c.MiB = p.mib
		}
		out = append(out, c)
	}
	return out
}

// cellNames are what -only chooses among.
func cellNames() []string {
	var names []string
	for _, c := range (ckptPlan{s3: "any"}).cells() {
		names = append(names, c.Name)
	}
	return append(names, "verbs")
}

// place is the folder or URL for one measurement of a cell.
func (p ckptPlan) place(c *cell, name string) string {
	switch c.Target {
	case "tmpfs":
		return filepath.Join(p.tmpfs, name)
	case "disk":
		return filepath.Join(p.disk, name)
	}
	bucket, parameters, _ := strings.Cut(p.s3, "?")
	return strings.TrimRight(bucket, "/") + "/" + name + "?" + parameters
}

// ckptResults are what ckpt.json holds.
type ckptResults struct {
	Machine  facts             `json:"machine"`
	Quick    bool              `json:"quick,omitempty"`
	Note     string            `json:"note,omitempty"`
	Began    time.Time         `json:"began"`
	Seconds  float64           `json:"seconds"`
	Parts    []partTime        `json:"parts"`
	Versions map[string]string `json:"versions"`
	Places   map[string]string `json:"places"` // file system or server of each target
	Aims     []aim             `json:"aims"`
	Limits   limits            `json:"limits"`
	Cells    []*cell           `json:"cells"`
	Verbs    []verbMemory      `json:"verbs"` // of the command line
}

// measureCkpt measures all cells, ours and the others in turn, and writes ckpt.md and ckpt.json.
func measureCkpt(ctx context.Context, p ckptPlan) error {
	if p.python != "" {
		if err := exec.CommandContext(ctx, p.python, "-c", "import torch").Run(); err != nil {
			return fmt.Errorf("%s has no torch: %w; scripts/bench-ckpt.sh makes one that has, and -python '' measures ours alone", p.python, err)
		}
	}
	missing := map[string]bool{}
	for _, module := range []string{"torch_checkpointing", "s3fs"} {
		missing[module] = p.python != "" && exec.CommandContext(ctx, p.python, "-c", "import "+module).Run() != nil
	}
	dir, err := p.prepare()
	if err != nil {
		return err
	}
	for _, folder := range []*string{&p.tmpfs, &p.disk} {
		made, err := os.MkdirTemp(*folder, "phalanx-bench-ckpt-")
		if err != nil {
			return err
		}
		*folder = made
		defer os.RemoveAll(made)
	}
	if p.s3 == "" && p.server != "" {
		folder := filepath.Join(p.tmpfs, "s3")
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		url, end, err := startGateway(ctx, p.server, folder)
		if err != nil {
			return err
		}
		defer end()
		p.s3 = url
	}
	r := &ckptResults{
		Machine: machineFacts(ctx, p.commit), Quick: p.quick, Began: time.Now().UTC(), Versions: map[string]string{},
		Places: map[string]string{},
	}
	if p.server != "" {
		r.Places["s3"] = filepath.Base(p.server) + " over HTTP on a folder in memory"
	} else if p.s3 != "" {
		r.Places["s3"] = p.s3
	}
	if p.mib > 0 {
		r.Note = fmt.Sprintf("All states of %d MiB: not the sizes that the aims are about.", p.mib)
	}
	for target, of := range map[string]string{"tmpfs": p.tmpfs, "disk": p.disk} {
		r.Places[target] = fileSystem(ctx, of)
	}
	for _, module := range slices.Sorted(maps.Keys(missing)) {
		if missing[module] {
			r.Note = strings.TrimSpace(r.Note + " The python of this run has no " + module + ": what needs it is left out.")
		}
	}
	var errs []error
	part := func(title string, do func() error) {
		fmt.Printf("%s\n", title)
		began := time.Now()
		if err := do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", title, err))
			fmt.Printf("   failed: %v\n", err)
		}
		r.Parts = append(r.Parts, partTime{title, time.Since(began).Seconds(), loadAverage()})
		fmt.Printf("   %.0f s\n", time.Since(began).Seconds())
	}
	raw := &results{}
	part("raw limits of the machine", func() error { return measureLimits(ctx, p.plan, dir, raw) })
	r.Limits = raw.Limits
	for _, c := range p.cells() {
		if missing["torch_checkpointing"] {
			c.other = nil
		}
		if missing["s3fs"] && c.Target == "s3" {
			c.dcp = nil
		}
		r.Cells = append(r.Cells, c)
		part(c.Title(), func() error { return p.measureCell(ctx, c, dir, r) })
		if ctx.Err() != nil {
			break
		}
	}
	if p.only == "" || slices.Contains(strings.Split(p.only, ","), "verbs") {
		part("memory of phalanx ckpt", func() error { return p.measureVerbs(ctx, dir, r) })
	}
	r.Seconds = time.Since(r.Began).Seconds()
	r.Aims = r.ckptAims()
	for _, a := range r.Aims {
		fmt.Printf("%-7s %s: %s, aim %s\n", a.Verdict(), a.What, a.Value(), a.Limit())
	}
	if err := write(p.out, "ckpt", pageCkpt, r); err != nil {
		errs = append(errs, err)
	}
	return finish(errs, p.plan, dir, "ckpt.md", r.Seconds)
}

// measureCell measures the layer alone before and after the rest, so that a slow minute of the machine is seen.
func (p ckptPlan) measureCell(ctx context.Context, c *cell, dir string, r *ckptResults) error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if c.layer {
		note(p.measureLayer(ctx, c, p.reps-p.reps/2))
	}
	note(p.measureJob(ctx, c, filepath.Join(dir, c.Name)))
	if p.python != "" && len(c.dcp) > 0 {
		note(p.measureRival(ctx, c, r, "DCP", "dcp_saves.py", c.dcp))
	}
	if p.python != "" && len(c.other) > 0 {
		note(p.measureRival(ctx, c, r, "torch-checkpointing", "torch_checkpointing_saves.py", c.other))
	}
	if c.layer {
		note(p.measureLayer(ctx, c, p.reps/2))
	}
	return errors.Join(errs...)
}

// fileSystem names what a folder lies on.
func fileSystem(ctx context.Context, folder string) string {
	out, err := exec.CommandContext(ctx, "stat", "-f", "-c", "%T", folder).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// puts is how many objects are written at once, by us and by the raw bounds.
func puts() int { return max(2, runtime.NumCPU()) }
