// SPDX-License-Identifier: Apache-2.0

// Command soak trains for hours while processes are killed, stopped, drained and resized away, and then for a while in peace.
// It fails when the result differs from that of one undisturbed process, when a state was lost that somebody held, or when
// memory, descriptors, goroutines, threads, shared memory or files grow.
//
// It drives the built programs from outside, by the surfaces that docs/cli.md promises.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"phalanx/scripts/internal/job"
)

const (
	ranks   = 4
	spares  = 1
	members = ranks + spares
	// keepLogs is small, so that files of old lives are removed many times.
	keepLogs = 4
	// peace is the share of the steps at the end in which nothing is done to the job.
	peace = 0.3
	// cost is how much slower than in peace a disturbed job is assumed to be when the steps are chosen.
	cost = 1.35
)

// plan is what is asked for.
type plan struct {
	bin   string
	time  time.Duration // of the job, about
	seed  uint64
	floor time.Duration // of a step
	every time.Duration // between samples
	gap   time.Duration // between disturbances, on average
	dir   string
	only  string // disturbances whose names have it
}

func main() {
	var p plan
	flag.StringVar(&p.bin, "bin", "bin", "folder of phalanx and phalanx-lm")
	flag.DurationVar(&p.time, "time", 2*time.Hour, "how long the job takes, about")
	flag.Uint64Var(&p.seed, "seed", 0, "of the schedule (default: by the clock)")
	flag.DurationVar(&p.floor, "step-floor", 40*time.Millisecond, "least time of a step")
	flag.DurationVar(&p.every, "sample-every", 3*time.Second, "time between samples")
	flag.DurationVar(&p.gap, "gap", 8*time.Second, "time between disturbances, on average")
	flag.StringVar(&p.dir, "dir", "", "where the job works (default: a temporary folder, removed when all is well)")
	flag.StringVar(&p.only, "only", "", "only disturbances with this in their name, such as drain")
	flag.Parse()
	if p.seed == 0 {
		p.seed = uint64(time.Now().UnixNano())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 4*p.time+10*time.Minute)
	defer cancel()
	temporary := p.dir == ""
	var err error
	if temporary {
		p.dir, err = os.MkdirTemp("", "phalanx-soak-")
	} else {
		err = os.MkdirAll(p.dir, 0o700)
	}
	if err == nil {
		p.dir, err = filepath.EvalSymlinks(p.dir)
	}
	if err == nil {
		p.bin, err = filepath.Abs(p.bin)
	}
	if err == nil {
		err = run(ctx, p)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "soak: %v\n", err)
		fmt.Fprintf(os.Stderr, "the job's folder, with logs and samples, is %s; the schedule is that of -seed %d\n", p.dir, p.seed)
		os.Exit(1)
	}
	if temporary {
		_ = os.RemoveAll(p.dir) // the system removes it too
	}
}

// soak is one run of this program.
type soak struct {
	plan
	steps   int
	rate    float64 // steps a second in peace
	job     *job.Job
	started job.Plan
	began   time.Time
	// For the sampler: the run's process, and whether the job is left in peace.
	runPID  atomic.Int64
	inPeace atomic.Bool
	history history
	counts  map[string]int // of disturbances by name
	struck  int            // trainers hit since all ranks last trained
}

func run(ctx context.Context, p plan) error {
	s := &soak{plan: p, counts: map[string]int{}}
	var err error
	if s.rate, err = calibrate(ctx, p); err != nil {
		return fmt.Errorf("measure an undisturbed job: %w", err)
	}
	s.steps = max(300, int(s.rate*p.time.Seconds()/(1+(cost-1)*(1-peace))))
	fmt.Printf("seed %d: %d ranks and %d spare, %d steps, %.1f a second in peace; disturbed until step %d\n",
		p.seed, ranks, spares, s.steps, s.rate, s.calmFrom())

	alone, stop := context.WithCancel(ctx)
	defer stop()
	want := make(chan answer, 1) // 1: one answer, read or not
	go func() { want <- oracle(alone, p, s.steps) }()

	digest, samples, err := s.train(ctx)
	if err != nil {
		return err
	}
	s.report()
	rows := judge(samples)
	fmt.Print(table(rows))
	errs := []error{s.history.check()}
	for _, r := range rows {
		if !r.ok() {
			errs = append(errs, fmt.Errorf("%s of %s grew from %s to %s %s, at most %s is allowed",
				r.quantity, r.class, show(r.quantity, r.from), show(r.quantity, r.to), r.phase, show(r.quantity, r.allowed)))
		}
	}
	select {
	case a := <-want:
		if a.err != nil {
			errs = append(errs, fmt.Errorf("the undisturbed process: %w", a.err))
		} else if a.digest != digest {
			errs = append(errs, fmt.Errorf("the job ended with digest %s, one undisturbed process with %s", digest, a.digest))
		} else {
			fmt.Printf("digest %s, as that of one undisturbed process\n", digest)
		}
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("the undisturbed process: %w", ctx.Err()))
	}
	return errors.Join(errs...)
}

