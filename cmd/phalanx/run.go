// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/open"
	"phalanx/cmd/phalanx/internal/control"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/cmd/phalanx/internal/supervise"
	"phalanx/node"
)

func newRun(a *app) *cobra.Command {
	s := settings.Default()
	var torchrun *settings.Torchrun
	c := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG…]",
		Short: "Train: start this host's members of a job, or take over those that live",
		Long: `Run starts one daemon for each member of this host. Each daemon starts CMD, and again when it dies. Run prints
what the trainers write, with the member's name in front, and ends with the job. Daemons and trainers outlive it: the same
command again goes on with what lives, or from the newest state.

Every flag can also be a variable (--hang-timeout is PHALANX_HANG_TIMEOUT) or a key of phalanx.toml (hang_timeout), in DIR
or in the working directory. Flags win over variables, those over the file.

A CMD that ends with .py runs with python, as does a module with -m. torchrun's flags are understood (--nproc-per-node,
--nnodes, --standalone, --rdzv-endpoint, --max-restarts, --log-dir and the rest), with dashes or underscores.

TERM or INT finishes the step, saves and exits 75; a second INT kills. USR1, USR2, HUP and WINCH go to the trainers.`,
		Example: `  phalanx run --nproc 4 -- phalanx-lm --steps 300
  phalanx run --nproc auto --plain train.py --epochs 3
  phalanx run --nproc 8 --nnodes 1:4 --key-file key --join host0:7777 -- ./train`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := settings.Load(c.Flags(), a.environ); err != nil {
				return err
			}
			if err := torchrun.Apply(s, args, a.environ); err != nil {
				return err
			}
			s.Version = version
			for _, note := range torchrun.Notes {
				say(a.stderr, "phalanx: %s\n", note)
			}
			return a.run(c.Context(), s)
		},
	}
	c.Flags().SetInterspersed(false) // what follows CMD is CMD's
	s.Flags(c.Flags())
	torchrun = s.TorchrunFlags(c.Flags())
	return c
}

func (a *app) run(ctx context.Context, s *settings.Settings) error {
	if err := s.Complete(); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if _, err := exec.LookPath(s.Command[0]); err != nil {
		return problem(node.CodeUsage, "give the path of a program, and build it first", "command of the trainers: %w", err)
	}
	_, haveKey, err := s.ExplicitKey(a.variable(settings.KeyVariable))
	if err != nil {
		return err
	}
	if len(s.Join) > 0 && !haveKey { // before anything is made
		return s.FindAddress(false)
	}
	lock, err := supervise.TakeLock(s.Dir)
	if err != nil {
		return err
	}
	defer lock.Release()
	living := control.Find(s.Dir)
	if len(living) > 0 {
		err = attach(s, living)
	} else {
		err = a.prepare(ctx, s, haveKey)
	}
	if err != nil {
		return err
	}
	if s.SharesCores(a.environ) {
		say(a.stderr, "phalanx: each trainer gets OMP_NUM_THREADS=1, because several share the processors; set the variable for another number\n")
	}
	return a.supervise(ctx, s, living)
}

// attach checks that this is the job whose daemons live here.
func attach(s *settings.Settings, living []control.Living) error {
	var pids []string
	for _, l := range living {
		pids = append(pids, strconv.Itoa(l.PID))
	}
	running, err := settings.Read(s.Dir)
	if err != nil {
		return problem(node.CodeLocked, "end them (pids "+strings.Join(pids, ", ")+"), or use another --dir", "daemons live in %s and their settings cannot be read: %w", s.Dir, err)
	}
	if diff := s.Diff(running); diff != "" {
		return problem(node.CodeUsage, "run it with the same settings to go on with it, stop it first (kill -TERM "+strings.Join(pids, " ")+"), or use another --dir",
			"job %s is running in %s with other settings: %s", running.Job, s.Dir, diff)
	}
	s.Address, s.Port, s.Version = running.Address, running.Port, running.Version
	return nil
}

