// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
)

// trainer builds the trainer that the tests run.
func trainer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "phalanx-lm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "phalanx/cmd/phalanx-lm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the trainer: %v\n%s", err, out)
	}
	return path
}

// alone is a job of one member on this machine.
func alone(t *testing.T, command ...string) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{
		Job: "job", Dir: dir, Store: filepath.Join(dir, "store"), Host: "h", Policy: elastic.Policy{Want: 1, Min: 1}, Bind: "127.0.0.1",
		Key: NewJobKey(), Bootstrap: true, SaveEvery: Interval{Steps: 8}, Keep: 2, Resume: "auto", MaxStarts: 1, Hang: time.Minute, Start: time.Minute,
		Grace: 10 * time.Second, Command: command, LocalSize: 1, ShmDir: t.TempDir(), Version: "test", Log: quiet(),
	}
}

// logs prints what the trainers of a failed test wrote.
func logs(t *testing.T, cfg *Config) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(cfg.Dir, "log", "*"))
	for _, name := range names {
		b, _ := os.ReadFile(name)
		t.Logf("%s:\n%s", name, b)
	}
}

// One daemon with a real trainer founds the job, trains it to its end, keeps the last checkpoint and leaves nothing behind:
// no goroutine, no shared memory, no held port. Another start of the same directory finds the job done.
func TestDaemonTrainsAJobToItsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and trains")
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	lm := trainer(t)
	before := goleak.IgnoreCurrent()
	cfg := alone(t, lm, "--steps", "20", "--slots", "2", "--global-batch", "4", "--data", wd, "--data-limit", "100000")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o, err := Run(ctx, cfg)
	if err != nil || !o.Done || o.Code != CodeOK || o.Step != 20 || o.Digest == (phalanx.Digest{}) {
		logs(t, &cfg)
		t.Fatalf("ended with %+v, %v", o, err)
	}
	paths := NewPaths(cfg.Dir, cfg.ShmDir)
	var kept Outcome
	if err := readJSON(paths.Outcome(0), &kept); err != nil || kept != o {
		t.Errorf("left %+v, %v; want %+v", kept, err, o)
	}
	if lives := paths.Lives(0); len(lives) != 0 {
		t.Errorf("shared memory is left of lives %v", lives)
	}
	if _, err := os.Stat(paths.DaemonFile(0)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the daemon's file is left: %v", err)
	}
	store, err := OpenStore(cfg.Store)
	if err != nil {
		t.Fatal(err)
	}
	records, problems, err := ckpt.List(ctx, store, cfg.Job)
	if err != nil || len(problems) != 0 || len(records) == 0 {
		t.Fatalf("the store has %v, %v, %v", records, problems, err)
	}
	newest := records[len(records)-1]
	if newest.Commit == nil || newest.Commit.Step != 20 {
		t.Errorf("the newest checkpoint is %+v", newest)
	}
	goleak.VerifyNone(t, before)

	again, err := Run(ctx, cfg)
	if err != nil || !again.Done || again.Digest != o.Digest {
		t.Errorf("the second start ended with %+v, %v", again, err)
	}
	goleak.VerifyNone(t, before)
}

// A daemon that is told to end goes at once and leaves its trainer to its successor. A second one for the same member is
// refused while the first lives.
func TestDaemonLeavesItsTrainerToItsSuccessor(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	before := goleak.IgnoreCurrent()
	pidFile := filepath.Join(t.TempDir(), "pid")
	cfg := alone(t, "/bin/sh", "-c", `echo $$ > "$0.new" && mv "$0.new" "$0" && exec sleep 60`, pidFile)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1) // 1: it ends once
	go func() {
		_, err := Run(run, cfg)
		ended <- err
	}()
	pid := 0
	for pid == 0 {
		if err := readJSON(pidFile, &pid); err != nil && ctx.Err() != nil {
			t.Fatalf("the trainer is not started: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Kill() })

	var s Status
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", NewPaths(cfg.Dir, cfg.ShmDir).Socket(0))
	}}}
	for s.Leader != "h/0" {
		if ctx.Err() != nil {
			t.Fatalf("it does not lead: %+v", s)
		}
		res, err := client.Get("http://phalanx/v1/status")
		if err == nil {
			err = errors.Join(json.NewDecoder(res.Body).Decode(&s), res.Body.Close())
		}
		if err != nil {
			t.Logf("status: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if s.AnsweredBy != "h/0" || s.Job != "job" || !s.Fresh {
		t.Errorf("status %+v", s)
	}
	o, err := Run(ctx, cfg)
	var p *Problem
	if o.Code != CodeLocked || !errors.As(err, &p) || p.Code != CodeLocked {
		t.Errorf("a second daemon ended with %+v, %v", o, err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first one ended with %v", err)
	}
	if err := process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the trainer is gone with its daemon: %v", err)
	}
	if err := process.Kill(); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before) // retries until the waiter of the trainer has ended with it
}
