// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// aim is one figure that the core is to reach.
type aim struct {
	Key   string  `json:"key"` // of the reasons why it is missed
	What  string  `json:"what"`
	Have  float64 `json:"have"`
	Most  float64 `json:"most"`
	Unit  string  `json:"unit"`
	N     int     `json:"n"`
	Parts []Piece `json:"parts,omitempty"` // what the time is made of
}

// Piece is a part of what an aim measures, in microseconds.
type Piece struct {
	Name string  `json:"name"`
	US   float64 `json:"us"`
}

// Met reports whether the aim is reached.
func (a aim) Met() bool { return a.Have <= a.Most }

// Verdict is the word for the page.
func (a aim) Verdict() string {
	if a.Met() {
		return "met"
	}
	return "missed"
}

// Value is what was measured.
func (a aim) Value() string { return figure(a.Have) + " " + a.Unit }

// Limit is what was aimed at.
func (a aim) Limit() string { return "≤ " + figure(a.Most) + " " + a.Unit }

func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// aims are those about what was measured.
func aims(r *results) (out []aim) {
	add := func(key, what string, n int, have, most float64, unit string, parts ...Piece) {
		if n > 0 {
			out = append(out, aim{key, what, have, most, unit, n, parts})
		}
	}
	if len(r.Recovery) > 0 && r.Smaller != nil {
		total, parts := totalOf(r.Recovery), pieces(r.Recovery, 1e3*r.Smaller.Reference)
		add("trainer", "a trainer is killed: p50 beyond one step of the smaller world", total.N, total.P50-r.Smaller.Reference, 40, "ms", parts...)
		add("trainer", "the same: p99", total.N, total.P99-r.Smaller.Reference, 150, "ms")
	}
	for _, k := range []struct{ what, name string }{{"daemon", "a daemon is killed: p50 to its trainer's next committed step"}, {"leader", "the leader's daemon is killed: p50"}} {
		s := r.watchedFor(k.what, true)
		add(k.what, k.name, s.N, s.P50, 250, "ms", r.restarts(k.what)...)
	}
	changed := r.DaemonKills()
	add("generation", "generations that kills of daemons cost", changed.All, float64(changed.Changed), 0, "of all")
	both := r.watchedFor("both", true)
	add("both", "the leader's daemon and trainer are killed at once: p50 to the survivors' next committed step", both.N, both.P50, 500, "ms", r.changes("both")...)
	add("both", "the same: p95", both.N, both.P95, 1000, "ms")
	spare := totalOf(r.Spare)
	add("spare", "a trainer is killed beside a parked spare: p50 to a step at full size", spare.N, spare.P50, 300, "ms", pieces(r.Spare, 0)...)
	for _, c := range r.Steps {
		if c.Bare {
			most := map[int]float64{4: 200, 8: 600}[c.Ranks]
			add("protocol", fmt.Sprintf("the protocol in a step of %d ranks: p50", c.Ranks), c.Protocol.N, c.Protocol.P50, most, "µs",
				Piece{"begin", c.Begin.P50}, Piece{"vote → known to be committed", c.Vote.P50}, Piece{"apply", c.Apply.P50})
		}
	}
	for i, u := range r.Daemons {
		if i > 0 {
			add("cpu", "a daemon's CPU, "+u.What+": mean", u.CPU.N, u.CPU.Mean, 1, "% of a core",
				Piece{"a second with hardly any step", 1e4 * r.Daemons[0].CPU.Mean},
				Piece{"a second's steps", 1e4 * (u.CPU.Mean - r.Daemons[0].CPU.Mean)})
			add("memory", "a daemon's own memory (RssAnon), "+u.What+": max", u.RssAnon.N, u.RssAnon.Max, 64, "MiB")
		}
	}
	return out
}

// restarts splits kills of daemons.
func (r *results) restarts(what string) []Piece {
	var started, rest []float64
	for _, w := range r.Watched {
		if w.What == what && w.Restart > 0 {
			started, rest = append(started, 1e6*w.Restart), append(rest, 1e6*(w.Last-w.Restart))
		}
	}
	return []Piece{{"kill → its successor is started", summarise(started).P50}, {"→ the next step is committed", summarise(rest).P50}}
}

// changes are the parts of watched kills of which the job gave an account.
func (r *results) changes(what string) []Piece {
	var told []recovery
	for _, w := range r.Watched {
		if w.What == what && w.Change != nil {
			told = append(told, *w.Change)
		}
	}
	if len(told) == 0 {
		return nil
	}
	return pieces(told, 0)
}

// totalOf sums up recoveries, in milliseconds.
func totalOf(kills []recovery) summary {
	var v []float64
	for _, s := range kills {
		v = append(v, 1e3*s.Total)
	}
	return summarise(v)
}

// pieces are the medians of the parts, less one step that is no part of recovering.
func pieces(kills []recovery, step float64) (out []Piece) {
	for i, row := range recoveryRows(kills, false)[:len(recoveryParts)] {
		p := Piece{recoveryParts[i].name, 1e3 * row.P50}
		if p.Name == "first step" && step > 0 {
			p = Piece{"first step beyond one of the smaller world", p.US - step}
		}
		out = append(out, p)
	}
	return out
}
