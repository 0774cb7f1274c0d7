// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/cmd/phalanx-lm/lm"
)

// golden is the digest of the parameters after the test job. It holds for every world, every number of processors and every
// instruction set: run the tests with GOAMD64=v1 and v3, and with -tags purego. It changes only when the model, the data
// order or the optimizer change.
const golden = "0b5aedc170ac0bf714ef3ca95a92c88b"

// testJob trains on the corpus in the repository: 12 slots, which is no power of two, of 2 samples.
func testJob(t *testing.T, steps phalanx.Step) *job {
	t.Helper()
	corpus, err := lm.ReadCorpus("testdata/corpus", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	spec := phalanx.JobSpec{LastStep: steps, Seed: 7, Slots: 12, GlobalBatch: 24}
	j, err := newJob(spec, lm.DefaultShape(), lm.DefaultOptimizer(), corpus)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

const goldenSteps = 16

// watched counts the steps whose gradient was clipped.
type watched struct {
	alone
	trainer *trainer
	clipped int
}

func (w *watched) apply() error {
	if w.trainer.optimizer.Clip(w.trainer.held.stats.SumSquares) < 1 {
		w.clipped++
	}
	return w.alone.apply()
}

func TestGoldenDigest(t *testing.T) {
	s := &watched{}
	s.trainer = newTrainer(testJob(t, goldenSteps), s, io.Discard)
	if err := s.trainer.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.trainer.state.Digest().String(); got != golden {
		t.Errorf("digest %s, want %s", got, golden)
	}
	if s.clipped < 3 {
		t.Errorf("clipping was active in %d of %d steps: the digest does not cover it", s.clipped, goldenSteps)
	}
	t.Logf("clipped %d steps", s.clipped)
}

func TestDigestDoesNotDependOnProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, n := range []int{1, 2} {
		runtime.GOMAXPROCS(n)
		tr := newTrainer(testJob(t, goldenSteps), &alone{}, io.Discard)
		if err := tr.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := tr.state.Digest().String(); got != golden {
			t.Errorf("GOMAXPROCS=%d: digest %s, want %s", n, got, golden)
		}
	}
}

func TestEveryWorldGivesTheSameBits(t *testing.T) {
	constant := func(n int) func(phalanx.Step) int { return func(phalanx.Step) int { return n } }
	worlds := map[string]*world{
		"1":      {size: constant(1)},
		"3":      {size: constant(3)},
		"12":     {size: constant(12)},
		"4 to 1": {size: func(s phalanx.Step) int { return max(1, 4-int(s)/5) }},
		"revoked": {size: constant(3), revoked: func(s phalanx.Step, attempt int) bool {
			return s%4 == 0 && attempt < int(s%3)
		}},
		"rolled forward": {size: constant(3), unheard: func(s phalanx.Step, r phalanx.Rank) bool {
			return (int(s)+int(r))%3 == 0
		}},
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			j := testJob(t, goldenSteps)
			var group errgroup.Group
			finals := make([]bytes.Buffer, w.size(1))
			for rank := range finals {
				group.Go(func() error {
					err := newTrainer(j, &member{world: w, rank: phalanx.Rank(rank)}, &finals[rank]).run(t.Context())
					if errors.Is(err, errPreempted) && rank >= w.size(goldenSteps) {
						return nil
					}
					return err
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("final step=%d digest=%s\n", goldenSteps, golden)
			for rank := range finals {
				if got := finals[rank].String(); got != want && rank < w.size(goldenSteps) {
					t.Errorf("rank %d printed %q, want %q", rank, got, want)
				}
			}
		})
	}
}

func TestLossGoesDown(t *testing.T) {
	j := testJob(t, 100)
	j.every = 1
	var out bytes.Buffer
	if err := newTrainer(j, &alone{}, &out).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^step=(\d+) loss=(\S+)$`).FindAllStringSubmatch(out.String(), -1)
	if len(lines) != 100 {
		t.Fatalf("%d lines for 100 steps", len(lines))
	}
	mean := func(lines [][]string) float64 {
		var sum float64
		for _, l := range lines {
			x, err := strconv.ParseFloat(l[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += x
		}
		return sum / float64(len(lines))
	}
	first, last := mean(lines[:10]), mean(lines[90:])
	if last > first-1.5 {
		t.Errorf("mean loss of the first ten steps %.3f, of the last ten %.3f", first, last)
	}
}

// A gradient that changes after the vote must not reach the state.
func TestChangedGradientIsNotApplied(t *testing.T) {
	s := &tampered{}
	tr := newTrainer(testJob(t, 5), s, io.Discard)
	start := tr.state.Digest()
	if err := tr.run(t.Context()); err == nil {
		t.Fatal("a changed gradient was applied")
	}
	if tr.state.Applied() != 0 || tr.state.Digest() != start {
		t.Error("the state changed")
	}
	if tr.apply(2) == nil {
		t.Error("a step was applied whose gradient is not held")
	}
}

type tampered struct{ alone }

func (s *tampered) vote(context.Context, vote) (bool, error) {
	s.mean[100] += 1e-3
	return true, nil
}

// The floor of a step is a wait that a signal ends; the step itself is finished.
func TestFloorIsInterruptible(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	j := testJob(t, 5)
	j.floor = time.Hour
	tr := newTrainer(j, &leaving{leave: cancel}, io.Discard)
	if err := tr.run(ctx); !errors.Is(err, errPreempted) {
		t.Errorf("got %v, want errPreempted", err)
	}
	if tr.state.Applied() != 1 {
		t.Errorf("left at step %d, want 1", tr.state.Applied())
	}
}

// leaving is told to leave while it computes.
type leaving struct {
	alone
	leave func()
}

func (l *leaving) working(phalanx.Step, phalanx.Slot) { l.leave() }
