// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed rivals.md.tmpl
var pageRivals string

// rivalResults are what rivals.json holds.
type rivalResults struct {
	Machine  facts             `json:"machine"`
	Quick    bool              `json:"quick,omitempty"`
	Began    time.Time         `json:"began"`
	Seconds  float64           `json:"seconds"`
	Parts    []partTime        `json:"parts"`
	Versions map[string]string `json:"versions"`
	Settings string            `json:"torchft_settings,omitempty"`
	Aims     []aim             `json:"aims"`
	Reduce   []versus          `json:"all_reduce"`
	Ours     *results          `json:"ours"` // measured between the rivals
	Kills    []rivalKills      `json:"kills"`
	Flat     summary           `json:"flat_step_ms"`    // the rival's model with a bare all-reduce
	Step     summary           `json:"torchft_step_ms"` // the same under torchft
}

// versus is one all-reduce, by gloo and by us, in rounds that alternate. All in milliseconds.
type versus struct {
	Ranks      int       `json:"ranks"`
	Bytes      int       `json:"bytes"`
	Gloo       summary   `json:"gloo_ms"` // all rounds together
	Ours       summary   `json:"ours_ms"`
	GlooRounds []float64 `json:"gloo_rounds_p50_ms"`
	OursRounds []float64 `json:"ours_rounds_p50_ms"`
}

// Ratio is our time over gloo's: the median of the rounds, and the smallest and largest.
func (v versus) Ratio() summary {
	var out []float64
	for i := range v.OursRounds {
		out = append(out, v.OursRounds[i]/v.GlooRounds[i])
	}
	return summarise(out)
}

// rivalKills is how long somebody needs to go on after a SIGKILL of one of four, in milliseconds.
type rivalKills struct {
	Name string  `json:"name"`
	What string  `json:"what"`
	MS   summary `json:"ms"`
}

// Times is how much longer it takes than a kill of a trainer of ours, median by median.
func (k rivalKills) Times(ours summary) float64 { return k.MS.P50 / ours.P50 }

// Total sums up our own kills.
func (r *rivalResults) Total() summary { return totalOf(r.Ours.Recovery) }

// Protocol is what our protocol costs in a step of four ranks, in milliseconds.
func (r *rivalResults) Protocol() float64 {
	for _, c := range r.Ours.Steps {
		if c.Ranks == ranks && c.Bare {
			return c.Protocol.P50 / 1e3
		}
	}
	return 0
}

// Overhead is what torchft adds to a step, in milliseconds.
func (r *rivalResults) Overhead() float64 { return r.Step.Mean - r.Flat.Mean }

// rival is one measurement of somebody else.
type rival struct {
	r      *rivalResults
	python string
	folder string // of the scripts
}

// rivals measures the others with a python that has them, and ours between them.
func rivals(ctx context.Context, p plan, python string) error {
	if err := havePython(ctx, python); err != nil {
		return err
	}
	dir, err := p.prepare()
	if err != nil {
		return err
	}
	r := &rivalResults{
		Machine: machineFacts(ctx, p.commit), Quick: p.quick, Began: time.Now().UTC(), Versions: map[string]string{},
		Ours: &results{Ranks: ranks, Quick: p.quick},
	}
	v := rival{r, python, filepath.Join("scripts", "rivals")}
	p.kills, p.loops, p.steps = min(p.kills, 40), min(p.loops, 200), min(p.steps, 1000)
	var errs []error
	for _, part := range []struct {
		title string
		do    func() error
	}{
		{"raw limits of the machine", func() error { return measureLimits(ctx, p, dir, r.Ours) }},
		{"all-reduce, gloo and ours in turn", func() error { return v.reduce(ctx, p, dir) }},
		{"recovery of ours", func() error {
			return errors.Join(measureSmaller(ctx, p, dir, r.Ours), measureRecovery(ctx, p, dir, r.Ours))
		}},
		{"torchft, kills", func() error { return v.torchft(ctx, pick(p, 10, 1)) }},
		{"gloo alone, kills", func() error { return v.gloo(ctx, pick(p, 6, 1)) }},
		{"torchrun, kills", func() error { return v.torchrun(ctx, pick(p, 3, 1)) }},
		{"protocol of ours", func() error { return measureProtocol(ctx, p, dir, r.Ours) }},
		{"quiet steps of torchft and without it", func() error { return v.steps(ctx, pick(p, 300, 50)) }},
	} {
		fmt.Printf("%s\n", part.title)
		began := time.Now()
		if err := part.do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.title, err))
			fmt.Printf("   failed: %v\n", err)
		}
		r.Parts = append(r.Parts, partTime{part.title, time.Since(began).Seconds(), loadAverage()})
		fmt.Printf("   %.0f s\n", time.Since(began).Seconds())
	}
	r.Seconds = time.Since(r.Began).Seconds()
	r.Aims = rivalAims(r)
	for _, a := range r.Aims {
		fmt.Printf("%-7s %s: %s, aim %s\n", a.Verdict(), a.What, a.Value(), a.Limit())
	}
	if err := write(p.out, "rivals", pageRivals, r); err != nil {
		errs = append(errs, err)
	}
	return finish(errs, p, dir, "rivals.md", r.Seconds)
}

func pick(p plan, full, quick int) int {
	if p.quick {
		return quick
	}
	return full
}

// rivalAims are those that need somebody beside us.
func rivalAims(r *rivalResults) (out []aim) {
	for _, v := range r.Reduce {
		most := 0.0
		switch {
		case v.Ranks < 4:
			continue
		case v.Bytes <= 64<<10:
			most = 0.1
		case v.Bytes == large:
			most = 1.0 / 3
		default:
			continue
		}
		ratio := v.Ratio()
		out = append(out, aim{
			"reduce", fmt.Sprintf("all-reduce of %s by %d ranks, of gloo's time", size(v.Bytes), v.Ranks), ratio.P50, most, "×", v.Ours.N, nil,
		})
	}
	return out
}

