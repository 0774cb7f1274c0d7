// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/node"
)

// policyFlags are the flags that say which checkpoints are kept.
type policyFlags struct {
	*reader
	minAge settings.Duration
}

var policyNames = []string{"keep", "keep-every", "keep-time", "min-age"}

func (p *policyFlags) bind(c *cobra.Command) {
	p.settings.KeepFlags(c.Flags())
	c.Flags().Var(&p.minAge, "min-age", "keep what is younger than `D` as well")
}

// given reports whether any of them was given, by flag, variable or file.
func (p *policyFlags) given(c *cobra.Command) bool {
	for _, name := range policyNames {
		if c.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// policy is what the flags say; without any, what the last run in DIR was told.
func (p *policyFlags) policy(c *cobra.Command) (*ckpt.Policy, error) {
	s := p.settings
	if !p.given(c) {
		if run, err := settings.Read(s.Dir); err == nil {
			s = run
		}
	}
	policy := &ckpt.Policy{KeepLast: s.Keep, EverySteps: phalanx.Step(s.KeepEvery), EveryTime: time.Duration(s.KeepTime), MinAge: time.Duration(p.minAge)}
	if err := policy.Validate(); err != nil {
		return nil, problem(node.CodeUsage, "see "+c.CommandPath()+" --help", "%w", err)
	}
	return policy, nil
}

// openForChange opens the store of the job that is meant, for writing. It makes none: what is not there holds nothing.
func (r *reader) openForChange(c *cobra.Command) (ckpt.Store, error) {
	if _, err := r.open(c); err != nil {
		return nil, err
	}
	return createStore(c.Context(), r.settings.Store)
}

// checkWhy refuses words that do not fit beside a checkpoint.
func checkWhy(why string) error {
	if len(why) > ckpt.MaxWhy {
		return problem(node.CodeUsage, "say it shorter", "--why has %d bytes, at most %d", len(why), ckpt.MaxWhy)
	}
	return nil
}

// operator is who gives an order, in words.
func (a *app) operator() string {
	who := a.variable("USER")
	if who == "" {
		who = "uid " + strconv.Itoa(os.Getuid())
	}
	if host, err := os.Hostname(); err == nil {
		who += "@" + host
	}
	return who
}

// removed says that a checkpoint is gone, or how it can be got back.
func removed(b *ckpt.Stub) error {
	return problem(node.CodeNotFound, "phalanx ckpt ls lists what is left", "%w", &ckpt.RemovedError{Stub: b})
}

// changeError turns an error of a verb that changes something into one for the operator.
func (r *reader) changeError(err error) error {
	var gone *ckpt.RemovedError
	var damage ckpt.Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &gone):
		return problem(node.CodeNotFound, "phalanx ckpt ls lists what is left", "%w", err)
	case errors.Is(err, ckpt.ErrProtected):
		return problem(node.CodeLocked, "phalanx ckpt ls --reasons shows why; a pin is taken away by phalanx ckpt unpin", "%w", err)
	case errors.Is(err, ckpt.ErrNoUndelete):
		return problem(node.CodeFailed, "its data stay until the grace is over: stop every gc of the job, then copy them away", "%w", err)
	case errors.Is(err, ckpt.ErrConflict):
		return problem(node.CodeLocked, "somebody else changed it at the same time, or the store did not answer: look with phalanx ckpt ls, and try again", "%w", err)
	case errors.Is(err, ckpt.ErrReadOnly):
		return problem(node.CodeFailed, "this verb needs the right to write there", "%w", err)
	case errors.As(err, &damage):
		return problem(node.CodeIntegrity, "put the commit object back from a copy, or delete it and its folder by hand; see phalanx ckpt ls", "%w", err)
	}
	return r.ckptError(err)
}

