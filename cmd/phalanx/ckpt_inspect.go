// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// inspected is a checkpoint with its tensors in answers.
type inspected struct {
	*found                         // of a published one
	Format     view.Format         `json:"format"`
	Step       *phalanx.Step       `json:"step"` // null when the format does not say it
	Generation *phalanx.Generation `json:"generation"`
	Place      string              `json:"place"` // objects are below it
	Bytes      int64               `json:"size_bytes"`
	Container  string              `json:"container,omitempty"`
	Parts      int                 `json:"parts,omitempty"`
	Fencing    string              `json:"fencing,omitempty"`
	Before     string              `json:"predecessor,omitempty"` // SHA-256 of the commit object before this one
	States     []view.State        `json:"states,omitempty"`
	Metadata   map[string]string   `json:"metadata,omitempty"`
	Notes      []string            `json:"notes,omitempty"`
	Objects    []inspectedObject   `json:"objects"` // what is no tensor
	Tensors    []inspectedTensor   `json:"tensors"`
	Against    *against            `json:"against,omitempty"`
}

type inspectedObject struct {
	Name   string   `json:"name"`
	Object string   `json:"object"`
	Range  [2]int64 `json:"range"`
	Value  string   `json:"value,omitempty"` // for people, when it has no bytes of its own
}

type inspectedTensor struct {
	Name   string           `json:"name"`
	DType  string           `json:"dtype"`
	Shape  []int            `json:"shape"`
	Bytes  int64            `json:"size_bytes"`
	Digest *phalanx.Digest  `json:"digest,omitempty"` // D1 of the whole tensor, when it is known
	Shards []inspectedShard `json:"shards"`
	Stats  *statistics      `json:"stats,omitempty"` // with --stats
}

type inspectedShard struct {
	Offset   []int    `json:"offset"`
	Shape    []int    `json:"shape"`
	Object   string   `json:"object"`
	Range    [2]int64 `json:"range"` // first byte, and the one after the last
	Strides  []int    `json:"strides,omitempty"`
	Checksum string   `json:"checksum,omitempty"`
}

// against is how the tensors differ from wanted ones.
type against struct {
	Same       bool     `json:"same"`
	Missing    []string `json:"missing"`
	Unexpected []string `json:"unexpected"`
	Changed    []string `json:"changed"`
}

func newAgainst(d ckpt.LayoutDiff) *against {
	return &against{d.Empty(), append([]string{}, d.Missing...), append([]string{}, d.Unexpected...), append([]string{}, d.Changed...)}
}

type inspectVerb struct {
	viewer
	keys    []string
	tensor  string
	against string
	stats   bool
}

func newCkptInspect(a *app) *cobra.Command {
	r := &inspectVerb{viewer: viewer{reader: reader{app: a}}}
	c := &cobra.Command{
		Use: "inspect [PATH|latest|STEP|FOLDER]", Args: cobra.MaximumNArgs(1),
		Short: "Show what a checkpoint of any kind holds; reads no data without --stats",
		RunE:  interruptible(r.run),
	}
	r.bind(c)
	c.Flags().StringArrayVar(&r.keys, "keys", nil, "only tensors whose names match `GLOB`, in which * is any text; may be repeated")
	c.Flags().StringVar(&r.tensor, "tensor", "", "only the tensor `NAME`, with its shards")
	c.Flags().BoolVar(&r.stats, "stats", false, "read the tensors and say what their numbers are like: min, max, mean, NaN, infinite, zero")
	c.Flags().StringVar(&r.against, "against", "", "compare names, dtypes and shapes with those of another checkpoint or of a JSON file at `PATH`; exit 8 when they differ")
	return c
}

func (r *inspectVerb) run(c *cobra.Command, args []string) error {
	match, err := view.AnyGlob(r.keys)
	if err != nil {
		return problem(node.CodeUsage, "give a pattern such as 'model.*'", "--keys: %w", err)
	}
	v, err := r.view(c, strings.Join(args, ""))
	if err != nil {
		return err
	}
	if r.tensor != "" {
		if v.Tensor(r.tensor) < 0 {
			return problem(node.CodeNotFound, "phalanx ckpt inspect lists them", "%s has no tensor %q", v.Place, r.tensor)
		}
		match = func(name string) bool { return name == r.tensor }
	}
	answer := inspectAnswer(v, match)
	if r.stats {
		stats, err := r.statsOf(c.Context(), v, match)
		if err != nil {
			return err
		}
		for i := range answer.Tensors {
			answer.Tensors[i].Stats = stats[answer.Tensors[i].Name]
		}
	}
	if r.against != "" {
		wanted, err := r.wanted(c, r.against)
		if err != nil {
			return err
		}
		only := func(t phalanx.TensorInfo) bool { return !match(t.Name) }
		answer.Against = newAgainst(view.Compare(slices.DeleteFunc(v.Layout(), only), slices.DeleteFunc(wanted, only)))
	}
	if r.asJSON {
		err = r.printJSON(answer)
	} else {
		err = answer.print(r.stdout, r.tensor != "", r.stats)
	}
	if err == nil && answer.Against != nil && !answer.Against.Same {
		return problem(codeIncompatible, "rename or leave out tensors with phalanx ckpt convert", "the tensors differ: %d missing, %d unexpected, %d changed",
			len(answer.Against.Missing), len(answer.Against.Unexpected), len(answer.Against.Changed))
	}
	return err
}

