// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"phalanx/cmd/phalanx/internal/control"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/cmd/phalanx/internal/supervise"
	"phalanx/node"
)

// askTimeout bounds a verb that asks a daemon.
const askTimeout = 30 * time.Second

// reader is a verb that looks at a job: which one, and whether to answer in JSON.
type reader struct {
	*app
	settings *settings.Settings
	asJSON   bool
	afresh   bool // what was recorded of verifications does not matter
}

// bind declares the flags of a reading verb.
func (r *reader) bind(c *cobra.Command) {
	r.settings = settings.Default()
	r.settings.PlaceFlags(c.Flags())
	c.Flags().BoolVar(&r.asJSON, "json", false, "answer in JSON")
}

// load finds the job that is meant: by flags, variables and file, and by what its last run wrote down.
func (r *reader) load(c *cobra.Command) error {
	if err := settings.Load(c.Flags(), r.environ); err != nil {
		return err
	}
	job, store := r.settings.Job, r.settings.Store
	if err := r.settings.Complete(); err != nil {
		return err
	}
	run, err := settings.Read(r.settings.Dir)
	if err != nil {
		return nil // no run was here yet, or it was of another release; the flags stand
	}
	if job == "" {
		r.settings.Job = run.Job
	}
	if store == "" {
		r.settings.Store = run.Store
	}
	return nil
}

// status asks the living daemons of this host.
func (r *reader) status(ctx context.Context, explain bool) (*node.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := control.AnyStatus(ctx, r.settings.Dir, explain)
	if w := node.ReadWarmState(node.NewPaths(r.settings.Dir, "")); err == nil && w != nil && w.Want > 0 {
		s.Warm = w
	}
	return s, r.explain(err)
}

// explain turns an error of asking into one for the operator.
func (r *reader) explain(err error) error {
	var refused *control.Refused
	switch {
	case err == nil:
		return nil
	case errors.Is(err, control.ErrNobody):
		if o := supervise.Result(r.settings.Dir); o != nil {
			return problem(node.CodeNotFound, "its checkpoints: phalanx ckpt ls --dir "+r.settings.Dir+"; the data of those that it forgot last: phalanx ckpt gc --dir "+r.settings.Dir+"; the same phalanx run prints the result again",
				"no daemon of job %s runs in %s: the job is done, step=%d generation=%s digest=%s", r.settings.Job, r.settings.Dir, o.Step, o.Generation, o.Digest)
		}
		return problem(node.CodeNotFound, "start it with: phalanx run --dir "+r.settings.Dir+" -- CMD; or name another with --dir",
			"no daemon of job %s runs in %s", r.settings.Job, r.settings.Dir)
	case errors.Is(err, context.DeadlineExceeded):
		return problem(node.CodeTimeout, "the daemon may be stopped; its log is in "+r.settings.Dir+"/log", "%w", err)
	case errors.As(err, &refused):
		code := map[int]int{400: node.CodeUsage, 403: node.CodeAuth, 404: node.CodeNotFound, 409: node.CodeLocked, 503: node.CodeNoQuorum, 504: node.CodeTimeout}[refused.Status]
		if code == 0 {
			code = node.CodeFailed
		}
		return problem(code, refused.Hint, "%s", refused.Message)
	}
	return problem(node.CodeFailed, "its log is in "+r.settings.Dir+"/log", "%w", err)
}

// printJSON is the answer of every verb with --json.
func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	_, err = a.stdout.Write(append(b, '\n'))
	return err
}
