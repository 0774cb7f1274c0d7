// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt/elem"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// diffAnswer is the answer of diff.
type diffAnswer struct {
	Same    bool         `json:"same"`
	Added   []string     `json:"added"`   // in B only
	Removed []string     `json:"removed"` // in A only
	Changed []string     `json:"changed"` // "NAME: DTYPE[SHAPE] became DTYPE[SHAPE]"
	Differ  []difference `json:"differ"`
	Equal   int          `json:"equal"`
	// Compared by digests or checksums alone, and by reading both.
	ByDigest int   `json:"by_digest"`
	ByRead   int   `json:"by_reading"`
	Read     int64 `json:"read_bytes"`
}

// difference is a tensor with other content.
type difference struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	// With --values: how many numbers differ, and by how much at most: |b−a|, and that relative to |a|. Absent when a number is
	// not finite on one side only.
	Elements *int64   `json:"elements,omitempty"`
	MaxAbs   *float64 `json:"max_abs,omitempty"`
	MaxRel   *float64 `json:"max_rel,omitempty"`
	NonMatch int64    `json:"non_finite,omitempty"` // numbers that are finite on one side only, or other infinities
}

type diffVerb struct {
	viewer
	values bool
	keys   []string
}

func newCkptDiff(a *app) *cobra.Command {
	r := &diffVerb{viewer: viewer{reader: reader{app: a}}}
	c := &cobra.Command{
		Use: "diff A B", Args: cobra.ExactArgs(2),
		Short: "Compare two checkpoints of any kind; exit 1 when they differ",
		Long: `Compare two checkpoints of any kind, each a REF: which tensors were added, removed, or have another dtype or shape, and
which have other content. Content is compared by digests alone where both sides have them, and by reading otherwise.`,
		RunE: interruptible(r.run),
	}
	r.bind(c)
	c.Flags().BoolVar(&r.values, "values", false, "read the tensors that differ and say by how much at most")
	c.Flags().StringArrayVar(&r.keys, "keys", nil, "only tensors whose names match `GLOB`; may be repeated")
	return c
}

func (r *diffVerb) run(c *cobra.Command, args []string) error {
	match, err := view.AnyGlob(r.keys)
	if err != nil {
		return problem(node.CodeUsage, "give a pattern such as 'model.*'", "--keys: %w", err)
	}
	a, err := r.view(c, args[0])
	if err != nil {
		return err
	}
	b, err := r.view(c, args[1])
	if err != nil {
		return err
	}
	x, err := r.compare(c.Context(), a, b, match)
	if err != nil {
		return viewError(err)
	}
	if r.asJSON {
		err = r.printJSON(x)
	} else {
		err = r.print(x)
	}
	if err == nil && !x.Same {
		return exitCode(node.CodeFailed)
	}
	return err
}

func (r *diffVerb) compare(ctx context.Context, a, b *view.View, match func(string) bool) (*diffAnswer, error) {
	x := &diffAnswer{Added: []string{}, Removed: []string{}, Changed: []string{}, Differ: []difference{}}
	x.layouts(a, b, match)
	pairs := slices.DeleteFunc(view.Pairs(a, b), func(p view.Pair) bool { return !match(a.Tensors[p.A].Name) })
	var unknown, differ []view.Pair
	for _, p := range pairs {
		switch view.Judge(&a.Tensors[p.A], &b.Tensors[p.B]) {
		case view.Unknown:
			unknown = append(unknown, p)
			x.ByRead++
			x.Read += a.Tensors[p.A].Bytes() + b.Tensors[p.B].Bytes()
			continue
		case view.Different:
			differ = append(differ, p)
		case view.Equal:
			x.Equal++
		}
		x.ByDigest++
	}
	bar := r.progress("compared")
	defer bar.end()
	total := x.Read / 2
	found, err := view.Differing(ctx, a, b, unknown, func(done int64) { bar.update(done, total) })
	if err != nil {
		return nil, err
	}
	for _, p := range unknown {
		if found[p] {
			differ = append(differ, p)
		} else {
			x.Equal++
		}
	}
	slices.SortFunc(differ, func(p, q view.Pair) int { return p.A - q.A })
	if err := r.differences(ctx, a, b, differ, x); err != nil {
		return nil, err
	}
	x.Same = len(x.Added)+len(x.Removed)+len(x.Changed)+len(x.Differ) == 0
	return x, nil
}

