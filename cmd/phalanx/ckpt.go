// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/node"
)

// newCkpt are the verbs that read checkpoints. They need no running job.
func newCkpt(a *app) *cobra.Command {
	c := &cobra.Command{Use: "ckpt", Short: "Look into the checkpoints of a job", Args: cobra.NoArgs, RunE: group}
	c.AddCommand(newCkptLatest(a), newCkptList(a), newCkptInspect(a), newCkptConvert(a), newCkptRestore(a), newCkptVerify(a))
	return c
}

// open opens the store of the job that is meant, for reading.
func (r *reader) open(c *cobra.Command) (ckpt.Store, error) {
	if err := r.load(c); err != nil {
		return nil, err
	}
	s, err := fs.NewReadOnly(r.settings.Store)
	if err != nil {
		return nil, problem(node.CodeNotFound, "name it with --store, or the job's directory with --dir", "checkpoint store %s: %w", r.settings.Store, err)
	}
	return s, nil
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
	State      string             `json:"state"`   // published, removed or unpublished
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
			_, err = fmt.Fprintf(a.stdout, "step=%d folder=%s\n", f.Step, f.Folder)
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

func newCkptList(a *app) *cobra.Command {
	r := &reader{app: a}
	c := &cobra.Command{
		Use: "ls", Args: cobra.NoArgs,
		Short: "List the checkpoints of a job, oldest first",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := r.open(c)
			if err != nil {
				return err
			}
			list, problems, err := r.list(c.Context(), s)
			if err != nil {
				return err
			}
			for _, p := range problems {
				fmt.Fprintf(a.stderr, "phalanx: checkpoint %d: %v\n", p.Number, p.Err)
			}
			if r.asJSON {
				return a.printJSON(list)
			}
			t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NUMBER\tSTEP\tGENERATION\tWRITTEN\tBYTES\tSTATE\tFOLDER")
			for _, f := range list {
				number, written := "-", "-"
				if f.Number > 0 {
					number = strconv.FormatUint(f.Number, 10)
				}
				if f.UnixNS > 0 {
					written = time.Unix(0, f.UnixNS).UTC().Format(time.RFC3339)
				}
				fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%s\t%s\n", number, f.Step, f.Generation, written, f.Bytes, f.State, f.Folder)
			}
			return t.Flush()
		},
	}
	r.bind(c)
	return c
}

// list is every checkpoint, what retention removed, and attempts that were never published.
func (r *reader) list(ctx context.Context, s ckpt.Store) ([]found, []ckpt.Problem, error) {
	job := r.settings.Job
	records, problems, err := ckpt.List(ctx, s, job)
	if err != nil {
		return nil, nil, r.ckptError(err)
	}
	list := []found{} // never null in JSON
	published := map[string]bool{}
	for _, rec := range records {
		published[rec.Attempt().Name()] = true
		if rec.Commit != nil {
			list = append(list, describe(rec.Commit))
			continue
		}
		b := rec.Stub
		list = append(list, found{Number: b.Number, Step: b.Step, Generation: b.Generation, Branch: b.Branch, UnixNS: b.UnixNS, State: "removed"})
	}
	attempts, err := r.attempts(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	for _, at := range attempts {
		if !published[at.Name()] {
			list = append(list, found{Step: at.Step, Generation: at.Generation, Folder: at.Folder(), State: "unpublished"})
		}
	}
	return list, problems, nil
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
