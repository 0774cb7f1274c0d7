// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"phalanx/ckpt"
	"phalanx/ckpt/view"
	"phalanx/node"
)

type verifyVerb struct {
	viewer
	level   string
	sample  string
	resume  string
	most    time.Duration
	all     bool
	record  bool
	percent float64 // of sample, 100 without
}

func newCkptVerify(a *app) *cobra.Command {
	r := &verifyVerb{viewer: viewer{reader: reader{app: a, afresh: true}}}
	c := &cobra.Command{
		Use: "verify [PATH|latest|STEP|FOLDER]", Args: cobra.MaximumNArgs(1),
		Short: "Read every byte of a checkpoint of any kind and check it; exit 5 when something is damaged",
		RunE:  interruptible(r.run),
	}
	r.bind(c)
	f := c.Flags()
	f.StringVar(&r.level, "level", string(ckpt.LevelData), "how deep: manifest (structure only), head (all objects are there, with size and the store's checksum), data")
	f.StringVar(&r.sample, "sample", "", "with level data: only about `PERCENT` of the chunks, chosen anew each time")
	f.StringVar(&r.resume, "resume", "", "with level data: write down what was verified in `FILE`, and leave out what it says")
	f.DurationVar(&r.most, "max-duration", 0, "with level data: stop after `D`; --resume goes on from there")
	f.BoolVar(&r.all, "all", false, "every published checkpoint of the job, the newest first")
	f.BoolVar(&r.record, "record", false, "write the result beside the checkpoint in the store, where retention and ls see it")
	return c
}

// settle checks the flags.
func (r *verifyVerb) settle(args []string) error {
	level := ckpt.Level(r.level)
	if level.Depth() < 1 {
		return problem(node.CodeUsage, "give manifest, head or data", "--level %q", r.level)
	}
	r.percent = 100
	if r.sample != "" {
		p, err := strconv.ParseFloat(strings.TrimSuffix(r.sample, "%"), 64)
		if err != nil || !(p > 0 && p <= 100) {
			return problem(node.CodeUsage, "give a percentage, such as 5 or 0.5%", "--sample %q", r.sample)
		}
		r.percent = p
	}
	switch {
	case level != ckpt.LevelData && (r.sample != "" || r.resume != "" || r.most != 0):
		return problem(node.CodeUsage, "leave out one of them", "--sample, --resume and --max-duration are for --level data, not %s", level)
	case r.most < 0:
		return problem(node.CodeUsage, "give a duration such as 1h", "--max-duration %s", r.most)
	case r.all && len(args) > 0:
		return problem(node.CodeUsage, "leave out one of them", "--all and %s", args[0])
	case r.record && r.sample != "":
		return problem(node.CodeUsage, "leave out one of them", "a sample is no result to --record")
	}
	return nil
}

func (r *verifyVerb) run(c *cobra.Command, args []string) error {
	if err := r.settle(args); err != nil {
		return err
	}
	ctx := c.Context()
	if len(args) > 0 && isPath(args[0]) {
		if r.record {
			return problem(node.CodeUsage, "name the checkpoint by --store, --job and its step", "--record and a path")
		}
		v, err := r.viewPath(ctx, args[0])
		if err != nil {
			return err
		}
		return r.one(ctx, v, v.Problems)
	}
	s, err := r.open(c)
	if err != nil {
		return err
	}
	if r.all {
		return r.every(c, s)
	}
	cp, problems, err := r.pick(ctx, s, args)
	if cp == nil {
		r.passedOver(nil, problems)
		if len(problems) > 0 {
			return problem(node.CodeIntegrity, "see phalanx ckpt ls --store "+r.settings.Store+" --job "+r.settings.Job, "no checkpoint can be restored and %d are damaged or incomplete: %w", len(problems), err)
		}
		return err
	}
	v, err := view.FromCheckpoint(s, cp)
	if err != nil {
		return viewError(err)
	}
	if r.record {
		return r.recorded(c, v, problems)
	}
	return r.one(ctx, v, problems)
}

// one verifies a checkpoint and says what was found. problems are of other numbers.
func (r *verifyVerb) one(ctx context.Context, v *view.View, problems []ckpt.Problem) error {
	x, err := r.verify(ctx, v)
	if err != nil {
		return err
	}
	return r.conclude(x, problems)
}

func (r *verifyVerb) conclude(x *verified, problems []ckpt.Problem) error {
	for _, p := range problems {
		x.Problems = append(x.Problems, numbered{p.Number, p.Err.Error()})
	}
	x.OK = x.OK && len(problems) == 0
	if r.asJSON {
		if err := r.printJSON(x); err != nil {
			return err
		}
		if !x.OK {
			return exitCode(node.CodeIntegrity)
		}
		return nil
	}
	return r.printVerified(x)
}

