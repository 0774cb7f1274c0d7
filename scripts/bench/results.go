// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/template"
	"time"
)

// results are what core.json holds.
type results struct {
	Machine   facts        `json:"machine"`
	Ranks     int          `json:"ranks"`
	Began     time.Time    `json:"began"`
	Seconds   float64      `json:"seconds"`
	Parts     []partTime   `json:"parts"`
	Surprises []string     `json:"surprises"`
	Limits    limits       `json:"limits"`
	LimitsRaw []limits     `json:"limits_raw"` // before and after
	Bare      *stepCost    `json:"step_bare_us"`
	Reduced   *stepCost    `json:"step_reduced_us"`
	Reduce    []reduceCost `json:"all_reduce"`
	Watched   []watched    `json:"watched"`
	Recovery  []recovery   `json:"recovery"`
}

// partTime is how long a part of the benchmark took, and the load at its end.
type partTime struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Load    string  `json:"load"`
}

// summary is what is told of many values; quantiles are values that occurred (nearest rank).
type summary struct {
	N    int     `json:"n"`
	Min  float64 `json:"min"`
	P10  float64 `json:"p10"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}

func summarise(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	v := slices.Sorted(slices.Values(values))
	var sum float64
	for _, x := range v {
		sum += x
	}
	at := func(q float64) float64 { return v[max(0, int(math.Ceil(q*float64(len(v))))-1)] }
	return summary{len(v), v[0], at(0.10), at(0.50), at(0.90), at(0.95), v[len(v)-1], sum / float64(len(v))}
}

// Row is one line of a table, in milliseconds.
type Row struct {
	Name string
	summary
}

// RecoveryRows splits the recoveries into their parts.
func (r *results) RecoveryRows() []Row {
	row := func(name string, overtaken bool, of func(recovery) float64) Row {
		var v []float64
		for _, s := range r.Recovery {
			if overtaken || !s.Overtaken {
				v = append(v, 1e3*of(s))
			}
		}
		return Row{name, summarise(v)}
	}
	part := func(name string, of func(recovery) float64) Row { return row(name, false, of) }
	whole := func(name string, of func(recovery) float64) Row { return row(name, true, of) }
	return []Row{
		whole("detect: kill → its daemon saw the end", func(s recovery) float64 { return s.Detect }),
		part("tell: → the leader asked for seals", func(s recovery) float64 { return s.Tell }),
		part("seal: → all that live have sealed", func(s recovery) float64 { return s.Seal }),
		part("agree: → the new world is committed and applied", func(s recovery) float64 { return s.Agree }),
		part("form: → every rank's collectives are ready", func(s recovery) float64 { return s.Form }),
		part("heal: → every rank has the state", func(s recovery) float64 { return s.Heal }),
		part("first step: → the smaller world committed a step", func(s recovery) float64 { return s.FirstStep }),
		whole("**total**: kill → first step committed by the smaller world", func(s recovery) float64 { return s.Total }),
		whole("kill → first step committed at full size again", func(s recovery) float64 { return s.FullSize }),
	}
}

// WatchedRows are the kills that trainers timed.
func (r *results) WatchedRows() []Row {
	var out []Row
	for _, k := range []struct{ what, first, last string }{
		{"daemon", "a daemon: kill → its trainer knows the next step committed", "the same, all trainers"},
		{"leader", "the leader's daemon: kill → its trainer knows the next step committed", "the same, all trainers"},
		{"trainer", "a trainer: kill → a survivor knows the next step committed", "the same, all survivors"},
	} {
		var first, last []float64
		for _, w := range r.Watched {
			if w.What == k.what {
				first, last = append(first, 1e3*w.First), append(last, 1e3*w.Last)
			}
		}
		if len(first) > 0 {
			out = append(out, Row{k.first, summarise(first)}, Row{k.last, summarise(last)})
		}
	}
	return out
}

// DaemonKills counts the kills of daemons, and those of them that changed the generation.
func (r *results) DaemonKills() (counts struct{ All, Changed int }) {
	for _, w := range r.Watched {
		if w.What == "trainer" {
			continue
		}
		counts.All++
		if w.From != w.To {
			counts.Changed++
		}
	}
	return counts
}

// Recomputed is the most steps that a kill of a trainer made the others compute again.
func (r *results) Recomputed() (most uint64) {
	for _, s := range r.Recovery {
		most = max(most, s.Recomputed)
	}
	return most
}

// Disagreement is by how much, at most, the sum of the parts differs from the time stamps of the history, in milliseconds.
func (r *results) Disagreement() (most float64) {
	for _, s := range r.Recovery {
		most = max(most, 1e3*math.Abs(s.Total-s.Stamped))
	}
	return most
}

// Overtaken counts the recoveries whose parts the job had no time to record.
func (r *results) Overtaken() (n int) {
	for _, s := range r.Recovery {
		if s.Overtaken {
			n++
		}
	}
	return n
}

// Late counts the recoveries that took too long.
func (r *results) Late() (n int) {
	for _, s := range r.Recovery {
		if s.Total > tooLong {
			n++
		}
	}
	return n
}

// StepRows are the parts of an empty step, in microseconds.
func (r *results) StepRows() []Row {
	var out []Row
	for _, k := range []struct {
		name string
		cost *stepCost
	}{{"without a reduction", r.Bare}, {"with one of 64 KiB", r.Reduced}} {
		if k.cost == nil {
			continue
		}
		out = append(out, Row{"**" + k.name + "**: begin to begin", k.cost.Whole}, Row{"begin", k.cost.Begin})
		if k.cost == r.Reduced {
			out = append(out, Row{"write the gradient, reduce", k.cost.Reduce})
		}
		out = append(out, Row{"vote → known to be committed", k.cost.Vote}, Row{"apply (nothing)", k.cost.Apply})
	}
	return out
}

// surprises are what nobody should see; each makes the benchmark fail after it has written its results.
func surprises(r *results) (out []string) {
	for i, s := range r.Recovery {
		if s.Total > tooLong {
			out = append(out, fmt.Sprintf("kill %d, of the trainer of %s, took %.3f s until the next committed step", i+1, s.Member, s.Total))
		}
		if s.Recomputed > 1 {
			out = append(out, fmt.Sprintf("kill %d made the others compute %d steps again", i+1, s.Recomputed))
		}
		if s.Change.Rewind {
			out = append(out, fmt.Sprintf("kill %d led to a rewind", i+1))
		}
	}
	for _, w := range r.Watched {
		if w.Last > 2*tooLong {
			out = append(out, fmt.Sprintf("kill of a %s of %s took %.3f s until the next committed step", w.What, w.Member, w.Last))
		}
		if w.What != "trainer" && w.From != w.To {
			out = append(out, fmt.Sprintf("kill of a daemon (%s) of %s changed the generation from %d to %d", w.What, w.Member, w.From, w.To))
		}
	}
	return out
}

//go:embed core.md.tmpl
var page string

// write puts core.md and core.json into a folder.
func (r *results) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "core.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	t, err := template.New("core.md").Funcs(template.FuncMap{
		"f0": func(v float64) string { return fmt.Sprintf("%.0f", v) },
		"f1": func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"f2": func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"size": func(bytes int) string {
			if bytes >= 1<<20 {
				return fmt.Sprintf("%d MiB", bytes>>20)
			}
			return fmt.Sprintf("%d KiB", bytes>>10)
		},
		"rate": func(bytes int, ms float64) string { return fmt.Sprintf("%.0f MB/s", float64(bytes)/ms/1e3) },
	}).Parse(page)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, r); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "core.md"), b.Bytes(), 0o644)
}
