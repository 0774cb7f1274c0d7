// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

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
	latest, err := ckpt.Latest(ctx, s, r.settings.Job)
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

// verified is the answer of verify.
type verified struct {
	found
	OK       bool            `json:"ok"`
	Chunks   int             `json:"chunks"`
	Read     int64           `json:"read_bytes"`
	Damage   []damage        `json:"damage"`
	Tensors  []damagedTensor `json:"tensors"`
	Problems []numbered      `json:"problems"` // other numbers that cannot be restored, without an argument
}

// numbered is what is wrong with a number beside the one that is verified.
type numbered struct {
	Number uint64 `json:"number"`
	Error  string `json:"error"`
}

type damage struct {
	Object     string `json:"object"`
	At         int64  `json:"at"`
	Length     int64  `json:"size_bytes"`
	Coordinate int    `json:"coordinate"`
	Tensor     string `json:"tensor"`
	Error      string `json:"error"`
}

type damagedTensor struct {
	Coordinate int    `json:"coordinate"`
	Name       string `json:"name"`
	Chunks     int    `json:"chunks"` // damaged ones; 0: all chunks verify, the digest of the tensor does not
}

func newCkptVerify(a *app) *cobra.Command {
	r := &reader{app: a}
	c := &cobra.Command{
		Use: "verify [latest|STEP|FOLDER]", Args: cobra.MaximumNArgs(1),
		Short: "Read every byte of a checkpoint and check it; exit 5 when something is damaged",
		RunE: func(c *cobra.Command, args []string) error {
			s, err := r.open(c)
			if err != nil {
				return err
			}
			cp, problems, err := r.pick(c.Context(), s, args)
			if cp == nil {
				a.passedOver(nil, problems)
				if len(problems) > 0 {
					return problem(node.CodeIntegrity, "see phalanx ckpt ls --store "+r.settings.Store+" --job "+r.settings.Job, "no checkpoint can be restored and %d are damaged or incomplete: %w", len(problems), err)
				}
				return err
			}
			report, err := cp.VerifyAll(c.Context(), nil)
			if err != nil {
				return r.ckptError(err)
			}
			v := answerOf(cp, report, problems)
			if r.asJSON {
				if err := a.printJSON(v); err != nil {
					return err
				}
				if !v.OK {
					return exitCode(node.CodeIntegrity)
				}
				return nil
			}
			if !v.OK {
				return a.damaged(cp, report, problems)
			}
			_, err = fmt.Fprintf(a.stdout, "step=%d folder=%s chunks=%d bytes=%d ok\n", cp.Commit.Step, describe(cp.Commit).Folder, report.Chunks, report.Bytes)
			return err
		},
	}
	r.bind(c)
	return c
}

func answerOf(cp *ckpt.Checkpoint, report ckpt.Report, problems []ckpt.Problem) verified {
	v := verified{found: describe(cp.Commit), OK: report.OK() && len(problems) == 0, Chunks: report.Chunks, Read: report.Bytes,
		Damage: []damage{}, Tensors: []damagedTensor{}, Problems: []numbered{}}
	for _, p := range problems {
		v.Problems = append(v.Problems, numbered{p.Number, p.Err.Error()})
	}
	for _, d := range report.Damage {
		v.Damage = append(v.Damage, damage{d.Object, d.At, d.Length, d.Coordinate, d.Tensor, d.Err.Error()})
	}
	for _, t := range report.Tensors {
		v.Tensors = append(v.Tensors, damagedTensor{t.Coordinate, t.Name, t.Chunks})
	}
	return v
}

// damaged lists what is damaged on stdout and returns the summary as the error.
func (a *app) damaged(cp *ckpt.Checkpoint, report ckpt.Report, problems []ckpt.Problem) error {
	for _, p := range problems {
		fmt.Fprintf(a.stdout, "damaged checkpoint %d: %v\n", p.Number, p.Err)
	}
	if report.OK() {
		return problem(node.CodeIntegrity, "phalanx ckpt verify STEP checks one by itself", "%d checkpoints are damaged or incomplete; that of step %d (number %d) is the newest whole one",
			len(problems), cp.Commit.Step, cp.Commit.Number)
	}
	for _, d := range report.Damage {
		fmt.Fprintf(a.stdout, "damaged object %s: %v\n", d.Object, d)
	}
	for _, t := range report.Tensors {
		how := fmt.Sprintf("%d damaged chunks", t.Chunks)
		if t.Chunks == 0 {
			how = "its digest differs"
		}
		fmt.Fprintf(a.stdout, "damaged tensor %s of coordinate %d: %s\n", t.Name, t.Coordinate, how)
	}
	return problem(node.CodeIntegrity, "restore another one; phalanx ckpt ls lists them", "checkpoint of step %d is damaged: %d of %d chunks, %d tensors",
		cp.Commit.Step, len(report.Damage), report.Chunks, len(report.Tensors))
}

// passedOver says on stderr what is wrong with other numbers than the one that was found, nil: none was.
func (a *app) passedOver(cp *ckpt.Checkpoint, problems []ckpt.Problem) {
	for _, p := range problems {
		how := ""
		if cp == nil || p.Number > cp.Commit.Number {
			how = " is passed over"
		}
		fmt.Fprintf(a.stderr, "phalanx: checkpoint %d%s: %v\n", p.Number, how, p.Err)
	}
}
