// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/node"
)

// newCkpt are the verbs that read checkpoints. They need no running job.
func newCkpt(a *app) *cobra.Command {
	c := &cobra.Command{Use: "ckpt", Short: "Look into the checkpoints of a job", Args: cobra.NoArgs, RunE: group}
	c.AddCommand(newCkptLatest(a), newCkptList(a), newCkptInspect(a), newCkptConvert(a), newCkptRestore(a), newCkptCopy(a), newCkptFind(a), newCkptDiff(a), newCkptDump(a), newCkptVerify(a))
	c.AddCommand(newCkptForget(a), newCkptGC(a), newCkptUndelete(a), newCkptPin(a), newCkptUnpin(a), newCkptServe(a))
	return c
}

// open opens the store of the job that is meant, for reading.
func (r *reader) open(c *cobra.Command) (ckpt.Store, error) {
	if err := r.load(c); err != nil {
		return nil, err
	}
	return openStore(c.Context(), r.settings.Store)
}

// found is a published checkpoint in answers.
type found struct {
	Number     uint64             `json:"number"`
	Step       phalanx.Step       `json:"step"`
	Generation phalanx.Generation `json:"generation"`
	Branch     uint64             `json:"branch"`
	UnixNS     int64              `json:"unix_ns"`
	Folder     string             `json:"folder,omitempty"`
	Bytes      int64              `json:"size_bytes"`
	Digests    []phalanx.Digest   `json:"digests"` // one for each coordinate
	State      string             `json:"state"`   // published, forgotten, removed or unpublished
}

func describe(c *ckpt.Commit) found {
	f := found{Number: c.Number, Step: c.Step, Generation: c.Generation, Branch: c.Branch, UnixNS: c.UnixNS, Folder: c.Job + "/" + c.Attempt, State: "published"}
	for _, s := range c.States {
		f.Bytes += s.Bytes
		f.Digests = append(f.Digests, s.Digest)
	}
	return f
}

func newCkptLatest(a *app) *cobra.Command {
	r := &reader{app: a}
	c := &cobra.Command{
		Use: "latest", Args: cobra.NoArgs,
		Short: "Print step and folder of the newest checkpoint that can be restored",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := r.open(c)
			if err != nil {
				return err
			}
			cp, problems, err := r.pick(c.Context(), s, nil)
			a.passedOver(cp, problems)
			if err != nil {
				return err
			}
			f := describe(cp.Commit)
			if r.asJSON {
				return a.printJSON(f)
			}
			err = tell(a.stdout, "step=%d folder=%s\n", f.Step, f.Folder)
			return err
		},
	}
	r.bind(c)
	return c
}

// ckptError turns an error of ckpt into one for the operator.
func (r *reader) ckptError(err error) error {
	where := "phalanx ckpt ls --store " + r.settings.Store + " --job " + r.settings.Job
	switch {
	case errors.Is(err, ckpt.ErrAuth), errors.Is(err, context.DeadlineExceeded):
		return node.StoreProblem(err)
	case errors.Is(err, ckpt.ErrNoCheckpoint):
		return problem(node.CodeNotFound, "jobs are the folders of the store; see "+where, "%w", err)
	case errors.Is(err, ckpt.ErrFormat):
		return problem(codeIncompatible, "use the release that wrote it, or a newer one", "%w", err)
	case errors.Is(err, ckpt.ErrCorrupt):
		return problem(node.CodeIntegrity, "restore an older one; see "+where, "%w", err)
	case errors.Is(err, ckpt.ErrIncomplete):
		return problem(codeUnpublished, "see "+where, "%w", err)
	case errors.Is(err, ckpt.ErrNotFound):
		return problem(node.CodeIntegrity, "an object of a published checkpoint is missing; see "+where, "%w", err)
	}
	return problem(node.CodeFailed, "check the store and its rights", "%w", err)
}

// attempts are the folders that saves have written into.
func (r *reader) attempts(ctx context.Context, s ckpt.Store) ([]ckpt.Attempt, error) {
	objects, err := ckpt.ListAll(ctx, s, r.settings.Job+"/step-")
	if err != nil {
		return nil, r.ckptError(err)
	}
	var out []ckpt.Attempt
	for _, o := range objects {
		name, _, _ := cutKey(o.Key, r.settings.Job)
		if at, err := ckpt.ParseAttempt(r.settings.Job, name); err == nil && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out, nil
}
