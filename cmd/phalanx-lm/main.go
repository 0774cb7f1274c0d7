// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/cmd/phalanx-lm/lm"
)

// Exit codes.
const (
	exitDone      = 0
	exitFailed    = 1
	exitUsage     = 2
	exitPreempted = 75 // EX_TEMPFAIL: start me again
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags.
type options struct {
	spec      phalanx.JobSpec
	data      string
	dataLimit int64
	floor     time.Duration
	every     uint64
	alone     bool
	group     int
	coord     int
	record    string
	faults    faults
}

// parse reads the flags. It returns flag.ErrHelp after printing them to stdout.
func parse(args []string, stdout, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("phalanx-lm", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, in one line, by the caller
	f.Uint64Var((*uint64)(&o.spec.LastStep), "steps", 300, "train until step `N` is committed")
	f.Uint64Var(&o.spec.Seed, "seed", 1, "of initial state, data order and random streams")
	f.IntVar(&o.spec.Slots, "slots", 16, "cut the global batch into `K` slots; at least one for each member")
	f.IntVar(&o.spec.GlobalBatch, "global-batch", 32, "samples a step, a multiple of --slots")
	f.StringVar(&o.data, "data", "", "train on the text files below `DIR` (default: the Go source tree)")
	f.Int64Var(&o.dataLimit, "data-limit", 8<<20, "read at most that many `bytes` of text")
	f.DurationVar(&o.floor, "step-floor", 0, "let the compute of each step take at least `DURATION`")
	f.Uint64Var(&o.every, "log-every", 50, "print a line step=N loss=X every `N` steps; the loss is the mean over this trainer's slots")
	f.BoolVar(&o.alone, "alone", false, "train in this one process, without a daemon; gives the same final digest")
	f.IntVar(&o.group, "group-size", 1, "for tests: replica groups of `G` ranks, of which each trains a model of its own on other samples")
	f.IntVar(&o.coord, "coordinate", 0, "for tests: with --alone train the model of coordinate `C` of a group")
	f.StringVar(&o.record, "record", "", "for tests: append to `FILE` a line for each step applied, with its generation and digests")
	f.Var(&o.faults.dieAt, "fault-die-at", "for tests: kill itself when about to compute `STEP:SLOT`")
	f.Uint64Var((*uint64)(&o.faults.exit0At), "fault-exit0-at", 0, "for tests: exit 0 when `STEP` begins, as if done")
	f.Uint64Var((*uint64)(&o.faults.flipAt), "fault-flip-at", 0, "for tests: vote once for a digest with one bit wrong, in `STEP`")
	f.DurationVar(&o.faults.slowApply, "fault-slow-apply", 0, "for tests: let each run of the optimizer take `DURATION` longer")
	f.DurationVar(&o.faults.slowStart, "fault-slow-start", 0, "for tests: do nothing for `DURATION` first, as a program that loads large libraries")
	f.BoolVar(&o.faults.crashAtStart, "fault-crash-at-start", false, "for tests: exit 1 at once")
	f.BoolVar(&o.faults.noHello, "fault-no-hello", false, "for tests: never register with the daemon, wait for a signal")
	f.IntVar(&o.faults.exitCode, "fault-exit-code", -1,
		"for tests: exit with `CODE` where another --fault flag makes it exit, or else at once")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stdout)
		fmt.Fprintln(stdout, "phalanx-lm trains a small byte-level language model under `phalanx run`, or with --alone by itself.\n\nFlags:")
		f.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, err
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.every == 0:
		return nil, errors.New("--log-every 0: give at least 1")
	}
	// What depends on the flags alone is refused before any text is read.
	check := o.spec
	check.GroupSize = o.group
	if o.coord < 0 || o.coord >= max(o.group, 1) {
		return nil, fmt.Errorf("--coordinate %d of groups of %d", o.coord, o.group)
	}
	return o, check.Validate()
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		fmt.Fprintf(stderr, "phalanx-lm: %v\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The second signal ends the process, if nobody else asks for it by then.
	context.AfterFunc(ctx, stop)
	o.faults.onStart(ctx)

	j, code, err := load(ctx, o)
	if err == nil {
		code, err = train(ctx, j, o, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "phalanx-lm: %v\n", err)
	}
	return code
}

// load reads the corpus and completes the job's spec.
func load(ctx context.Context, o *options) (*job, int, error) {
	data := o.data
	if data == "" {
		found, err := defaultData(ctx)
		if err != nil {
			return nil, exitUsage, err
		}
		data = found
	}
	corpus, err := lm.ReadCorpus(data, o.dataLimit)
	if err != nil {
		return nil, exitUsage, err
	}
	j, err := newJob(o.spec, lm.DefaultShape(), lm.DefaultOptimizer(), corpus)
	if err != nil {
		return nil, exitUsage, err
	}
	j.spec.GroupSize = o.group
	j.floor, j.every, j.faults = o.floor, phalanx.Step(o.every), o.faults
	return j, exitDone, nil
}

// train runs the job and returns the exit code.
func train(ctx context.Context, j *job, o *options, stdout, stderr io.Writer) (int, error) {
	s, err := connect(ctx, o, slog.New(slog.NewTextHandler(stderr, nil)))
	if errors.Is(err, errNoSocket) {
		return exitUsage, err
	}
	if err != nil {
		return exitFailed, err
	}
	if j.record, err = openRecord(o.record); err != nil {
		return exitUsage, errors.Join(err, s.close())
	}
	err = newTrainer(j, s, stdout).run(ctx)
	err = errors.Join(err, s.close(), j.record.close())
	switch {
	case err == nil:
		return exitDone, nil
	case errors.Is(err, errPreempted):
		return exitPreempted, err
	case errors.Is(err, errRefused):
		return exitUsage, err
	}
	return exitFailed, err
}

var errNoSocket = errors.New("PHALANX_SOCKET is not set: start it as `phalanx run ... -- phalanx-lm ...`, or give --alone")

// connect returns the session that the flags and the environment ask for.
func connect(ctx context.Context, o *options, log *slog.Logger) (session, error) {
	if o.alone {
		return &alone{coordinate: o.coord}, nil
	}
	if err := client.AwaitPlace(ctx); err != nil {
		return nil, err
	}
	if os.Getenv(client.SocketVariable) == "" {
		return nil, errNoSocket
	}
	return dial(ctx, log)
}
