// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// Row is one line of a table.
type Row struct {
	Name string
	summary
}

// parts of a recovery, in the order in which they come.
var recoveryParts = []struct {
	name, what string
	of         func(recovery) float64
}{
	{"detect", "kill → its daemon saw the end", func(s recovery) float64 { return s.Detect }},
	{"tell", "→ the leader asked for seals", func(s recovery) float64 { return s.Tell }},
	{"seal", "→ all that live have sealed", func(s recovery) float64 { return s.Seal }},
	{"agree", "→ the new world is committed and applied", func(s recovery) float64 { return s.Agree }},
	{"form", "→ every rank's collectives are ready", func(s recovery) float64 { return s.Form }},
	{"heal", "→ every rank has the state", func(s recovery) float64 { return s.Heal }},
	{"first step", "→ the new world committed a step", func(s recovery) float64 { return s.FirstStep }},
}

// recoveryRows splits recoveries into their parts, in milliseconds. Parts are of those only whose parts were recorded.
func recoveryRows(kills []recovery, full bool) []Row {
	row := func(name string, overtaken bool, of func(recovery) float64) Row {
		var v []float64
		for _, s := range kills {
			if overtaken || !s.Overtaken {
				v = append(v, 1e3*of(s))
			}
		}
		return Row{name, summarise(v)}
	}
	var out []Row
	for _, p := range recoveryParts {
		out = append(out, row(p.name+": "+p.what, p.name == "detect", p.of))
	}
	out = append(out, row("agreement and forming: tell + seal + agree + form", false, func(s recovery) float64 { return s.Tell + s.Seal + s.Agree + s.Form }))
	out = append(out, row("**total**: kill → first committed step", true, func(s recovery) float64 { return s.Total }))
	if full {
		out = append(out, row("kill → first committed step at full size again", true, func(s recovery) float64 { return s.FullSize }))
	}
	return out
}

// RecoveryRows are the parts of a trainer's kill.
func (r *results) RecoveryRows() []Row { return recoveryRows(r.Recovery, true) }

// SpareRows are the parts of a trainer's kill beside a spare, whose first step is at full size.
func (r *results) SpareRows() []Row { return recoveryRows(r.Spare, false) }

// WatchedRows are the kills that trainers timed, in milliseconds.
func (r *results) WatchedRows() []Row {
	var out []Row
	for _, k := range []struct{ what, first, last string }{
		{"daemon", "a daemon: kill → its trainer knows the next step committed", "the same, all trainers"},
		{"leader", "the leader's daemon: kill → its trainer knows the next step committed", "the same, all trainers"},
		{"both", "the leader's daemon and trainer at once: kill → a survivor knows the next step committed", "the same, all survivors"},
		{"trainer", "a trainer: kill → a survivor knows the next step committed", "the same, all survivors"},
	} {
		if first := r.watchedFor(k.what, false); first.N > 0 {
			out = append(out, Row{k.first, first}, Row{k.last, r.watchedFor(k.what, true)})
		}
	}
	return out
}

// watchedFor sums up one kind of kills, until the first or the last trainer went on.
func (r *results) watchedFor(what string, last bool) summary {
	var v []float64
	for _, w := range r.Watched {
		if w.What == what && last {
			v = append(v, 1e3*w.Last)
		} else if w.What == what {
			v = append(v, 1e3*w.First)
		}
	}
	return summarise(v)
}

// DaemonKills counts the kills of daemons beside a living trainer, and those of them that changed the generation.
func (r *results) DaemonKills() (counts struct{ All, Changed int }) {
	for _, w := range r.Watched {
		if !keepsTrainer(w.What) {
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

// StepRows are the parts of empty steps, in microseconds.
func (r *results) StepRows() []Row {
	var out []Row
	for _, c := range r.Steps {
		name := fmt.Sprintf("**%d ranks, with a reduction of 64 KiB**", c.Ranks)
		if c.Bare {
			name = fmt.Sprintf("**%d ranks, without a reduction**", c.Ranks)
		}
		out = append(out, Row{name + ": begin to begin", c.Whole}, Row{"protocol: begin + vote + commit + apply", c.Protocol}, Row{"begin", c.Begin})
		if !c.Bare {
			out = append(out, Row{"write the gradient, reduce", c.Reduce}, Row{"digest of the gradient", c.Digest})
		}
		out = append(out, Row{"vote → known to be committed", c.Vote}, Row{"apply (nothing)", c.Apply})
	}
	return out
}

// DigestUS is the time of digesting so many MiB on one core, in microseconds.
func (r *results) DigestUS(mib float64) float64 { return mib * (1 << 20) / (r.Limits.DigestGBs * 1e3) }

// RoundTripMS is the round trip between two processes in milliseconds.
func (r *results) RoundTripMS() float64 { return r.Limits.RoundTrip / 1e3 }
