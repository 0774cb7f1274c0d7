// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"phalanx/ckpt"
	"phalanx/ckpt/open"
	"phalanx/ckpt/pickle"
	"phalanx/ckpt/storewrap"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// openStore opens the store at a path or URL for reading.
func openStore(ctx context.Context, place string) (ckpt.Store, error) {
	s, err := open.Store(ctx, place, open.Read, open.Options{Budget: &readBudget})
	if err != nil {
		return nil, node.StoreProblem(err)
	}
	return s, nil
}

// readBudget is for verbs that somebody waits for.
var readBudget = storewrap.Budget{Total: time.Minute, Base: 200 * time.Millisecond, Cap: 5 * time.Second}

// createStore opens the store at a path or URL for writing; a directory is made when it is missing.
func createStore(ctx context.Context, place string) (ckpt.Store, error) {
	s, err := open.Store(ctx, place, open.Write, open.Options{Budget: &readBudget})
	if err != nil {
		return nil, node.StoreProblem(err)
	}
	return s, nil
}

// isPath tells a path or URL from latest, a step or a folder of the job's store.
func isPath(arg string) bool {
	if strings.Contains(arg, "://") {
		return true
	}
	for _, begin := range []string{"/", "./", "../"} {
		if strings.HasPrefix(arg, begin) {
			return true
		}
	}
	if arg == "." || arg == ".." {
		return true
	}
	_, err := os.Stat(arg)
	return err == nil
}

// viewer is a verb that looks into checkpoints of any kind, wherever they are.
type viewer struct {
	reader
	unpublished bool
}

const unpublishedFlag = "unpublished"

// bind declares the flags that all such verbs have.
func (r *viewer) bind(c *cobra.Command) {
	r.reader.bind(c)
	r.bindUnpublished(c.Flags())
}

func (r *viewer) bindUnpublished(f *pflag.FlagSet) {
	f.BoolVar(&r.unpublished, unpublishedFlag, false, "also read a folder that was written and not published, when its path is given")
}

// view opens what an argument names: a path or URL of any checkpoint, or a checkpoint of the job: latest ("" too), a step or
// a folder.
func (r *viewer) view(c *cobra.Command, arg string) (*view.View, error) {
	if isPath(arg) {
		return r.viewPath(c.Context(), arg)
	}
	s, err := r.open(c)
	if err != nil {
		return nil, err
	}
	var args []string
	if arg != "" {
		args = []string{arg}
	}
	cp, problems, err := r.pick(c.Context(), s, args)
	r.passedOver(cp, problems)
	if err != nil {
		return nil, err
	}
	v, err := view.FromCheckpoint(s, cp)
	if err != nil {
		return nil, viewError(err)
	}
	return v, nil
}

// viewPath opens the checkpoint at a path or URL.
func (r *viewer) viewPath(ctx context.Context, path string) (*view.View, error) {
	v, err := view.Open(ctx, path, openStore, view.Options{Unpublished: r.unpublished, Sound: !r.afresh})
	if err != nil {
		return nil, viewError(err)
	}
	r.passedOver(v.Checkpoint, v.Problems)
	return v, nil
}

// viewError turns an error of package view into one for the operator.
func viewError(err error) error {
	var known *node.Problem
	var unknown *view.UnknownError
	var damage *view.DamageError
	var foreign *pickle.UnknownGlobalError
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled):
		return problem(node.CodeInterrupt, "", "interrupted")
	case errors.As(err, &foreign) && foreign.Dangerous:
		return problem(codeIncompatible, "do not load this file with any program: whoever wrote it wants to run code; take the checkpoint from where you trust it", "%w", err)
	case errors.As(err, &damage), errors.Is(err, ckpt.ErrCorrupt):
		return problem(node.CodeIntegrity, "phalanx ckpt verify names everything that is damaged; take another checkpoint, or another copy", "%w", err)
	case errors.Is(err, view.ErrUnpublished):
		return problem(codeUnpublished, "take a published one; phalanx ckpt latest names it, and --unpublished reads this one all the same", "%w", err)
	case errors.As(err, &unknown):
		return problem(codeIncompatible, unknown.Hint(), "%w", err)
	case errors.Is(err, ckpt.ErrIncomplete):
		return problem(codeUnpublished, "take another checkpoint; parts of this one are missing", "%w", err)
	case errors.Is(err, ckpt.ErrFormat):
		return problem(codeIncompatible, "use the release that wrote it, or a newer one; what another program wrote, convert with that program", "%w", err)
	case errors.Is(err, ckpt.ErrNotFound), errors.Is(err, ckpt.ErrNoCheckpoint), errors.Is(err, os.ErrNotExist):
		return problem(node.CodeNotFound, "check the path", "%w", err)
	}
	return problem(node.CodeFailed, "check the path, the store and their rights", "%w", err)
}

// interruptible makes a verb end at INT and TERM, with what it has to clean up done.
func interruptible(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return interruptibleSaying("interrupted; nothing half was left behind", run)
}

// interruptibleSaying is interruptible for a verb that leaves something.
func interruptibleSaying(message string, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		c.SetContext(ctx)
		err := run(c, args)
		if err != nil && ctx.Err() != nil {
			return problem(node.CodeInterrupt, "", "%s", message)
		}
		return err
	}
}

// fencing says by what publishing was fenced, "" for what no job published.
func fencing(v *view.View) string {
	const byStore, byLog = "by the store: the commit object was created only because it was absent",
		"by the job's log alone: the store cannot create conditionally, so two jobs of one name could both have published"
	switch {
	case v.Published == nil || v.Store == nil:
		return ""
	case v.Published.Fenced, v.Published.Format < 2 && v.Store.ConditionalCreate: // format 1 does not say, the store of then is that of now
		return byStore
	}
	return byLog
}

// plural is a count with its word.
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