// prepare makes everything ready for daemons to start, and finds out early what they would stumble over.
func (a *app) prepare(ctx context.Context, s *settings.Settings, haveKey bool) error {
	inUse := holdsState(s.Dir)
	if before, err := settings.Read(s.Dir); inUse && err == nil && before.Job != s.Job {
		return problem(node.CodeUsage, "go on with it by --job "+before.Job+", or start in another --dir",
			"%s holds the state of another job: job is %s, there it is %s", s.Dir, s.Job, before.Job)
	}
	if before, err := settings.Read(s.Dir); inUse && err == nil && supervise.Done(s.Dir) && !slices.Equal(before.Command, s.Command) {
		return problem(node.CodeUsage, "start it in another --dir, or give the same command to see the result again",
			"the job in %s is done: it was %q, and is asked for with %q", s.Dir, strings.Join(before.Command, " "), strings.Join(s.Command, " "))
	}
	if inUse && s.Resume != "auto" {
		if s.Resume == "never" {
			return problem(node.CodeUsage, "go on with it by --resume auto, or start in another --dir", "--resume never: %s holds the state of a job", s.Dir)
		}
		return problem(node.CodeUsage, "go on with it by --resume auto, or start in another --dir",
			"--resume %s: %s holds the state of a job; a step counts only for a new DIR", s.Resume, s.Dir)
	}
	if err := s.FindAddress(haveKey); err != nil {
		return err
	}
	if err := s.PlaceLogs(); err != nil {
		return err
	}
	if !haveKey {
		if _, err := s.LocalKey(); err != nil {
			return err
		}
	}
	store, err := open.Store(ctx, s.Store, open.Write, open.Options{Budget: &readBudget}) // proves by writing
	if err != nil {
		return node.StoreProblem(err)
	}
	if err := provesShared(ctx, s, store); err != nil {
		return err
	}
	if s.Resume == "never" {
		err = refuseState(ctx, s, store)
	} else {
		err = refuseNewer(ctx, s, store)
	}
	if err == nil && s.Resume != "never" && s.Resume != "auto" {
		err = findStep(ctx, s, store)
	}
	if err == nil && s.WarmStart != "" {
		err = a.checkWarmStart(ctx, s, store, inUse)
	}
	if err != nil {
		return err
	}
	return s.Write()
}

// beaconWait is how long names may take to appear on a shared file system.
const beaconWait = 15 * time.Second

// provesShared leaves a sign of this host in a directory that several hosts are to share, and on a host that joins looks for
// the sign of one that was there before: a path that is not shared would lose the shards of all other hosts.
func provesShared(ctx context.Context, s *settings.Settings, store ckpt.Store) error {
	dir, ok := open.Prober(store).(*fs.Store)
	if !ok || s.MaxHosts < 2 || s.Plain { // without the step protocol nothing is stored
		return nil
	}
	home, err := node.NewPaths(s.Dir, "").Home()
	if err != nil {
		return err
	}
	sign := s.Host + "." + home[:8] // two hosts that were given one name are told so by the daemons, not taken for one here
	err = dir.WriteBeacon(sign)
	if err == nil && len(s.Join) > 0 {
		ctx, cancel := context.WithTimeout(ctx, beaconWait)
		defer cancel()
		err = dir.AwaitBeacon(ctx, sign)
	}
	switch {
	case errors.Is(err, fs.ErrNotShared):
		return problem(node.CodeUsage, "give all hosts the same --store, a directory that they share or a bucket", "checkpoint store: %w", err)
	case err != nil:
		return node.StoreProblem(err)
	}
	return nil
}

// holdsState reports whether members have lived in a directory.
func holdsState(dir string) bool {
	entries, err := os.ReadDir(filepath.Join(dir, "members"))
	return err == nil && len(entries) > 0
}

// findStep is --resume STEP: a published checkpoint of the step must be there. Whether it is whole is found by who restores it.
func findStep(ctx context.Context, s *settings.Settings, store ckpt.Store) error {
	records, problems, err := ckpt.List(ctx, store, s.Job)
	if err != nil {
		return fmt.Errorf("look into store %s: %w", s.Store, err)
	}
	step, _ := strconv.ParseUint(s.Resume, 10, 64) // Validate has parsed it
	for _, r := range records {
		if r.Commit != nil && uint64(r.Commit.Step) == step {
			return nil
		}
	}
	beside := ""
	for _, p := range problems {
		beside += fmt.Sprintf("; %v", p)
	}
	return problem(node.CodeNotFound, "see what there is: phalanx ckpt ls --store "+s.Store+" --job "+s.Job,
		"--resume %s: the store %s has no published checkpoint of step %s of job %s%s", s.Resume, s.Store, s.Resume, s.Job, beside)
}

// refuseNewer finds at the start that no save of this job could be published.
func refuseNewer(ctx context.Context, s *settings.Settings, store ckpt.Store) error {
	switch err := ckpt.CheckFormat(ctx, store, s.Job); {
	case errors.Is(err, ckpt.ErrFormat):
		return problem(codeIncompatible, "use the release that wrote it, or a newer one, or another --job", "the store %s: %w", s.Store, err)
	case err != nil:
		return node.StoreProblem(err)
	}
	return nil
}

