// SPDX-License-Identifier: Apache-2.0

// Command demo shows that a training run whose members are killed ends with the same parameters as one that nobody touches.
//
// It drives the built programs from outside, by the surfaces that docs/cli.md promises, and checks from the job's own history
// that nothing was achieved by starting everything again.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"phalanx/scripts/internal/job"
)

const ranks = 4

// limit is for the whole demo; what takes longer has failed. Python needs seconds for each start.
const limit, limitTorch = 150 * time.Second, 600 * time.Second

// plan is what is trained.
type plan struct {
	bin   string // folder of the programs
	steps int
	floor time.Duration // of a step, where something is to be killed in it
	data  string
	torch string // the Python that has PyTorch: train python/examples/train_ddp.py instead
}

func main() {
	var p plan
	flag.StringVar(&p.bin, "bin", "bin", "folder of phalanx and phalanx-lm")
	flag.IntVar(&p.steps, "steps", 400, "steps to train")
	flag.DurationVar(&p.floor, "step-floor", 30*time.Millisecond, "least time of a step in the disturbed runs")
	flag.StringVar(&p.data, "data", "", "folder of text (default: the Go source tree)")
	flag.StringVar(&p.torch, "torch", "", "train with PyTorch, by this `python`; the package phalanx is found by PYTHONPATH")
	flag.Parse()
	most := limit
	if p.torch != "" {
		most = limitTorch
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	dir, err := os.MkdirTemp("", "phalanx-demo-")
	if err == nil {
		p.bin, err = filepath.Abs(p.bin)
	}
	if err == nil {
		err = demo(ctx, p, dir)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		fmt.Fprintf(os.Stderr, "logs and output of the runs are in %s\n", dir)
		os.Exit(1)
	}
	_ = os.RemoveAll(dir) // a temporary folder; the system removes it too
}

func demo(ctx context.Context, p plan, dir string) error {
	began := time.Now()
	fmt.Printf("training %d steps with %d ranks, four times\n", p.steps, ranks)

	fmt.Println("\n1. undisturbed")
	first, err := undisturbed(ctx, p, filepath.Join(dir, "undisturbed"))
	if err != nil {
		return fmt.Errorf("undisturbed run: %w", err)
	}

	fmt.Println("\n2. disturbed: processes are killed while it trains")
	second, err := disturbed(ctx, p, filepath.Join(dir, "disturbed"))
	if err != nil {
		return fmt.Errorf("disturbed run: %w", err)
	}

	fmt.Println("\n3. everything is killed, and the same command is given again")
	third, err := resumed(ctx, p, filepath.Join(dir, "resumed"))
	if err != nil {
		return fmt.Errorf("killed and resumed run: %w", err)
	}

	fmt.Println("\n4. a spare takes the place of a trainer that is killed")
	fourth, err := spared(ctx, p, filepath.Join(dir, "spared"))
	if err != nil {
		return fmt.Errorf("run with a spare: %w", err)
	}

	fmt.Printf("\nundisturbed  %s\ndisturbed    %s\nresumed      %s\nspared       %s\n", first, second, third, fourth)
	if first != second || first != third || first != fourth {
		return fmt.Errorf("the results differ")
	}
	fmt.Printf("identical (%.0f s)\n", time.Since(began).Seconds())
	return nil
}

// disturbed kills members in every way that one machine allows, each time with everybody back in the world.
func disturbed(ctx context.Context, p plan, dir string) (string, error) {
	j, err := start(ctx, p, dir, p.floor)
	if err != nil {
		return "", err
	}
	defer j.kill()
	h := &history{}
	for _, k := range kills {
		if err := j.strike(ctx, k, h); err != nil {
			return "", fmt.Errorf("%s: %w", k.name, err)
		}
	}
	digest, err := j.finish(ctx)
	if err != nil {
		return "", err
	}
	return digest, h.check()
}

// resumed kills the whole job in the middle.
func resumed(ctx context.Context, p plan, dir string) (string, error) {
	j, err := start(ctx, p, dir, p.floor/2)
	if err != nil {
		return "", err
	}
	defer j.kill()
	third := uint64(p.steps) / 3
	s, err := j.Until(ctx, "a third of the steps are done", func(s *job.Status) bool { return s.Step >= third })
	if err != nil {
		return "", err
	}
	pids := []int{j.PID()}
	for _, m := range s.Members {
		pids = append(pids, m.DaemonPID, m.TrainerPID)
	}
	killed := 0
	for _, pid := range pids {
		if pid > 1 && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	<-j.Ended
	j.Sweep()
	fmt.Printf("   killed run, daemons and trainers, %d processes, at step %d\n", killed, s.Step)
	j, err = start(ctx, p, dir, p.floor/2)
	if err != nil {
		return "", err
	}
	defer j.kill()
	// Until the first new generation the daemons know what their logs say: the world that was killed.
	s, err = j.Until(ctx, "it trains again", func(now *job.Status) bool { return whole(now) && now.Generation > s.Generation })
	if err != nil {
		return "", err
	}
	fmt.Printf("   the same command goes on from step %d\n", s.ResumeStep)
	if s.ResumeStep == 0 {
		return "", fmt.Errorf("it began anew, nothing of %d steps was kept", third)
	}
	return j.finish(ctx)
}