// refer finds the number of the checkpoint that an argument names: latest, a step or a folder. fits says which records the verb
// can use; of several with the same step only one may fit.
func (r *reader) refer(ctx context.Context, s ckpt.Store, arg string, fits func(ckpt.Record) bool) (ckpt.Record, error) {
	job := r.settings.Job
	if arg == "latest" {
		latest, err := ckpt.Latest(ctx, s, job)
		if err != nil {
			return ckpt.Record{}, r.ckptError(err)
		}
		return latest.Record, nil
	}
	name := strings.TrimPrefix(arg, job+"/")
	step, err := strconv.ParseUint(name, 10, 64)
	byStep := err == nil
	if _, err := ckpt.ParseAttempt(job, name); err != nil && !byStep {
		return ckpt.Record{}, problem(node.CodeUsage, "give latest, a step or a folder; phalanx ckpt ls lists them", "checkpoint %q", arg)
	}
	records, problems, err := ckpt.List(ctx, s, job)
	if err != nil {
		return ckpt.Record{}, r.ckptError(err)
	}
	var fit, other []ckpt.Record
	for _, rec := range records {
		if at := rec.Attempt(); at.Name() != name && (!byStep || uint64(at.Step) != step) {
			continue
		}
		if fits(rec) {
			fit = append(fit, rec)
		} else {
			other = append(other, rec)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		var folders []string
		for _, rec := range fit {
			folders = append(folders, rec.Attempt().Name())
		}
		return ckpt.Record{}, problem(node.CodeUsage, "name one by its folder: "+strings.Join(folders, ", "), "step %s was published %d times", arg, len(fit))
	case len(other) > 0:
		return other[len(other)-1], nil // the verb says what is wrong with it
	}
	for _, p := range problems {
		if !p.Link {
			return ckpt.Record{}, problem(node.CodeIntegrity, "phalanx ckpt ls lists what can be read", "no checkpoint %s is found; commit object %d is damaged and may be it: %w", arg, p.Number, p.Err)
		}
	}
	return ckpt.Record{}, problem(node.CodeNotFound, "phalanx ckpt ls lists them", "job %s in %s has no published checkpoint %s", job, r.settings.Store, arg)
}

func isPublished(r ckpt.Record) bool { return r.Commit != nil }
func isForgotten(r ckpt.Record) bool { return r.Stub != nil && r.Stub.At() == ckpt.Forgotten }
func canBeKept(r ckpt.Record) bool   { return isPublished(r) || isForgotten(r) }

// openOne opens the store for a change of the one checkpoint that an argument names.
func (r *reader) openOne(c *cobra.Command, arg, why string, fits func(ckpt.Record) bool) (ckpt.Store, ckpt.Record, error) {
	if err := checkWhy(why); err != nil {
		return nil, ckpt.Record{}, err
	}
	s, err := r.openForChange(c)
	if err != nil {
		return nil, ckpt.Record{}, err
	}
	rec, err := r.refer(c.Context(), s, arg, fits)
	return s, rec, err
}

// answerOne prints the checkpoint that a verb changed.
func (r *reader) answerOne(ctx context.Context, s ckpt.Store, rec ckpt.Record, did string) error {
	if r.asJSON {
		marks, err := ckpt.ReadMarks(ctx, s, r.settings.Job)
		if err != nil {
			return r.ckptError(err)
		}
		return r.printJSON(line(&ckpt.Inventory{Marks: marks}, rec))
	}
	err := tell(r.stdout, "%s step=%d folder=%s\n", did, rec.Attempt().Step, rec.Attempt().Folder())
	return err
}

func newCkptUndelete(a *app) *cobra.Command {
	r := &reader{app: a}
	noPin, why := false, ""
	c := &cobra.Command{
		Use: "undelete STEP|FOLDER", Args: cobra.ExactArgs(1),
		Short: "Put a forgotten checkpoint back, and pin it",
		Long: `Undelete puts a forgotten checkpoint back, bit for bit, as long as gc has not begun to delete its data. It is pinned then,
because the policy of a running job would forget it again; see phalanx ckpt unpin.`,
		RunE: func(c *cobra.Command, args []string) error {
			s, rec, err := r.openOne(c, args[0], why, isForgotten)
			if err != nil {
				return err
			}
			if noPin {
				rec, err = ckpt.Undelete(c.Context(), s, r.settings.Job, rec.Number)
			} else {
				rec, err = ckpt.Pin(c.Context(), s, r.settings.Job, rec.Number, a.operator(), why, time.Now())
			}
			if err != nil {
				return r.changeError(err)
			}
			return r.answerOne(c.Context(), s, rec, "published")
		},
	}
	r.bind(c)
	c.Flags().BoolVar(&noPin, "no-pin", false, "do not pin it")
	c.Flags().StringVar(&why, "why", "undeleted", "say `TEXT` in the pin")
	return c
}

func newCkptPin(a *app) *cobra.Command {
	r := &reader{app: a}
	why := ""
	c := &cobra.Command{
		Use: "pin latest|STEP|FOLDER", Args: cobra.ExactArgs(1),
		Short: "Keep a checkpoint until it is unpinned; a forgotten one is put back first",
		RunE: func(c *cobra.Command, args []string) error {
			s, rec, err := r.openOne(c, args[0], why, canBeKept)
			if err != nil {
				return err
			}
			if rec, err = ckpt.Pin(c.Context(), s, r.settings.Job, rec.Number, a.operator(), why, time.Now()); err != nil {
				return r.changeError(err)
			}
			return r.answerOne(c.Context(), s, rec, "pinned")
		},
	}
	r.bind(c)
	c.Flags().StringVar(&why, "why", "", "say `TEXT` beside it")
	return c
}

func newCkptUnpin(a *app) *cobra.Command {
	r := &reader{app: a}
	c := &cobra.Command{
		Use: "unpin STEP|FOLDER", Args: cobra.ExactArgs(1),
		Short: "Take the pin of a checkpoint away",
		RunE: func(c *cobra.Command, args []string) error {
			s, err := r.openForChange(c)
			if err != nil {
				return err
			}
			marks, err := ckpt.ReadMarks(c.Context(), s, r.settings.Job)
			if err != nil {
				return r.ckptError(err)
			}
			pinned := func(rec ckpt.Record) bool {
				l := line(&ckpt.Inventory{Marks: marks}, rec)
				return l.Pinned != nil
			}
			rec, err := r.refer(c.Context(), s, args[0], pinned)
			if err != nil {
				return err
			}
			if !pinned(rec) {
				return problem(node.CodeNotFound, "phalanx ckpt ls shows what is pinned", "checkpoint %s is not pinned", args[0])
			}
			if err := ckpt.Unpin(c.Context(), s, r.settings.Job, rec.Number); err != nil && !errors.Is(err, ckpt.ErrNotFound) {
				return r.changeError(err)
			}
			return r.answerOne(c.Context(), s, rec, "unpinned")
		},
	}
	r.bind(c)
	return c
}