// recorded verifies and writes the result into the store.
func (r *verifyVerb) recorded(c *cobra.Command, v *view.View, problems []ckpt.Problem) error {
	s, err := r.openForChange(c)
	if err != nil {
		return err
	}
	x, err := r.verify(c.Context(), v)
	if err != nil {
		return err
	}
	if err := r.record1(c.Context(), s, v, x); err != nil {
		return err
	}
	return r.conclude(x, problems)
}

// record1 writes down what was found of one checkpoint, unless the verification stopped before its end.
func (r *verifyVerb) record1(ctx context.Context, s ckpt.Store, v *view.View, x *verified) error {
	if x.Left > 0 && x.OK {
		return nil
	}
	records, _, err := ckpt.List(ctx, s, r.settings.Job)
	if err != nil {
		return r.ckptError(err)
	}
	for _, rec := range records {
		if rec.Number != v.Published.Number {
			continue
		}
		if err := ckpt.RecordVerified(ctx, s, rec, x.Level, x.OK, r.operator(), version, time.Now()); err != nil {
			return r.changeError(err)
		}
	}
	return nil
}

// every verifies all published checkpoints of the job, the newest first.
func (r *verifyVerb) every(c *cobra.Command, s ckpt.Store) error {
	ctx := c.Context()
	records, problems, err := ckpt.List(ctx, s, r.settings.Job)
	if err != nil {
		return r.ckptError(err)
	}
	var writable ckpt.Store
	if r.record {
		if writable, err = r.openForChange(c); err != nil {
			return err
		}
	}
	all := []*verified{}
	bad := 0
	for _, p := range problems {
		bad++
		say(r.stderr, "phalanx: checkpoint %d: %v\n", p.Number, p.Err)
	}
	for _, rec := range slices.Backward(records) {
		if rec.Commit == nil {
			continue
		}
		x, err := r.fromRecord(ctx, s, writable, rec)
		if err != nil {
			return err
		}
		all = append(all, x)
		if !x.OK {
			bad++
		}
		if !r.asJSON {
			r.printFindings(x)
		}
	}
	switch {
	case r.asJSON:
		if err := r.printJSON(map[string]any{"ok": bad == 0, "checkpoints": all}); err != nil {
			return err
		}
		if bad > 0 {
			return exitCode(node.CodeIntegrity)
		}
	case bad > 0:
		return problem(node.CodeIntegrity, "phalanx ckpt ls lists them", "%s damaged or incomplete, %d whole", plural(bad, "checkpoint"), len(all)-bad+len(problems))
	case len(all) == 0:
		return problem(node.CodeNotFound, "see phalanx ckpt ls", "job %s in %s: %w", r.settings.Job, r.settings.Store, ckpt.ErrNoCheckpoint)
	}
	return nil
}

// fromRecord verifies the checkpoint of a record. One that cannot be opened is damaged.
func (r *verifyVerb) fromRecord(ctx context.Context, s, writable ckpt.Store, rec ckpt.Record) (*verified, error) {
	cp, err := ckpt.Open(ctx, s, rec.Commit)
	var v *view.View
	if err == nil {
		v, err = view.FromCheckpoint(s, cp)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		f := describe(rec.Commit)
		return &verified{found: &f, Format: view.Phalanx, Level: ckpt.Level(r.level), Damage: []damage{{Object: f.Folder, Error: err.Error()}},
			Tensors: []damagedTensor{}, Problems: []numbered{}}, nil
	}
	x, err := r.verify(ctx, v)
	if err == nil && writable != nil {
		err = r.record1(ctx, writable, v, x)
	}
	return x, err
}

// verify looks at one checkpoint, as deep as it is asked for.
func (r *verifyVerb) verify(ctx context.Context, v *view.View) (*verified, error) {
	x := &verified{Place: v.Place, Format: v.Format, Level: ckpt.Level(r.level), Damage: []damage{}, Tensors: []damagedTensor{}, Problems: []numbered{}}
	if v.Published != nil {
		f := describe(v.Published)
		x.found = &f
	}
	var err error
	chunkwise := r.sample != "" || r.resume != "" || r.most != 0
	switch {
	case x.Level == ckpt.LevelManifest: // opening it has checked that
	case x.Level == ckpt.LevelHead && v.Checkpoint != nil:
		err = r.whole(x, func() (ckpt.Report, error) { return v.Checkpoint.VerifyHeads(ctx, nil) })
	case x.Level == ckpt.LevelHead:
		x.Chunks, err = v.Heads(ctx, func(d *view.DamageError) { x.damaged(v, d) })
	case v.Checkpoint != nil && !chunkwise:
		p := r.progress("verified")
		err = r.whole(x, func() (ckpt.Report, error) {
			return v.Checkpoint.VerifyAll(ctx, func(at ckpt.Progress) { p.update(at.Bytes, at.BytesTotal) })
		})
		p.end()
	default:
		err = r.chunks(ctx, v, x)
	}
	if err != nil {
		return nil, viewError(err)
	}
	x.OK = len(x.Damage) == 0 && len(x.Tensors) == 0
	return x, nil
}

