// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"phalanx"
	"phalanx/cmd/phalanx/internal/control"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/cmd/phalanx/internal/supervise"
	"phalanx/node"
)

// newDaemon is the verb that run starts its daemons with. It is hidden: by hand nobody would restart what it runs.
func newDaemon(a *app) *cobra.Command {
	var dir string
	var index, words int
	c := &cobra.Command{
		Use: "daemon --dir DIR --index I", Hidden: true, Args: cobra.NoArgs,
		Short: "Run the daemon of one member; phalanx run starts it",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.daemon(c.Context(), dir, index, lastWords(words))
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "the job's directory, absolute, with run.json")
	c.Flags().IntVar(&index, "index", 0, "index of the member on this host")
	c.Flags().IntVar(&words, supervise.WordsFlag, 0, "descriptor for what the log may have no room for")
	return c
}

// lastWords is the memory that run has passed on for the last words of this daemon, nil for none. A crash is printed there, too.
func lastWords(fd int) *os.File {
	if fd < 3 {
		return nil
	}
	unix.CloseOnExec(fd) // it is not for the trainers
	f := os.NewFile(uintptr(fd), "last words")
	_ = debug.SetCrashOutput(f, debug.CrashOptions{}) // without it the log has the crash all the same
	return f
}

func (a *app) daemon(ctx context.Context, dir string, index int, words *os.File) error {
	cfg, err := a.daemonConfig(dir, index)
	if err == nil {
		// What a trainer inherits: not the key, and none of the settings of run.
		_ = os.Unsetenv(settings.KeyVariable)
		stop := a.daemonSignals(ctx, dir, index, cfg.Log)
		defer stop()
		// The daemon's loop keeps one processor of Go's scheduler while it sleeps on its bell; what runs beside it gets two at
		// least, or what it had.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 2) + 1)
		var outcome node.Outcome
		if outcome, err = node.Run(ctx, cfg); err == nil {
			return a.leave(dir, index, outcome)
		}
	}
	var p *node.Problem
	if errors.As(err, &p) && p.Code != node.CodeFailed && p.Code != node.CodeInterrupt {
		// Another start would find the same.
		if e := a.leave(dir, index, node.Outcome{Code: p.Code, Reason: p.Err.Error(), Hint: p.Hint}); e != nil {
			return errors.Join(err, e)
		}
		return err
	}
	f := supervise.Failure{PID: os.Getpid(), Code: node.CodeFailed, Reason: err.Error()}
	if p != nil {
		f.Reason, f.Hint = p.Err.Error(), p.Hint
	}
	noted := supervise.WriteFile(supervise.FailurePath(dir, index), f)
	if noted != nil && words != nil {
		noted = supervise.WriteWords(words, f)
	}
	return errors.Join(err, noted)
}

// leave writes how the job ended for the member. Without it run would start the daemon again.
func (a *app) leave(dir string, index int, o node.Outcome) error {
	return supervise.WriteFile(node.NewPaths(dir, "").Outcome(index), o)
}

// daemonConfig is what DIR/run.json asks for.
func (a *app) daemonConfig(dir string, index int) (node.Config, error) {
	s, err := settings.Read(dir)
	if err != nil {
		return node.Config{}, problem(node.CodeUsage, "start daemons with phalanx run", "%w", err)
	}
	key, ok, err := s.ExplicitKey(a.variable(settings.KeyVariable))
	if err == nil && !ok {
		key, err = node.ReadJobKey(settings.LocalKeyFile(dir))
	}
	if err != nil {
		return node.Config{}, problem(node.CodeAuth, "", "%w", err)
	}
	port := 0
	if index == 0 {
		port = s.Port
	}
	var started time.Time
	if info, err := os.Stat(settings.File(dir)); err == nil {
		started = info.ModTime() // run writes it when it starts the job, not when it attaches
	}
	return node.Config{
		Started: started, Job: s.Job, Dir: s.Dir, Store: s.Store, Host: s.Host, Index: index, Policy: s.Policy(),
		Bind: s.Address, Port: port, Advertise: s.Advertise, Join: s.Join, Key: key, Bootstrap: len(s.Join) == 0,
		SaveEvery: node.Interval(s.SaveEvery), SaveFailure: node.SaveFailure(s.SaveFailure), CopyRate: int64(s.CopyRate), Slabs: s.Slabs, MaxHost: int64(s.MaxHostBytes), Keep: s.Keep, KeepEvery: phalanx.Step(s.KeepEvery), KeepTime: time.Duration(s.KeepTime), GCGrace: time.Duration(s.GCGrace), KeepLogs: s.KeepLogs, Resume: s.Resume, WarmStart: s.Beginning(), MaxStarts: s.MaxRestarts,
		Hang: time.Duration(s.HangTimeout), Start: time.Duration(s.StartTimeout), Grace: time.Duration(s.Grace),
		Health: s.HealthCheck, Plain: s.Plain, Role: s.Role, Warm: s.Warm, Command: s.Command, LocalSize: s.LocalSize(), Version: version,
		Log: slog.New(slog.NewTextHandler(a.stderr, nil)),
	}, nil
}

// daemonSignals makes TERM to a daemon mean what it means to run, because at the end of an allocation or of a machine it
// reaches every process. INT, HUP and PIPE come from terminals and are run's business.
func (a *app) daemonSignals(ctx context.Context, dir string, index int, log *slog.Logger) (stop func()) {
	terms := make(chan os.Signal, 1) // 1: the first one counts
	dropped := make(chan os.Signal, 1)
	signal.Notify(terms, unix.SIGTERM)
	signal.Notify(dropped, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the daemon
		select {
		case <-ctx.Done():
			return
		case <-terms:
			log.Info("stopping", "cause", "SIGTERM to the daemon")
		}
		for ctx.Err() == nil {
			if l, ok := control.FindOne(dir, index); ok && l.PID == os.Getpid() {
				call, done := context.WithTimeout(ctx, askTimeout)
				err := control.Stop(call, l, "SIGTERM to the daemon")
				done()
				if err == nil {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() {
		cancel()
		signal.Stop(terms)
		signal.Stop(dropped)
	}
}
