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
	"syscall"
	"time"
)

const (
	ranks = 4
	// limit is for the whole benchmark; what takes longer hangs.
	limit = 10 * time.Minute
)

// plan is what is measured, and how often.
type plan struct {
	self             string // this program
	bin, out, commit string
	seed             uint64

	kills        int // of trainers, in the reference trainer's job
	daemonKills  int // of followers' daemons
	leaderKills  int // of the leader's daemon
	watchedKills int // of trainers, seen by the survivors themselves
	steps        int // with and without reduction
	loops        int // reductions of the small size; the large one is done a third as often
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
		}
	}
	var p plan
	flag.StringVar(&p.bin, "bin", "bin", "folder of phalanx and phalanx-lm")
	flag.StringVar(&p.out, "out", "docs/benchmarks", "folder for core.md and core.json")
	flag.StringVar(&p.commit, "commit", "unknown", "what was built")
	flag.Uint64Var(&p.seed, "seed", 1, "of the choice of victims and of the moment in a step")
	flag.IntVar(&p.kills, "kills", 50, "kills of trainers of the reference trainer's job")
	flag.IntVar(&p.daemonKills, "daemon-kills", 20, "kills of daemons that do not lead")
	flag.IntVar(&p.leaderKills, "leader-kills", 10, "kills of the leader's daemon")
	flag.IntVar(&p.watchedKills, "watched-kills", 10, "kills of trainers, timed by the survivors")
	flag.IntVar(&p.steps, "steps", 2000, "steps for the cost of the protocol, with and without a reduction")
	flag.IntVar(&p.loops, "loops", 90, "reductions of 64 KiB; a third as many of 64 MiB")
	flag.DurationVar(&p.floor, "step-floor", 10*time.Millisecond, "least time of a step in which something is killed")
	flag.DurationVar(&p.settle, "settle", 700*time.Millisecond, "after a kill the job is left alone for this long, because a look at it costs time of its processors")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := bench(ctx, p); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// bench measures everything, writes what it has and removes its folder unless something went wrong.
func bench(ctx context.Context, p plan) error {
	var err error
	if p.self, err = os.Executable(); err != nil {
		return err
	}
	if p.bin, err = filepath.Abs(p.bin); err != nil {
		return err
	}
	// Short, because the path of a unix socket is bounded.
	dir, err := os.MkdirTemp("", "phalanx-bench-")
	if err != nil {
		return err
	}
	r := &results{Machine: machineFacts(ctx, p.commit), Ranks: ranks, Began: time.Now().UTC()}
	parts := []struct {
		name string
		skip bool
		do   func(context.Context, plan, string, *results) error
	}{
		{"raw limits of the machine", false, measureLimits},
		{"recovery from the kill of a trainer", p.kills == 0, measureRecovery},
		{"daemons and trainers killed, seen by the trainers", p.daemonKills+p.leaderKills+p.watchedKills == 0, measureWatched},
		{"cost of the protocol", p.steps == 0, measureProtocol},
		{"host all-reduce", p.loops == 0, measureReduce},
	}
	var errs []error
	for _, part := range parts {
		if part.skip {
			continue
		}
		fmt.Printf("%s\n", part.name)
		began := time.Now()
		if err := part.do(ctx, p, dir, r); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
			fmt.Printf("   failed: %v\n", err)
		}
		r.Parts = append(r.Parts, partTime{part.name, time.Since(began).Seconds(), loadAverage()})
		fmt.Printf("   %.0f s\n", time.Since(began).Seconds())
	}
	r.Seconds = time.Since(r.Began).Seconds()
	r.Surprises = append(r.Surprises, surprises(r)...)
	for _, s := range r.Surprises {
		errs = append(errs, errors.New(s))
	}
	if err := r.write(p.out); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w\nlogs are in %s", errors.Join(errs...), dir)
	}
	_ = os.RemoveAll(dir) // a temporary folder; the system removes it too
	fmt.Printf("written: %s (%.0f s)\n", filepath.Join(p.out, "core.md"), r.Seconds)
	return nil
}
