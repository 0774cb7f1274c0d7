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
	"strconv"
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

// await asks a daemon over its socket until the answer is as wanted.
func await(ctx context.Context, t *testing.T, cfg *Config, wanted func(*Status) bool) *Status {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", NewPaths(cfg.Dir, cfg.ShmDir).Socket(cfg.Index))
	}}}
	for {
		s := new(Status)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://phalanx/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err == nil {
			err = errors.Join(json.NewDecoder(res.Body).Decode(s), res.Body.Close())
		}
		if err == nil && wanted(s) {
			return s
		}
		if ctx.Err() != nil {
			logs(t, cfg)
			t.Fatalf("%s does not come to it: %+v, %v", cfg.Member(), s, err)
		}
		time.Sleep(10 * time.Millisecond)
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
	store, err := openStore(t.Context(), cfg.Store, nil)
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
	goleak.VerifyNone(t, before, probes)

	again, err := Run(ctx, cfg)
	if err != nil || !again.Done || again.Digest != o.Digest {
		t.Errorf("the second start ended with %+v, %v", again, err)
	}
	goleak.VerifyNone(t, before, probes)
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

	s := await(ctx, t, &cfg, func(s *Status) bool { return s.Leader == "h/0" })
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
	goleak.VerifyNone(t, before, probes) // retries until the waiter of the trainer has ended with it
}

// Two hosts train one job in this process. The trainer of the second is killed on the way: it comes back in a next life,
// heals from the first over the network. Then its daemon ends, and the next one takes the living trainer over. Both hosts end
// with the same state.
func TestTwoHostsTrainThroughADeath(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and trains")
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	command := []string{trainer(t), "--steps", "150", "--slots", "4", "--global-batch", "4", "--data", wd, "--data-limit", "100000", "--step-floor", "50ms"}
	before := goleak.IgnoreCurrent()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	first, second := alone(t, command...), alone(t, command...)
	first.Port, first.Policy = port, elastic.Policy{Want: 2, Min: 1}
	second.Host, second.Key, second.Bootstrap, second.Policy = "g", first.Key, false, first.Policy
	second.Join, second.Store, second.MaxStarts = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, first.Store, 3
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	type end struct {
		o   Outcome
		err error
	}
	ends := make(chan end, 2) // 2: both end
	start := func(ctx context.Context, cfg Config) {
		go func() {
			o, err := Run(ctx, cfg)
			ends <- end{o, err}
		}()
	}
	brief, stop := context.WithCancel(ctx)
	defer stop()
	start(ctx, first)
	start(brief, second)
	s := await(ctx, t, &first, func(s *Status) bool { return len(s.World) == 2 && s.Step >= 10 && s.member("g/0").TrainerPID != 0 })
	victim := s.member("g/0")
	if err := syscall.Kill(victim.TrainerPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s = await(ctx, t, &first, func(s *Status) bool {
		m := s.member("g/0")
		return len(s.World) == 2 && m.Incarnation > victim.Incarnation && m.TrainerPID != 0 && m.TrainerPID != victim.TrainerPID && m.Local == "running"
	})
	healed := s.member("g/0")
	stop()
	if e := <-ends; !errors.Is(e.err, context.Canceled) {
		t.Fatalf("the second daemon ended with %+v", e)
	}
	start(ctx, second)
	s = await(ctx, t, &first, func(s *Status) bool { return s.Step >= healed.Step+30 })
	// An orderly end takes its time; on a busy machine it is longer than a member alone on its host may be silent. Then the
	// life is over and the next one heals; within a life the trainer is never replaced.
	if m := s.member("g/0"); len(s.World) != 2 || m.Incarnation == healed.Incarnation && m.TrainerPID != healed.TrainerPID {
		t.Errorf("the successor did not take over %+v: %+v", healed, m)
	}
	await(ctx, t, &second, func(s *Status) bool { return s.AnsweredBy == "h/0" }) // the leader's answer, passed on
	var got []end
	for range 2 {
		got = append(got, <-ends)
	}
	for _, e := range got {
		if e.err != nil || !e.o.Done || e.o.Step != 150 || e.o.Digest != got[0].o.Digest {
			logs(t, &first)
			logs(t, &second)
			t.Fatalf("ended with %+v", got)
		}
	}
	goleak.VerifyNone(t, before, probes)
}

func (s *Status) member(id phalanx.MemberID) MemberStatus {
	for _, m := range s.Members {
		if m.Member == id {
			return m
		}
	}
	return MemberStatus{}
}
