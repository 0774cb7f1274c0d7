// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// results are what core.json holds.
type results struct {
	Machine   facts        `json:"machine"`
	Quick     bool         `json:"quick,omitempty"`
	Note      string       `json:"note,omitempty"` // how these were measured, where that differs from one run of everything
	Ranks     int          `json:"ranks"`
	Began     time.Time    `json:"began"`
	Seconds   float64      `json:"seconds"`
	Parts     []partTime   `json:"parts"`
	Surprises []string     `json:"surprises"`
	Aims      []aim        `json:"aims"`
	Limits    limits       `json:"limits"`
	LimitsRaw []limits     `json:"limits_raw"` // before and after
	Smaller   *smaller     `json:"smaller_step,omitempty"`
	Steps     []stepCost   `json:"step_us"`
	Reduce    []reduceCost `json:"all_reduce"`
	Daemons   []daemonUse  `json:"daemons"`
	Watched   []watched    `json:"watched"`
	Spare     []recovery   `json:"spare"`
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
	P99  float64 `json:"p99"`
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
	return summary{len(v), v[0], at(0.10), at(0.50), at(0.90), at(0.95), at(0.99), v[len(v)-1], sum / float64(len(v))}
}

// surprises are what nobody should see; each makes the benchmark fail after it has written its results.
func surprises(r *results) (out []string) {
	for _, of := range []struct {
		what  string
		kills []recovery
	}{{"kill", r.Recovery}, {"kill beside a spare", r.Spare}} {
		for i, s := range of.kills {
			if s.Total > tooLong {
				out = append(out, fmt.Sprintf("%s %d, of the trainer of %s, took %.3f s until the next committed step", of.what, i+1, s.Member, s.Total))
			}
			if s.Recomputed > 1 {
				out = append(out, fmt.Sprintf("%s %d made the others compute %d steps again", of.what, i+1, s.Recomputed))
			}
			if s.Rewind {
				out = append(out, fmt.Sprintf("%s %d led to a rewind", of.what, i+1))
			}
		}
	}
	for _, w := range r.Watched {
		if w.Last > 2*tooLong {
			out = append(out, fmt.Sprintf("kill of a %s of %s took %.3f s until the next committed step", w.What, w.Member, w.Last))
		}
		if keepsTrainer(w.What) && w.From != w.To {
			out = append(out, fmt.Sprintf("kill of a daemon (%s) of %s changed the generation from %d to %d", w.What, w.Member, w.From, w.To))
		}
	}
	return out
}