// layouts notes names that only one side has, and other dtypes and shapes.
func (x *diffAnswer) layouts(a, b *view.View, match func(string) bool) {
	stored := b.Layout()
	after := make(map[string]phalanx.TensorInfo, len(stored))
	for _, t := range stored {
		if match(t.Name) {
			after[t.Name] = t
		}
	}
	for _, t := range a.Layout() {
		now, found := after[t.Name]
		delete(after, t.Name)
		switch {
		case !match(t.Name):
		case !found:
			x.Removed = append(x.Removed, t.Name)
		case now.DType != t.DType || !slices.Equal(now.Shape, t.Shape):
			x.Changed = append(x.Changed, fmt.Sprintf("%s: %s%v became %s%v", t.Name, t.DType, t.Shape, now.DType, now.Shape))
		}
	}
	x.Added = append(x.Added, slices.Sorted(maps.Keys(after))...)
	slices.Sort(x.Removed)
}

// differences describes the tensors that differ.
func (r *diffVerb) differences(ctx context.Context, a, b *view.View, differ []view.Pair, x *diffAnswer) error {
	errs := make([]valueError, len(differ))
	if r.values {
		at := map[view.Pair]int{}
		for i, p := range differ {
			at[p] = i
		}
		err := view.Blocks(ctx, a, b, differ, func(p view.Pair, u, w []byte) error {
			return errs[at[p]].add(a.Tensors[p.A].DType, u, b.Tensors[p.B].DType, w)
		})
		if err != nil {
			return err
		}
	}
	for i, p := range differ {
		t := &a.Tensors[p.A]
		d := difference{Name: t.Name, DType: t.DTypeName, Shape: t.Shape}
		if r.values {
			e := &errs[i]
			d.Elements, d.NonMatch = &e.elements, e.other
			if e.elements > e.other {
				d.MaxAbs = &e.abs
				if !math.IsInf(e.rel, 0) {
					d.MaxRel = &e.rel
				}
			}
		}
		x.Differ = append(x.Differ, d)
	}
	return nil
}

// valueError is how far numbers are apart.
type valueError struct {
	elements, other int64
	abs, rel        float64
	x, y            []float64
}

// add compares elements. NaN is equal to NaN, and 0 to −0.
func (e *valueError) add(dtypeA string, a []byte, dtypeB string, b []byte) error {
	n := len(a) / phalanx.DTypeSize(dtypeA)
	e.x, e.y = sized(e.x, n*elem.Values(dtypeA)), sized(e.y, n*elem.Values(dtypeB))
	if err := elem.Decode(e.x, dtypeA, a); err != nil {
		return err
	}
	if err := elem.Decode(e.y, dtypeB, b); err != nil {
		return err
	}
	for i, u := range e.x {
		w := e.y[i]
		if u == w || math.IsNaN(u) && math.IsNaN(w) {
			continue
		}
		e.elements++
		d := math.Abs(w - u)
		if math.IsNaN(d) || math.IsInf(u, 0) || math.IsInf(w, 0) {
			e.other++
			continue
		}
		e.abs, e.rel = max(e.abs, d), max(e.rel, d/math.Abs(u))
	}
	return nil
}

func sized(p []float64, n int) []float64 {
	if cap(p) < n {
		return make([]float64, n)
	}
	return p[:n]
}

func (r *diffVerb) print(x *diffAnswer) error {
	for _, name := range x.Added {
		say(r.stdout, "added: %s\n", name)
	}
	for _, name := range x.Removed {
		say(r.stdout, "removed: %s\n", name)
	}
	for _, line := range x.Changed {
		say(r.stdout, "changed: %s\n", line)
	}
	t := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	for _, d := range x.Differ {
		say(t, "differs: %s\t%s\t%v", d.Name, d.DType, d.Shape)
		if d.Elements != nil {
			say(t, "\t%d numbers", *d.Elements)
		}
		if d.MaxAbs != nil {
			say(t, "\tmax abs %.6g", *d.MaxAbs)
		}
		if d.MaxRel != nil {
			say(t, "\tmax rel %.6g", *d.MaxRel)
		}
		if d.NonMatch > 0 {
			say(t, "\t%d not finite on one side", d.NonMatch)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	err := tell(r.stdout, "%d equal, %d differ, %d added, %d removed, %d changed; %d by digest, %d by reading\n", x.Equal, len(x.Differ), len(x.Added), len(x.Removed),
		len(x.Changed), x.ByDigest, x.ByRead)
	return err
}