// calmFrom is the step from which on the job is left in peace.
func (s *soak) calmFrom() uint64 { return uint64(float64(s.steps) * (1 - peace)) }

// jobPlan is how the job is started, each time alike.
func (p plan) jobPlan(dir string, steps int) job.Plan {
	return job.Plan{
		Bin: p.bin, Dir: dir, Every: 50 * time.Millisecond,
		Flags: []string{"--host", "soak", "--nproc", strconv.Itoa(ranks), "--spares", strconv.Itoa(spares),
			"--save-every", "200", "--keep", "2", "--keep-logs", strconv.Itoa(keepLogs)},
		Command: []string{filepath.Join(p.bin, "phalanx-lm"), "--steps", strconv.Itoa(steps), "--step-floor", p.floor.String()},
	}
}

// calibrate measures how many steps a second an undisturbed job makes on this machine.
func calibrate(ctx context.Context, p plan) (float64, error) {
	j, err := job.Start(p.jobPlan(filepath.Join(p.dir, "calibration"), 1_000_000))
	if err != nil {
		return 0, err
	}
	defer j.End(2 * time.Second)
	from, err := j.Until(ctx, "all ranks train", func(s *job.Status) bool { return s.Whole(ranks) && s.Step > 20 })
	if err != nil {
		return 0, err
	}
	began := time.Now()
	length := min(20*time.Second, max(2*time.Second, p.time/20))
	to, err := j.Until(ctx, "some seconds have passed", func(*job.Status) bool { return time.Since(began) > length })
	if err != nil {
		return 0, err
	}
	return float64(to.Step-from.Step) / time.Since(began).Seconds(), nil
}

type answer struct {
	digest string
	err    error
}

var finalLine = regexp.MustCompile(`(?m)^final step=\d+ digest=([0-9a-f]{32})$`)

// oracle is what one process ends with that trains alone, at the lowest priority beside the job.
func oracle(ctx context.Context, p plan, steps int) answer {
	cmd := exec.CommandContext(ctx, "nice", "-n", "19", filepath.Join(p.bin, "phalanx-lm"), "--alone", "--steps", strconv.Itoa(steps), "--log-every", strconv.Itoa(steps))
	out, err := cmd.Output()
	m := finalLine.FindSubmatch(out)
	if err != nil || m == nil {
		return answer{err: fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), errors.Join(err, errors.New("no line with the final digest")))}
	}
	return answer{digest: string(m[1])}
}

var doneLine = regexp.MustCompile(`(?m)^phalanx: done step=\d+ generation=[\d.]+ digest=([0-9a-f]{32})\n\z`)

// train runs the job to its end and returns its digest and what was sampled.
func (s *soak) train(ctx context.Context) (digest string, samples []sample, err error) {
	s.started = s.jobPlan(filepath.Join(s.dir, "job"), s.steps)
	s.began = time.Now()
	if err := s.start(); err != nil {
		return "", nil, err
	}
	defer func() { s.job.End(5 * time.Second) }()
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan []sample, 1) // 1: all at the end
	go func() { sampled <- s.sampler(sampling) }()
	defer stop()

	if err := s.disturb(ctx); err != nil {
		return "", nil, err
	}
	s.inPeace.Store(true)
	if err := s.watch(ctx); err != nil {
		return "", nil, err
	}
	stop()
	samples = <-sampled
	if err := s.job.Finish(ctx); err != nil {
		return "", nil, err
	}
	out, err := os.ReadFile(s.job.Output)
	if err != nil {
		return "", nil, err
	}
	m := doneLine.FindSubmatch(out)
	if m == nil {
		return "", nil, fmt.Errorf("it ended without a digest\n%s", s.job.Tail())
	}
	return string(m[1]), samples, nil
}

// start starts the run, or starts it again: then it attaches to what lives.
func (s *soak) start() error {
	j, err := job.Start(s.started)
	if err != nil {
		return err
	}
	s.job = j
	s.runPID.Store(int64(j.PID()))
	return nil
}

// watch follows the job in peace until it ends. Samples of the last seconds would see processes end, so it returns a little
// before.
func (s *soak) watch(ctx context.Context) error {
	last := uint64(float64(s.steps) - 2*s.rate)
	for {
		if now, err := s.job.Look(ctx); err == nil {
			s.history.note(now)
			if now.Step >= last {
				return nil
			}
		}
		select {
		case <-s.job.Ended:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("the job did not end: %w\n%s", ctx.Err(), s.job.Tail())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// report says what was done to the job and how fast it was all the same.
func (s *soak) report() {
	took := time.Since(s.began).Seconds()
	fmt.Printf("%d steps in %.0f s, %.1f a second: goodput %.3f of the job in peace, %d steps computed again in %d generations\n",
		s.steps, took, float64(s.steps)/took, float64(s.steps)/took/s.rate, s.history.again(), len(s.history.seen))
	for _, d := range disturbances {
		fmt.Printf("  %4d × %s\n", s.counts[d.name], d.name)
	}
}
