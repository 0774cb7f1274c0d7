// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strconv"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt/elem"
	"phalanx/ckpt/view"
)

// statsOf reads the matching tensors and says what their numbers are like, by name.
func (r *inspectVerb) statsOf(ctx context.Context, v *view.View, match func(string) bool) (map[string]*statistics, error) {
	tensors, total := tensorsOf(v, match)
	stats := map[string]*elem.Stats{}
	p := r.progress("read")
	defer p.end()
	var done int64
	err := v.Stream(ctx, tensors, func(i int, _ int64, b []byte) error {
		t := &v.Tensors[i]
		s := stats[t.Name]
		if s == nil {
			s = &elem.Stats{}
			stats[t.Name] = s
		}
		if err := addStats(s, t.DType, b); err != nil {
			return err
		}
		done += int64(len(b))
		p.update(done, total)
		return nil
	})
	if err != nil {
		return nil, viewError(err)
	}
	out := make(map[string]*statistics, len(stats))
	for name, s := range stats {
		out[name] = newStatistics(s)
	}
	return out, nil
}

// addStats counts elements by as many goroutines as there are processors.
func addStats(s *elem.Stats, dtype string, b []byte) error {
	parts := runtime.GOMAXPROCS(0)
	size := phalanx.DTypeSize(dtype)
	each := (len(b)/size + parts - 1) / parts * size
	if each == 0 || len(b) < 1<<16 {
		return s.Add(dtype, b)
	}
	var group errgroup.Group
	partial := make([]elem.Stats, parts)
	for k := range parts {
		part := b[min(k*each, len(b)):min((k+1)*each, len(b))]
		group.Go(func() error { return partial[k].Add(dtype, part) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, p := range partial {
		s.Merge(p)
	}
	return nil
}

func newStatistics(s *elem.Stats) *statistics {
	x := &statistics{Count: s.Count, NaN: s.NaN, Inf: s.Inf, Zero: s.Zero, integers: s.Integers()}
	if s.Finite() > 0 {
		x.Min, x.Max = json.Number(s.MinText()), json.Number(s.MaxText())
		if mean := s.Mean(); !math.IsInf(mean, 0) { // JSON has no infinity
			x.Mean = &mean
		}
	}
	return x
}

// columns are the statistics for people.
func (x *statistics) columns() string {
	if x == nil {
		return "-\t-\t-\t-\t-\t-"
	}
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	number := func(v json.Number) string {
		f, err := v.Float64()
		switch {
		case err != nil: // there is none
			return "-"
		case x.integers:
			return v.String()
		}
		return short(f)
	}
	mean := "-"
	if x.Mean != nil {
		mean = short(*x.Mean)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d", number(x.Min), number(x.Max), mean, x.NaN, x.Inf, x.Zero)
}
