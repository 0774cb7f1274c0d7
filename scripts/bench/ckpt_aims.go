// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// durations of saves without the first one, by one of their values.
func (s *savesOf) summary(of func(save) float64) summary {
	var v []float64
	for i, one := range s.Saves {
		if i > 0 {
			v = append(v, of(one))
		}
	}
	return summarise(v)
}

// Call is how long the save itself blocked the trainer, in milliseconds.
func (s *savesOf) Call() summary { return s.summary(func(v save) float64 { return 1e3 * v.Call }) }

// Longest is by how much the longest step was longer than a quiet one, in milliseconds.
func (s *savesOf) Longest() summary {
	return s.summary(func(v save) float64 { return 1e3 * v.Longest })
}

// Lost is the sum of the time lost, in milliseconds.
func (s *savesOf) Lost() summary { return s.summary(func(v save) float64 { return 1e3 * v.Lost }) }

// Durable is the time until all is stored, in seconds.
func (s *savesOf) Durable() summary { return s.summary(func(v save) float64 { return v.Durable }) }

// First is the first save or load of the process.
func (s *savesOf) First() save { return s.Saves[0] }

// FirstCallMS is how long the first one blocked.
func (s *savesOf) FirstCallMS() float64 { return 1e3 * s.Saves[0].Call }

// StoredMiB is what was stored.
func (s *savesOf) StoredMiB() float64 { return float64(s.Saves[0].Bytes) / (1 << 20) }

// rows are the saves or the loads of a cell.
func (c *cell) rows(load bool) (out []*savesOf) {
	for i := range c.By {
		if c.By[i].Load == load && len(c.By[i].Saves) > 1 {
			out = append(out, &c.By[i])
		}
	}
	return out
}

// SaveRows are the saves of a cell, ours first.
func (c *cell) SaveRows() []*savesOf { return c.rows(false) }

// LoadRows are the loads.
func (c *cell) LoadRows() []*savesOf { return c.rows(true) }

// find returns what somebody did, nil when it was not measured.
func (c *cell) find(who, what string) *savesOf {
	for i := range c.By {
		if c.By[i].Who == who && c.By[i].What == what && len(c.By[i].Saves) > 1 {
			return &c.By[i]
		}
	}
	return nil
}

// Ours are our saves through client and daemons.
func (c *cell) Ours() *savesOf { return c.find("ours", "client and daemons") }

// OurLoad is our verified load of what these saved.
func (c *cell) OurLoad() *savesOf { return c.find("ours", "verified load") }

// GiBs is the state's size over a time.
func (c *cell) GiBs(seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(c.MiB) / 1024 / seconds
}

// Against is how many times as long as ours somebody takes, by medians.
func (c *cell) Against(s *savesOf) float64 {
	ours := c.Ours()
	if s.Load {
		ours = c.OurLoad()
	}
	if ours == nil || ours.Durable().P50 == 0 {
		return 0
	}
	return s.Durable().P50 / ours.Durable().P50
}

// ratios pairs two lists of one process' repetitions: they were measured in turn.
func ratios(of, over []float64) summary {
	var out []float64
	for i := range min(len(of), len(over)) {
		out = append(out, of[i]/over[i])
	}
	return summarise(out)
}

// AloneRow is one line about the layer alone, in seconds.
type AloneRow struct {
	Name string
	summary
	Of summary // ratio to the bound beside it, of each repetition; N = 0: it is a bound
}

// Rows are the layer's times and its bounds.
func (a *layerTimes) Rows() []AloneRow {
	return []AloneRow{
		{"memcpy of the state, one core", summarise(a.Copy), summary{}},
		{"memcpy of the state, all cores", summarise(a.CopyAll), summary{}},
		{"raw parallel write", summarise(a.RawWrite), summary{}},
		{"**save**: write the shard, publish", summarise(a.Save), ratios(a.Save, a.RawWrite)},
		{"raw parallel read", summarise(a.RawRead), summary{}},
		{"**verified load**", summarise(a.Load), ratios(a.Load, a.RawRead)},
		{"verify without loading", summarise(a.Verify), ratios(a.Verify, a.RawRead)},
	}
}