// whole takes the report of package ckpt.
func (r *verifyVerb) whole(x *verified, look func() (ckpt.Report, error)) error {
	report, err := look()
	if err != nil {
		return err
	}
	x.Chunks, x.Read = report.Chunks, report.Bytes
	for _, d := range report.Damage {
		x.Damage = append(x.Damage, damage{d.Object, d.At, d.Length, d.Coordinate, d.Tensor, d.Error()})
	}
	for _, t := range report.Tensors {
		x.Tensors = append(x.Tensors, damagedTensor{t.Coordinate, t.Name, t.Chunks})
	}
	return nil
}

// damaged notes a damaged range, and the tensors that are lost with it.
func (x *verified) damaged(v *view.View, d *view.DamageError) {
	x.Damage = append(x.Damage, damage{d.Object, d.At, d.Length, d.Coordinate, d.Tensor, d.Error()})
	for _, name := range v.Lost(d.Object, d.At, d.Length) {
		i := slices.IndexFunc(x.Tensors, func(t damagedTensor) bool { return t.Name == name })
		if i < 0 {
			x.Tensors = append(x.Tensors, damagedTensor{Coordinate: d.Coordinate, Name: name})
			i = len(x.Tensors) - 1
		}
		x.Tensors[i].Chunks++
	}
}

// errEnough ends a verification at --max-duration.
var errEnough = errors.New("enough for now")

// chunks verifies chunk by chunk: a sample, what a journal does not know yet, or until the time is over.
func (r *verifyVerb) chunks(ctx context.Context, v *view.View, x *verified) error {
	var journal *view.Journal
	if r.resume != "" {
		var err error
		journal, err = view.OpenJournal(ctx, r.resume, v)
		var unusable *view.JournalError
		if errors.As(err, &unusable) {
			return problem(node.CodeUsage, "name a file that an earlier --resume wrote, or a new one", "--resume: %w", err)
		}
		if err != nil {
			return err
		}
		defer journal.Close() // every line was written when it was added
	}
	var todo []view.Chunk
	var total, done int64
	for _, c := range v.Chunks() {
		if journal != nil && journal.Done(c) || rand.Float64()*100 >= r.percent { //nolint:gosec // a sample, no secret
			continue
		}
		todo = append(todo, c)
		total += c.Length
	}
	begin := time.Now()
	p := r.progress("verified")
	defer p.end()
	err := v.Verify(ctx, todo, func(c view.Checked) error {
		x.Chunks++
		x.Read += c.Length
		done += c.Length
		var d *view.DamageError
		switch {
		case errors.As(c.Err, &d):
			x.damaged(v, d)
		case c.Err != nil: // it cannot be read at all: not damage, and not verified either
			return c.Err
		case !c.Summed:
			x.Unsummed++
		}
		p.update(done, total)
		if journal != nil {
			if err := journal.Add(c); err != nil {
				return fmt.Errorf("--resume: %w", err)
			}
		}
		if r.most > 0 && time.Since(begin) >= r.most {
			return errEnough
		}
		return nil
	})
	x.Left = len(todo) - x.Chunks
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err != nil {
		return err
	}
	return r.sizes(ctx, v, x)
}

// sizes looks at what lies behind the last chunks: the store's sizes and checksums of the objects. Those with a damaged chunk are
// known already.
func (r *verifyVerb) sizes(ctx context.Context, v *view.View, x *verified) error {
	known := map[string]bool{}
	for _, d := range x.Damage {
		known[d.Object] = true
	}
	note := func(d damage, name string) {
		if !known[name] {
			x.Damage = append(x.Damage, d)
		}
	}
	if v.Checkpoint == nil {
		_, err := v.Heads(ctx, func(d *view.DamageError) {
			note(damage{d.Object, d.At, d.Length, d.Coordinate, d.Tensor, d.Error()}, d.Object)
		})
		return err
	}
	report, err := v.Checkpoint.VerifyHeads(ctx, nil)
	folder := v.Published.Job + "/" + v.Published.Attempt + "/"
	for _, d := range report.Damage {
		note(damage{d.Object, d.At, d.Length, d.Coordinate, d.Tensor, d.Error()}, strings.TrimPrefix(d.Object, folder))
	}
	return err
}
