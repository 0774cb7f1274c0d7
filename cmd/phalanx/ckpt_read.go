// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"strings"

	"phalanx/ckpt"
	"phalanx/node"
)

// cutKey takes a key below JOB/ apart: the folder's name, and the object's.
func cutKey(key, job string) (folder, object string, ok bool) {
	rest, ok := strings.CutPrefix(key, job+"/")
	folder, object, cut := strings.Cut(rest, "/")
	return folder, object, ok && cut
}

// pick opens the checkpoint that an argument names: nothing or latest, a step, or a folder. Problems are what it passed over
// on the way to the latest.
func (r *reader) pick(ctx context.Context, s ckpt.Store, args []string) (*ckpt.Checkpoint, []ckpt.Problem, error) {
	if len(args) > 0 && args[0] != "latest" {
		cp, err := r.named(ctx, s, args[0])
		return cp, nil, err
	}
	newest := ckpt.LatestSound
	if r.afresh {
		newest = ckpt.Latest
	}
	latest, err := newest(ctx, s, r.settings.Job)
	if err != nil {
		return nil, latest.Problems, r.ckptError(err)
	}
	cp, err := ckpt.Open(ctx, s, latest.Record.Commit)
	if err != nil {
		return nil, latest.Problems, r.ckptError(err)
	}
	return cp, latest.Problems, nil
}

// named opens the checkpoint of a step or in a folder.
func (r *reader) named(ctx context.Context, s ckpt.Store, arg string) (*ckpt.Checkpoint, error) {
	job := r.settings.Job
	name := strings.TrimPrefix(arg, job+"/")
	step, err := strconv.ParseUint(name, 10, 64)
	byStep := err == nil
	if _, err := ckpt.ParseAttempt(job, name); err != nil && !byStep {
		return nil, problem(node.CodeUsage, "give latest, a step or a folder; phalanx ckpt ls lists them", "checkpoint %q", arg)
	}
	is := func(at ckpt.Attempt) bool { return byStep && uint64(at.Step) == step || at.Name() == name }
	records, problems, err := ckpt.List(ctx, s, job)
	if err != nil {
		return nil, r.ckptError(err)
	}
	for i := len(records) - 1; i >= 0; i-- { // the newest of a step: a rewind may have saved it again
		switch rec := records[i]; {
		case !is(rec.Attempt()):
		case rec.Commit == nil:
			return nil, removed(rec.Stub)
		default:
			cp, err := ckpt.Open(ctx, s, rec.Commit)
			if err != nil {
				return nil, r.ckptError(err)
			}
			return cp, nil
		}
	}
	attempts, err := r.attempts(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, at := range attempts {
		if !is(at) {
			continue
		}
		for _, p := range problems {
			if !p.Link { // it may be the one that published this
				return nil, problem(node.CodeIntegrity, "phalanx ckpt ls lists what can be read", "%s was written; whether it was published cannot be told: commit object %d is damaged: %w", at.Folder(), p.Number, p.Err)
			}
		}
		return nil, problem(codeUnpublished, "restore a published one; phalanx ckpt latest names it", "%s was written and not published", at.Folder())
	}
	return nil, problem(node.CodeNotFound, "phalanx ckpt ls lists them", "job %s in %s has no checkpoint %s", job, r.settings.Store, arg)
}

// passedOver says on stderr what is wrong with other numbers than the one that was found, nil: none was.
func (a *app) passedOver(cp *ckpt.Checkpoint, problems []ckpt.Problem) {
	for _, p := range problems {
		how := ""
		if cp == nil || p.Number > cp.Commit.Number {
			how = " is passed over"
		}
		say(a.stderr, "phalanx: checkpoint %d%s: %v\n", p.Number, how, p.Err)
	}
}
