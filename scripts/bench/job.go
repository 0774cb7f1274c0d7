// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"phalanx/scripts/internal/job"
)

// run is one job of the benchmark.
type run struct {
	*job.Job
	plan
	ranks int
}

// start runs a job in a folder of its own. Nothing is published before the last step: no disk is measured here.
func start(p plan, dir string, ranks int, flags []string, command ...string) (*run, error) {
	flags = append([]string{"--host", "bench", "--nproc", strconv.Itoa(ranks), "--save-every", "100000000"}, flags...)
	j, err := job.Start(job.Plan{Bin: p.bin, Dir: dir, Flags: flags, Command: command, Every: 40 * time.Millisecond})
	return &run{j, p, ranks}, err
}

// reference runs the reference trainer without an end.
func reference(p plan, dir string, ranks int, flags ...string) (*run, error) {
	return start(p, dir, ranks, flags, filepath.Join(p.bin, "phalanx-lm"),
		"--steps", "100000000", "--step-floor", p.floor.String(), "--log-every", "100000")
}

func (r *run) end() { r.End(5 * time.Second) }

// whole reports whether all ranks train, and all that there is to know of the last change is recorded.
func (r *run) whole(s *job.Status) bool {
	return s.Whole(r.ranks) && s.Fresh && len(s.Transitions) > 0 && s.Transitions[len(s.Transitions)-1].Seconds != nil
}

// calm waits until all ranks train and some steps of peace were committed.
func (r *run) calm(ctx context.Context) (*job.Status, error) {
	s, err := r.Until(ctx, "all ranks train", r.whole)
	if err != nil {
		return s, err
	}
	enough := s.Step + 5
	return r.Until(ctx, "training goes on", func(s *job.Status) bool { return r.whole(s) && s.Step >= enough })
}

// pace is the mean time of a step while nothing else happens, in seconds.
func (r *run) pace(ctx context.Context, within time.Duration) (float64, error) {
	if _, err := r.calm(ctx); err != nil {
		return 0, err
	}
	from, err := r.Look(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := job.Pause(ctx, within); err != nil {
		return 0, err
	}
	to, err := r.Look(ctx)
	if err != nil {
		return 0, err
	}
	return time.Since(began).Seconds() / float64(max(1, to.Step-from.Step)), nil
}

// trains is whole for a job whose first step may take long.
func (r *run) trains(s *job.Status) bool { return s.Whole(r.ranks) && s.Fresh }