// bestOf is the shortest median among the ways of somebody.
func (c *cell) bestOf(who string, ways ...string) (best *savesOf) {
	for _, way := range ways {
		if s := c.find(who, way); s != nil && (best == nil || s.Durable().P50 < best.Durable().P50) {
			best = s
		}
	}
	return best
}

// ckptAims are those about what was measured. A rate that is to be three times another's is a time that is at most a third.
func (r *ckptResults) ckptAims() (out []aim) {
	add := func(key, what string, n int, have, most float64, unit string) {
		if n > 0 {
			out = append(out, aim{Key: key, What: what, Have: have, Most: most, Unit: unit, N: n})
		}
	}
	for _, c := range r.Cells {
		ours := c.Ours()
		if ours != nil && c.Name == "overlap" {
			add("overlap", "the save blocks the trainer, where the copy fits into a step's compute ("+c.Title()+"): max", len(ours.Saves)-1, ours.Call().Max, 1, "ms")
			add("overlap", "the same: the first save", 1, ours.FirstCallMS(), 1, "ms")
		}
		if ours != nil && c.Alone != nil {
			memcpy := 1e3 * summarise(c.Alone.Copy).P50
			add("stall", "the save blocks the trainer, of one memcpy of the state, "+c.Title()+": p50", len(ours.Saves)-1, ours.Call().P50/memcpy, 1, "×")
			add("stall", "the same: the first save", 1, ours.FirstCallMS()/memcpy, 1, "×")
		}
		switch c.Target {
		case "tmpfs":
			r.addTmpfs(c, add)
		case "disk", "s3":
			if c.Alone != nil {
				bound := map[string]string{"disk": "a raw parallel write", "s3": "raw concurrent PUTs"}[c.Target]
				s := ratios(c.Alone.Save, c.Alone.RawWrite)
				add(c.Target, "save, of the time of "+bound+" of the same bytes, "+c.Title(), s.N, s.P50, 1/0.9, "×")
			}
		}
	}
	for _, v := range r.Verbs {
		add("verbs", "phalanx ckpt "+v.Verb+": peak of anonymous memory over its buffers", 1, max(0, v.PeakMiB-v.BuffersMiB), 256, "MiB")
	}
	return out
}

func (r *ckptResults) addTmpfs(c *cell, add func(key, what string, n int, have, most float64, unit string)) {
	const third = 1.0 / 3
	if dcp := c.bestOf("DCP", "save", "save-threads"); dcp != nil && c.Alone != nil {
		s := summarise(c.Alone.Save)
		add("save", "save of the layer alone, of the time of DCP's best blocking save, "+c.Title(), s.N, s.P50/dcp.Durable().P50, third, "×")
	}
	if dcp, ours := c.bestOf("DCP", "async", "async-stager", "async-process", "async-process-shm"), c.Ours(); dcp != nil && ours != nil {
		add("save", "save beside training, of the time of DCP's best asynchronous one, "+c.Title(), len(ours.Saves)-1, ours.Durable().P50/dcp.Durable().P50, third, "×")
	}
	if dcp, ours := c.find("DCP", "load"), c.OurLoad(); dcp != nil && ours != nil {
		add("load", "verified load, of the time of dcp.load, which verifies nothing, "+c.Title(), len(ours.Saves)-1, ours.Durable().P50/dcp.Durable().P50, third, "×")
	}
}

// Missed are the aims that are not met.
func (r *ckptResults) Missed() []aim {
	return slices.DeleteFunc(slices.Clone(r.Aims), aim.Met)
}

// Rivals says whom ours was measured beside.
func (r *ckptResults) Rivals() string {
	if len(r.Versions) == 0 {
		return "nobody"
	}
	return fmt.Sprint(r.Versions)
}
