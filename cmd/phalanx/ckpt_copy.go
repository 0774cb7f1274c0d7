// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/open"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// copied is the answer of copy.
type copied struct {
	Source string `json:"source"`
	Place  string `json:"place"`
	convert.Copied
}

func newCkptCopy(a *app) *cobra.Command {
	r := &viewer{reader: reader{app: a}}
	c := &cobra.Command{
		Use: "copy SRC DST", Args: cobra.ExactArgs(2),
		Short: "Copy all checkpoints of a job, or one of another format, to another place or store; goes on where it was interrupted",
		Long: `Copy all published checkpoints of a job (SRC is its folder: STORE/JOB) into another store (DST ends with the same JOB),
or the files of one checkpoint of another format into a folder. Everything is verified on the way. What makes a checkpoint
of the files comes last; what is there already is left as it is, so the same command goes on after an interruption.`,
		Example: "  phalanx ckpt copy /ckpt/big /backup/big",
		RunE:    interruptibleSaying("interrupted; what is not whole at DST is no checkpoint, and the same command goes on", r.copy),
	}
	r.bind(c)
	return c
}

func (r *viewer) copy(c *cobra.Command, args []string) error {
	ctx := c.Context()
	src, dst := args[0], args[1]
	p := r.progress("copied")
	answer := copied{Source: src, Place: dst}
	job, jobStore, err := view.JobAt(ctx, src, openStore)
	if err != nil {
		return viewError(err)
	}
	switch {
	case jobStore != nil:
		parent, name := view.Split(dst)
		if name != job {
			return problem(node.CodeUsage, "a job keeps its name: DST ends with /"+job, "%s is job %s, and %s ends with %q", src, job, dst, name)
		}
		to, err := createStore(ctx, parent)
		if err != nil {
			return err
		}
		answer.Copied, err = convert.Job(ctx, jobStore, job, to, p.update)
		p.end()
		if err != nil {
			return copyError(err)
		}
	default:
		v, err := r.viewPath(ctx, src)
		if err != nil {
			return err
		}
		if v.Format == view.Phalanx {
			return problem(node.CodeUsage, "copy the job's folder, one up, or write the tensors with phalanx ckpt convert", "%s is one checkpoint of a job, which is none without the job's commit objects", src)
		}
		parent, name := view.Split(dst)
		to, err := createStore(ctx, parent)
		if err != nil {
			return err
		}
		answer.Copied, err = convert.Folder(ctx, v, to, name, p.update)
		p.end()
		tidy(to)
		if err != nil {
			return copyError(err)
		}
		if err := r.verifyCopied(ctx, dst); err != nil {
			return err
		}
	}
	if r.asJSON {
		return r.printJSON(answer)
	}
	err = tell(r.stdout, "%s: %s, %s copied with %d bytes, %d there already\n", dst, plural(answer.Checkpoints, "checkpoint"), plural(answer.Objects, "object"),
		answer.Bytes, answer.Present)
	return err
}

// verifyCopied reads what was copied: the checksums of its own format were not looked at on the way.
func (r *viewer) verifyCopied(ctx context.Context, place string) error {
	v, err := r.viewPath(ctx, place)
	if err != nil {
		return err
	}
	return viewErrorOrNil(v.Verify(ctx, v.Chunks(), func(c view.Checked) error { return c.Err }))
}

// tidy removes what a store needs for writing and nobody else wants to see: DST is no store.
func tidy(s ckpt.Store) {
	if f, ok := open.Prober(s).(interface{ Tidy() }); ok {
		f.Tidy()
	}
}

// copyError is viewError for what can happen at a target.
func copyError(err error) error {
	switch {
	case errors.Is(err, convert.ErrUnmarked):
		return problem(node.CodeUsage, "write it with phalanx ckpt convert SRC DST --to safetensors, or copy it to a directory", "a copy that is interrupted would look whole: %w", err)
	case errors.Is(err, convert.ErrOther), errors.Is(err, ckpt.ErrExists):
		return problem(node.CodeLocked, "name another place; what is there is left as it is", "%w", err)
	case errors.Is(err, ckpt.ErrReadOnly):
		return problem(node.CodeFailed, "name a store that can be written", "%w", err)
	}
	return viewError(err)
}

func viewErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return viewError(err)
}
