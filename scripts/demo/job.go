// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"phalanx/scripts/internal/job"
)

// run is one training run of the demo.
type run struct{ *job.Job }

func start(ctx context.Context, p plan, dir string, floor time.Duration, flags ...string) (run, error) {
	command := []string{filepath.Join(p.bin, "phalanx-lm"), "--steps", strconv.Itoa(p.steps), "--step-floor", floor.String()}
	if p.torch != "" { // its steps take long enough by themselves
		command = []string{p.torch, filepath.Join("python", "examples", "train_ddp.py"), "--steps", strconv.Itoa(p.steps)}
		flags = append(flags, "--warm=2")
	}
	patience := time.Duration(0)
	if p.torch != "" {
		patience = 2 * time.Minute
	}
	if p.data != "" {
		command = append(command, "--data", p.data)
	}
	j, err := job.Start(job.Plan{
		Bin: p.bin, Dir: dir, Flags: append([]string{"--host", "demo", "--nproc", strconv.Itoa(ranks), "--save-every", "50"}, flags...),
		Command: command, Every: 20 * time.Millisecond, Patience: patience,
	})
	if err == nil && ctx.Err() != nil {
		run{j}.kill()
		err = ctx.Err()
	}
	return run{j}, err
}

// kill ends a run that has not ended by itself.
func (r run) kill() { r.End(200 * time.Millisecond) }

func whole(s *job.Status) bool { return s.Whole(ranks) }

var doneLine = regexp.MustCompile(`(?m)^phalanx: done step=(\d+) generation=([\d.]+) digest=([0-9a-f]{32})\n\z`)

// finish waits for the end and returns the digest of the last line.
func (r run) finish(ctx context.Context) (string, error) {
	err := r.Finish(ctx)
	if ctx.Err() != nil {
		r.kill()
	}
	if err != nil {
		return "", err
	}
	out, err := os.ReadFile(r.Output)
	if err != nil {
		return "", err
	}
	m := doneLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("its last line is no result\n%s", r.Tail())
	}
	fmt.Printf("   done: step %s, generation %s, digest %s\n", m[1], m[2], m[3])
	return string(m[3]), nil
}