// refuseState is --resume never: nothing that exists may be mistaken for a new job's, nor be overwritten by it.
func refuseState(ctx context.Context, s *settings.Settings, store ckpt.Store) error {
	found, err := store.List(ctx, s.Job+"/", "", 1)
	if err != nil {
		return fmt.Errorf("look into store %s: %w", s.Store, err)
	}
	if len(found) > 0 {
		return problem(node.CodeUsage, "go on with them by --resume auto, or use another --job or --store; see: phalanx ckpt ls --store "+s.Store+" --job "+s.Job,
			"--resume never: the store %s holds checkpoints of job %s", s.Store, s.Job)
	}
	return nil
}

func (a *app) supervise(ctx context.Context, s *settings.Settings, living []control.Living) error {
	signals := make(chan os.Signal, 64) // 64: a burst that comes while a daemon is asked for its trainers
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGHUP, unix.SIGWINCH)
	defer signal.Stop(signals)
	// A closed stdout must not end the run: taken and dropped, because ignoring would be inherited by the trainers.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, unix.SIGPIPE)
	defer signal.Stop(pipes)

	if s.MaxHosts > 1 {
		told, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { // ends with the run at the latest
			defer close(done)
			a.tellAddress(told, s.Dir)
		}()
		defer func() { stop(); <-done }()
	}
	began := time.Now()
	outcome, err := supervise.Run(ctx, supervise.Config{
		Settings: s, Program: self(), Env: a.environ, Attach: living, Stdout: a.stdout, Signals: signals,
		Log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{ReplaceAttr: dropTime})),
		Daemon: func(index int) []string {
			return []string{"phalanx", "daemon", "--dir", s.Dir, "--index", strconv.Itoa(index)}
		},
	})
	if err != nil {
		return err
	}
	if c := outcome.Code; c != node.CodeOK && c != node.CodePreempted {
		if first, ok := supervise.FirstError(s.Dir, s.Host, began); ok {
			say(a.stderr, "phalanx: first failure: %s: %s; its output is %s\n", first.Who.Member, first.String(), node.NewPaths(s.Dir, "").TrainerLog(first.Who))
		}
	}
	return a.report(s, outcome)
}

// tellAddress says where the other hosts join, once the first daemon listens there. One that is found by its socket alone has not
// said yet where that is.
func (a *app) tellAddress(ctx context.Context, dir string) {
	for {
		if l, ok := control.FindOne(dir, 0); ok && l.Addr != "" {
			if host, _, err := net.SplitHostPort(l.Addr); err == nil && !net.ParseIP(host).IsLoopback() {
				say(a.stderr, "phalanx: other hosts join with --join %s\n", l.Addr)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond): // until the daemon has written its file
		}
	}
}

// report prints the last line of a run, or returns why there is none.
func (a *app) report(s *settings.Settings, o node.Outcome) error {
	switch {
	case o.Done && o.Code == node.CodeOK:
		err := tell(a.stdout, "phalanx: done step=%d generation=%s digest=%s\n", o.Step, o.Generation, o.Digest)
		return err
	case o.Code == node.CodeOK:
		err := tell(a.stdout, "phalanx: left step=%d generation=%s\n", o.Step, o.Generation)
		return err
	case o.Code == node.CodePreempted && o.Reason == "":
		o.Reason = fmt.Sprintf("stopped after step %d", o.Step)
	case o.Reason == "":
		o.Reason = fmt.Sprintf("the job ended with code %d after step %d", o.Code, o.Step)
	}
	if o.Code == node.CodePreempted && o.Hint == "" {
		o.Hint = "the same command goes on from there"
		if s.Resume != "auto" {
			o.Hint = "the same command with --resume auto goes on from there"
		}
	}
	if o.Hint == "" {
		o.Hint = "the logs of daemons and trainers are in " + filepath.Join(s.Dir, "log")
	}
	return &node.Problem{Code: o.Code, Err: errors.New(o.Reason), Hint: o.Hint}
}

// self is this program's file. A build that replaced it is what daemons are started with from then on.
func self() string {
	path, err := os.Executable()
	if err == nil {
		if _, err = os.Stat(path); err == nil {
			return path
		}
	}
	return "/proc/self/exe"
}

// dropTime leaves out the time of log lines for a human who watches.
func dropTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
