// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// ranks is the size of the world in which something is killed.
	ranks = 4
	// limit is for the whole benchmark; what takes longer hangs.
	limit = 20 * time.Minute
)

// plan is what is measured, and how often.
type plan struct {
	self             string // this program
	bin, out, commit string
	only             string
	quick            bool
	seed             uint64

	kills        int           // of trainers, in the reference trainer's job
	daemonKills  int           // of followers' daemons
	leaderKills  int           // of the leader's daemon
	bothKills    int           // of the leader's daemon and its trainer at once
	watchedKills int           // of trainers, seen by the survivors themselves
	spareKills   int           // of trainers, beside a parked spare
	steps        int           // with and without reduction
	worlds       string        // of reductions; all when empty
	loops        int           // reductions of the small sizes; the large ones are done less often
	observe      time.Duration // how long daemons are watched
	floor        time.Duration
	settle       time.Duration // without any look at the job after a kill
}

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case trainerVerb:
			os.Exit(trainerMain(os.Args[2:]))
		case echoVerb:
			os.Exit(echoMain())
		case saverVerb:
			os.Exit(saverMain(os.Args[2:]))
		case layerVerb:
			os.Exit(layerMain(os.Args[2:]))
		}
	}
	p := plan{}
	var python string
	flag.StringVar(&p.bin, "bin", "bin", "folder of phalanx and phalanx-lm")
	flag.StringVar(&p.out, "out", "docs/benchmarks", "folder for what is written")
	flag.StringVar(&p.commit, "commit", "unknown", "what was built")
	flag.StringVar(&p.only, "only", "", "parts to measure, separated by commas: "+strings.Join(partNames, ", "))
	flag.StringVar(&python, "rivals", "", "measure the rivals, with this python, beside a part of the above; writes rivals.md")
	ckpt := ckptPlan{}
	checkpoints := flag.Bool("ckpt", false, "measure checkpoints instead; writes ckpt.md. -only chooses among "+strings.Join(cellNames(), ", "))
	flag.StringVar(&ckpt.python, "python", "", "with -ckpt: a python that has the rivals; without, ours alone is measured")
	flag.StringVar(&ckpt.tmpfs, "tmpfs", "/dev/shm", "with -ckpt: folder for checkpoints in memory")
	flag.StringVar(&ckpt.disk, "disk", os.TempDir(), "with -ckpt: folder for checkpoints on a disk")
	flag.StringVar(&ckpt.s3, "s3", "", "with -ckpt: URL of an empty prefix of an object store; without, see -versitygw")
	flag.StringVar(&ckpt.server, "versitygw", "", "with -ckpt: this program serves a bucket in -tmpfs; without it and -s3, no object store is measured")
	flag.IntVar(&ckpt.mib, "mib", 0, "with -ckpt: size of every state, instead of several sizes")
	flag.IntVar(&ckpt.reps, "reps", 3, "with -ckpt: saves and loads after the first one")
	render := flag.Bool("render", false, "measure nothing: write core.md again from the core.json in the folder of -out")
	flag.BoolVar(&p.quick, "quick", false, "small counts: to see that everything runs, not for figures")
	flag.Uint64Var(&p.seed, "seed", 1, "of the choice of victims and of the moment in a step")
	flag.IntVar(&p.kills, "kills", 200, "kills of trainers of the reference trainer's job")
	flag.IntVar(&p.daemonKills, "daemon-kills", 200, "kills of daemons that do not lead")
	flag.IntVar(&p.leaderKills, "leader-kills", 100, "kills of the leader's daemon")
	flag.IntVar(&p.bothKills, "both-kills", 40, "kills of the leader's daemon and trainer at once")
	flag.IntVar(&p.watchedKills, "watched-kills", 40, "kills of trainers, timed by the survivors")
	flag.IntVar(&p.spareKills, "spare-kills", 40, "kills of trainers beside a parked spare")
	flag.IntVar(&p.steps, "steps", 2000, "steps for the cost of the protocol, with and without a reduction")
	flag.IntVar(&p.loops, "loops", 400, "reductions of up to 64 KiB; a third as many of 1 MiB, a twentieth of 64 MiB")
	flag.StringVar(&p.worlds, "reduce-ranks", "", "reduce only in worlds of these sizes, separated by commas")
	flag.DurationVar(&p.observe, "watch", 10*time.Second, "how long daemons are watched for what they use")
	flag.DurationVar(&p.floor, "step-floor", 10*time.Millisecond, "least time of a step in which something is killed")
	flag.DurationVar(&p.settle, "settle", 450*time.Millisecond, "after a kill the job is left alone for this long, because a look at it costs time of its processors")
	flag.Parse()
	if p.quick {
		p.kills, p.daemonKills, p.leaderKills, p.bothKills, p.watchedKills, p.spareKills = 5, 4, 2, 2, 2, 3
		p.steps, p.loops, p.observe = 200, 40, 2*time.Second
		ckpt.reps = 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	measure := bench
	switch {
	case *render:
		measure = func(_ context.Context, p plan) error { return renderAgain(p.out) }
	case *checkpoints:
		measure = func(ctx context.Context, p plan) error {
			ckpt.plan = p
			return measureCkpt(ctx, ckpt)
		}
	case python != "":
		measure = func(ctx context.Context, p plan) error { return rivals(ctx, p, python) }
	}
	if err := measure(ctx, p); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// part is one thing to measure. Some share a name, by which they are chosen.
type part struct {
	name, title string
	do          func(context.Context, plan, string, *results) error
}

var partNames = []string{"recovery", "steps", "reduce", "daemon"}

var parts = []part{
	{"recovery", "one step of the smaller world", measureSmaller},
	{"recovery", "recovery from the kill of a trainer", measureRecovery},
	{"recovery", "daemons and trainers killed, seen by the trainers", measureWatched},
	{"recovery", "trainers killed beside a parked spare", measureSpare},
	{"steps", "cost of the protocol", measureProtocol},
	{"reduce", "host all-reduce", measureReduce},
	{"daemon", "what a daemon uses", measureDaemons},
}

// chosen are the parts that -only names, all by default.
func (p plan) chosen() ([]part, error) {
	if p.only == "" {
		return parts, nil
	}
	names := strings.Split(p.only, ",")
	for _, n := range names {
		if !slices.Contains(partNames, n) {
			return nil, fmt.Errorf("-only %s: no part is called %q; give some of %s", p.only, n, strings.Join(partNames, ", "))
		}
	}
	var out []part
	for _, t := range parts {
		if slices.Contains(names, t.name) {
			out = append(out, t)
		}
	}
	return out, nil
}

// prepare completes a plan, and makes the folder for jobs and logs.
func (p *plan) prepare() (dir string, err error) {
	if p.self, err = os.Executable(); err != nil {
		return "", err
	}
	if p.bin, err = filepath.Abs(p.bin); err != nil {
		return "", err
	}
	// Short, because the path of a unix socket is bounded.
	return os.MkdirTemp("", "phalanx-bench-")
}

// bench measures what is chosen, writes what it has and removes its folder unless something went wrong.
func bench(ctx context.Context, p plan) error {
	todo, err := p.chosen()
	if err != nil {
		return err
	}
	dir, err := p.prepare()
	if err != nil {
		return err
	}
	r := &results{Machine: machineFacts(ctx, p.commit), Quick: p.quick, Ranks: ranks, Began: time.Now().UTC()}
	limits := part{"limits", "raw limits of the machine", measureLimits}
	var errs []error
	for _, part := range append([]part{limits}, append(slices.Clone(todo), limits)...) {
		fmt.Printf("%s\n", part.title)
		began := time.Now()
		if err := part.do(ctx, p, dir, r); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.title, err))
			fmt.Printf("   failed: %v\n", err)
		}
		r.Parts = append(r.Parts, partTime{part.title, time.Since(began).Seconds(), loadAverage()})
		fmt.Printf("   %.0f s\n", time.Since(began).Seconds())
	}
	r.Seconds = time.Since(r.Began).Seconds()
	r.Surprises = append(r.Surprises, surprises(r)...)
	for _, s := range r.Surprises {
		errs = append(errs, errors.New(s))
	}
	r.Aims = aims(r)
	for _, a := range r.Aims {
		fmt.Printf("%-7s %s: %s, aim %s\n", a.Verdict(), a.What, a.Value(), a.Limit())
	}
	if err := write(p.out, "core", pageCore, r); err != nil {
		errs = append(errs, err)
	}
	return finish(errs, p, dir, "core.md", r.Seconds)
}

// finish removes the folder of jobs, unless it explains an error.
func finish(errs []error, p plan, dir, page string, seconds float64) error {
	if len(errs) > 0 {
		return fmt.Errorf("%w\nlogs are in %s", errors.Join(errs...), dir)
	}
	_ = os.RemoveAll(dir) // a temporary folder; the system removes it too
	fmt.Printf("written: %s (%.0f s)\n", filepath.Join(p.out, page), seconds)
	return nil
}
