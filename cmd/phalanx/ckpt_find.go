// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// hit is a tensor that was found.
type hit struct {
	Place  string          `json:"place"`
	Step   *phalanx.Step   `json:"step"`
	Name   string          `json:"name"`
	DType  string          `json:"dtype"`
	Shape  []int           `json:"shape"`
	Bytes  int64           `json:"size_bytes"`
	Digest *phalanx.Digest `json:"digest,omitempty"`
}

func newCkptFind(a *app) *cobra.Command {
	r := &viewer{reader: reader{app: a}}
	c := &cobra.Command{
		Use: "find PATTERN|DIGEST [PATH...]", Args: cobra.MinimumNArgs(1),
		Short: "Find tensors by name or by digest in checkpoints: those of the job, the newest first, or the given ones",
		Example: "  phalanx ckpt find 'model.embed*' --dir /tmp/first\n" +
			"  phalanx ckpt find 03f8d16c7dffb17218c09d2a88c024d1",
		RunE: interruptible(func(c *cobra.Command, args []string) error { return r.find(c, args[0], args[1:]) }),
	}
	r.bind(c)
	return c
}

func (r *viewer) find(c *cobra.Command, what string, paths []string) error {
	match, err := matcher(what)
	if err != nil {
		return problem(node.CodeUsage, "give a pattern such as 'model.*', or a digest of 32 hex digits", "%w", err)
	}
	hits := []hit{}
	look := func(v *view.View) {
		for i := range v.Tensors {
			t := &v.Tensors[i]
			if !match(t) {
				continue
			}
			h := hit{Place: v.Place, Name: t.Name, DType: t.DTypeName, Shape: t.Shape, Bytes: t.Bytes()}
			if v.Published != nil {
				h.Step = &v.Published.Step
			}
			if d := t.Digest(); !d.IsZero() {
				h.Digest = &d
			}
			hits = append(hits, h)
		}
	}
	if err := r.eachView(c, paths, look); err != nil {
		return err
	}
	if r.asJSON {
		err = r.printJSON(hits)
	} else {
		err = r.printHits(hits)
	}
	if err == nil && len(hits) == 0 {
		return problem(node.CodeNotFound, "phalanx ckpt inspect lists the tensors of a checkpoint", "nothing matches %q", what)
	}
	return err
}

// matcher matches tensors by a pattern or a digest.
func matcher(what string) (func(*view.Tensor) bool, error) {
	if d, err := phalanx.ParseDigest(strings.ToLower(what)); err == nil {
		return func(t *view.Tensor) bool {
			return slices.ContainsFunc(t.Digests, func(b view.BoxDigest) bool { return b.D1 == d })
		}, nil
	}
	g, err := view.NewGlob(what)
	return func(t *view.Tensor) bool { return g.Match(t.Name) }, err
}

// eachView looks at the given checkpoints, or at all published ones of the job.
func (r *viewer) eachView(c *cobra.Command, paths []string, look func(*view.View)) error {
	for _, path := range paths {
		v, err := r.view(c, path)
		if err != nil {
			return err
		}
		look(v)
	}
	if len(paths) > 0 {
		return nil
	}
	s, err := r.open(c)
	if err != nil {
		return err
	}
	records, problems, err := ckpt.List(c.Context(), s, r.settings.Job)
	if err != nil {
		return r.ckptError(err)
	}
	r.passedOver(nil, problems)
	for _, rec := range slices.Backward(records) {
		if rec.Commit == nil {
			continue
		}
		cp, err := ckpt.Open(c.Context(), s, rec.Commit)
		if err != nil {
			r.passedOver(nil, []ckpt.Problem{{Number: rec.Number, Err: err}})
			continue
		}
		v, err := view.FromCheckpoint(s, cp)
		if err != nil {
			return viewError(err)
		}
		look(v)
	}
	return nil
}

func (r *viewer) printHits(hits []hit) error {
	if len(hits) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "STEP\tTENSOR\tDTYPE\tSHAPE\tDIGEST\tPLACE")
	for _, h := range hits {
		step, digest := "-", "-"
		if h.Step != nil {
			step = fmt.Sprint(*h.Step)
		}
		if h.Digest != nil {
			digest = h.Digest.String()
		}
		say(t, "%s\t%s\t%s\t%v\t%s\t%s\n", step, h.Name, h.DType, h.Shape, digest, h.Place)
	}
	return t.Flush()
}