// call runs a script and reads the JSON of its last line.
func (v rival) call(ctx context.Context, into any, script string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, v.python, append([]string{filepath.Join(v.folder, script)}, args...)...)
	// A group of its own, so that everything that a script has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var told bytes.Buffer
	cmd.Stderr = &told
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s%s", script, err, tailOf(out), tailOf(told.Bytes()))
	}
	last := tailOf(out)
	_, result, ok := strings.Cut(last, "RESULT ")
	if !ok {
		return fmt.Errorf("%s: its last line is no result\n%s", script, last)
	}
	if err := json.Unmarshal([]byte(result), into); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	return nil
}

// tailOf is the end of what was printed. A result may be long.
func tailOf(out []byte) string {
	s := strings.TrimSpace(string(out))
	if i := strings.LastIndex(s, "RESULT "); i >= 0 {
		return s[i:]
	}
	return s[max(0, len(s)-2000):] + "\n"
}

// reduce times gloo and ours in turn, several rounds, so that a slow minute of the machine hits both.
func (v rival) reduce(ctx context.Context, p plan, dir string) error {
	for _, n := range p.reduceWorlds() {
		var sizes []string
		cells := make([]versus, len(reduceSizes))
		gloo, ours := make([][]float64, len(cells)), make([][]float64, len(cells))
		for i, s := range reduceSizes {
			cells[i] = versus{Ranks: n, Bytes: s.bytes}
			sizes = append(sizes, fmt.Sprintf("%d:%d", s.bytes, max(3, p.loops/s.fewer)))
		}
		for round := range pick(p, 3, 1) {
			var told struct {
				Version string               `json:"version"`
				MS      map[string][]float64 `json:"ms"`
			}
			if err := v.call(ctx, &told, "gloo_reduce.py", append([]string{strconv.Itoa(n)}, sizes...)...); err != nil {
				return err
			}
			v.r.Versions["torch (gloo)"] = told.Version
			for i, s := range reduceSizes {
				ms := told.MS[strconv.Itoa(s.bytes)]
				gloo[i] = append(gloo[i], ms...)
				cells[i].GlooRounds = append(cells[i].GlooRounds, summarise(ms).P50)
				cost, calls, err := p.reduce(ctx, filepath.Join(dir, fmt.Sprintf("r%d-%d-%d", n, s.bytes, round)), n, s.bytes, max(3, p.loops/s.fewer), s.warm)
				if err != nil {
					return err
				}
				ours[i] = append(ours[i], calls...)
				cells[i].OursRounds = append(cells[i].OursRounds, cost.Call.P50)
			}
		}
		for i := range cells {
			cells[i].Gloo, cells[i].Ours = summarise(gloo[i]), summarise(ours[i])
		}
		v.r.Reduce = append(v.r.Reduce, cells...)
	}
	return nil
}

// milliseconds of a script's seconds.
func milliseconds(seconds []float64) summary {
	ms := slices.Clone(seconds)
	for i := range ms {
		ms[i] *= 1e3
	}
	return summarise(ms)
}

type pyTimes struct {
	Version  string          `json:"version"`
	Settings json.RawMessage `json:"settings"`
	Recover  []float64       `json:"recover"`
	First    []float64       `json:"first"`
	Step     []float64       `json:"step"`
}

func (v rival) torchft(ctx context.Context, kills int) error {
	var told pyTimes
	if err := v.call(ctx, &told, "torchft_kills.py", strconv.Itoa(kills)); err != nil {
		return err
	}
	v.r.Versions["torchft"], v.r.Settings = told.Version, string(told.Settings)
	v.r.Kills = append(v.r.Kills,
		rivalKills{"torchft, tuned", "a replica group: kill → first committed step of whichever survivors", milliseconds(told.First)},
		rivalKills{"torchft, tuned", "the same, of all survivors together", milliseconds(told.Recover)})
	return nil
}

func (v rival) gloo(ctx context.Context, kills int) error {
	var told pyTimes
	if err := v.call(ctx, &told, "gloo_kill.py", strconv.Itoa(ranks), strconv.Itoa(kills)); err != nil {
		return err
	}
	v.r.Kills = append(v.r.Kills, rivalKills{"gloo alone", "a rank, survivors that are told who is left and train nothing: kill → first all-reduce of the new group", milliseconds(told.Recover)})
	return nil
}

func (v rival) torchrun(ctx context.Context, kills int) error {
	var told pyTimes
	if err := v.call(ctx, &told, "torchrun_kills.py", strconv.Itoa(kills)); err != nil {
		return err
	}
	v.r.Versions["torchrun"] = "torch " + told.Version
	v.r.Kills = append(v.r.Kills, rivalKills{"torchrun, restart of all workers", "a worker: kill → next step", milliseconds(told.Recover)})
	return nil
}

func (v rival) steps(ctx context.Context, steps int) error {
	var told, flat pyTimes
	err := errors.Join(v.call(ctx, &told, "torchft_kills.py", "0"),
		v.call(ctx, &flat, "flat_steps.py", strconv.Itoa(ranks), strconv.Itoa(steps)))
	v.r.Step, v.r.Flat = milliseconds(told.Step), milliseconds(flat.Step)
	return err
}

// havePython reports whether a python can be run.
func havePython(ctx context.Context, python string) error {
	if err := exec.CommandContext(ctx, python, "-c", "import torch, torchft").Run(); err != nil {
		return fmt.Errorf("%s has no torch and torchft: %w; scripts/rivals.sh makes one that has", python, err)
	}
	_, err := os.Stat(filepath.Join("scripts", "rivals"))
	return err
}