// wanted reads the tensors that a checkpoint or a file of shapes names.
func (r *viewer) wanted(c *cobra.Command, path string) ([]phalanx.TensorInfo, error) {
	if !strings.HasSuffix(path, ".json") {
		v, err := r.view(c, path)
		if err != nil {
			return nil, err
		}
		return v.Layout(), nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, problem(node.CodeNotFound, "give a checkpoint or a JSON file", "%w", err)
	}
	layout, err := view.DecodeLayout(b)
	if err != nil {
		return nil, problem(node.CodeUsage, "see docs/cli.md", "%s: %w", path, err)
	}
	return layout, nil
}

func inspectAnswer(v *view.View, match func(string) bool) *inspected {
	x := &inspected{Format: v.Format, Place: v.Place, Bytes: v.Bytes(), Container: v.Container, Fencing: fencing(v), States: v.States,
		Metadata: v.Metadata, Notes: v.Notes, Objects: []inspectedObject{}, Tensors: []inspectedTensor{}}
	if v.Published != nil {
		f := describe(v.Published)
		x.found, x.Step, x.Generation = &f, &v.Published.Step, &v.Published.Generation
		x.Parts, x.Before = len(v.Published.Parts), v.Published.Predecessor
	}
	for _, o := range v.Objects {
		x.Objects = append(x.Objects, inspectedObject{o.Name, o.Object, [2]int64{o.At, o.At + o.Length}, o.Text})
	}
	for i := range v.Tensors {
		t := &v.Tensors[i]
		if !match(t.Name) {
			continue
		}
		one := inspectedTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Bytes: t.Bytes(), Shards: make([]inspectedShard, len(t.Shards))}
		if t.DType == "" {
			one.DType = t.DTypeName
		}
		if d := t.Digest(); !d.IsZero() {
			one.Digest = &d
		}
		for k := range t.Shards {
			s := &t.Shards[k]
			one.Shards[k] = inspectedShard{s.Offset, s.Shape, s.Object, [2]int64{s.At, s.At + s.Length}, s.Strides, s.Sum.String()}
		}
		x.Tensors = append(x.Tensors, one)
	}
	return x
}

// print writes the tables for people, with the shards of each tensor and what its numbers are like if asked for.
func (x *inspected) print(w io.Writer, shards, stats bool) error {
	if x.found != nil {
		say(w, "checkpoint %d: step %d, generation %s, branch %d, %d bytes in %s, container %s\n", x.Number, *x.Step, *x.Generation, x.Branch, x.Bytes,
			plural(x.Parts, "part"), x.Container)
	} else {
		say(w, "%s: %s of %d bytes\n", x.Format, plural(len(x.Tensors), "tensor"), x.Bytes)
	}
	say(w, "at %s\n", x.Place)
	if x.Fencing != "" {
		say(w, "fenced %s\n", x.Fencing)
	}
	for _, s := range x.States {
		say(w, "coordinate %d: digest %s\n", s.Label.Coordinate, s.Digest)
	}
	for _, k := range slices.Sorted(maps.Keys(x.Metadata)) {
		say(w, "metadata %s: %.120s\n", k, x.Metadata[k])
	}
	for _, n := range x.Notes {
		say(w, "note: %s\n", n)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "TENSOR\tDTYPE\tSHAPE\tBYTES\tSHARDS\tDIGEST"
	if stats {
		head = "TENSOR\tDTYPE\tSHAPE\tMIN\tMAX\tMEAN\tNAN\tINF\tZERO"
	}
	fmt.Fprintln(t, head)
	for _, one := range x.Tensors {
		digest := "-"
		if one.Digest != nil {
			digest = one.Digest.String()
		}
		if stats {
			say(t, "%s\t%s\t%v\t", one.Name, one.DType, one.Shape)
			fmt.Fprintln(t, one.Stats.columns())
			continue
		}
		say(t, "%s\t%s\t%v\t%d\t%d\t%s\n", one.Name, one.DType, one.Shape, one.Bytes, len(one.Shards), digest)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, o := range x.Objects {
		if o.Value != "" {
			say(w, "object %s: %s\n", o.Name, o.Value)
			continue
		}
		say(w, "object %s: %d bytes\n", o.Name, o.Range[1]-o.Range[0])
	}
	if shards {
		fmt.Fprintln(w)
		fmt.Fprintln(t, "OFFSET\tSHAPE\tOBJECT\tFROM\tTO\tCHECKSUM")
		for _, one := range x.Tensors {
			for _, s := range one.Shards {
				say(t, "%v\t%v\t%s\t%d\t%d\t%s\n", s.Offset, s.Shape, s.Object, s.Range[0], s.Range[1], s.Checksum)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if x.Against != nil {
		d := ckpt.LayoutDiff{Missing: x.Against.Missing, Unexpected: x.Against.Unexpected, Changed: x.Against.Changed}
		if !d.Empty() {
			fmt.Fprintln(w)
			printDiff(w, d)
		}
	}
	return nil
}
