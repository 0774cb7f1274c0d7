// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"

	"github.com/spf13/cobra"

	"phalanx/ckpt/npy"
	"phalanx/ckpt/view"
	"phalanx/node"
)

func newCkptDump(a *app) *cobra.Command {
	r := &viewer{reader: reader{app: a}}
	c := &cobra.Command{
		Use: "dump REF NAME", Args: cobra.ExactArgs(2),
		Short: "Write one tensor to stdout as a file of NumPy (.npy)",
		Long: `Write one tensor to stdout as a file of NumPy. Dtypes that NumPy does not have are widened: 16- and 8-bit floats of
machine learning to float32. Bytes are verified while they are written: with an exit code other than 0 what was written
is of no use.`,
		Example: "  phalanx ckpt dump latest model.embed.weight --dir /tmp/first > embed.npy",
		RunE:    interruptible(r.dump),
	}
	r.bind(c)
	c.Flags().Lookup("json").Hidden = true // the answer is the tensor
	return c
}

func (r *viewer) dump(c *cobra.Command, args []string) error {
	if r.asJSON {
		return problem(node.CodeUsage, "phalanx ckpt inspect --tensor NAME --json describes it", "a tensor is not written as JSON")
	}
	if out, ok := r.stdout.(*answer); ok && out.isTerminal() {
		return problem(node.CodeUsage, "redirect stdout to a file or a program", "a tensor is no text for a terminal")
	}
	v, err := r.view(c, args[0])
	if err != nil {
		return err
	}
	i := v.Tensor(args[1])
	if i < 0 {
		return problem(node.CodeNotFound, "phalanx ckpt inspect lists them", "%s has no tensor %q", v.Place, args[1])
	}
	t := &v.Tensors[i]
	if t.DType == "" {
		return problem(codeIncompatible, "convert it with the program that wrote it", "tensor %q: dtype %s cannot be read", t.Name, t.DTypeName)
	}
	out := bufio.NewWriterSize(r.stdout, 1<<20)
	w, err := npy.NewWriter(out, t.DType, t.Shape)
	if err != nil {
		return problem(codeIncompatible, "convert it with phalanx ckpt convert", "tensor %q: %w", t.Name, err)
	}
	err = v.Stream(c.Context(), []int{i}, func(_ int, _ int64, p []byte) error {
		_, err := w.Write(p)
		return err
	})
	// What follows from a failure is none of its own.
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = out.Flush()
	}
	return viewErrorOrNil(err)
}

// statistics are what the numbers of a tensor are like. Min, max and mean are of the finite ones, absent when there are none.
type statistics struct {
	Count int64       `json:"count"`
	NaN   int64       `json:"nan"`
	Inf   int64       `json:"inf"`
	Zero  int64       `json:"zero"`
	Min   json.Number `json:"min,omitempty"` // exact for integers
	Max   json.Number `json:"max,omitempty"`
	Mean  *float64    `json:"mean,omitempty"`

	integers bool // of 64 bits
}

// tensorsOf lists the places of the tensors that match and can be read as numbers.
func tensorsOf(v *view.View, match func(string) bool) (tensors []int, bytes int64) {
	for i := range v.Tensors {
		if t := &v.Tensors[i]; match(t.Name) && t.DType != "" {
			tensors = append(tensors, i)
			bytes += t.Bytes()
		}
	}
	return tensors, bytes
}
