// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx/chaos/internal/ask"
	"phalanx/node"
)

const (
	// host is the name of the jobs' one host, so that members have the same names everywhere.
	host = "h"
	// limit is for one test. What takes longer waits for something that never comes.
	limit = 150 * time.Second
	// patience is for one wait inside a test, on a machine that is busy with other things too.
	patience = 45 * time.Second
	pollTime = 25 * time.Millisecond
	askTime  = time.Second
)

// job is one directory and what runs in it, over one or more calls of phalanx run.
type job struct {
	t     *testing.T
	dir   string
	host  string
	nproc int
	bin   string   // folder of the programs
	env   []string // of phalanx run, more than the test's own
	flags []string // of phalanx run
	cmd   []string // of the trainers
	train []string // arguments of phalanx-lm, without those that do not change the result
	runs  []*process
	*history
	asked int // member whose daemon answered last
	ctx   context.Context
}

// process is one phalanx run.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr string        // files
	ended          chan struct{} // closed when it has ended
	code           int           // to be read after that
}

// newJob makes a job of steps steps. Nothing runs before run is called.
func newJob(t *testing.T, nproc, steps int, floor time.Duration, more ...string) *job {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	j := &job{t: t, dir: filepath.Join(t.TempDir(), "job"), nproc: nproc, history: newHistory(), ctx: ctx}
	j.train = []string{"--data", data, "--steps", strconv.Itoa(steps)}
	j.bin, j.host = bin, host
	j.cmd = append(append([]string{j.program("phalanx-lm")}, j.train...), "--step-floor", floor.String())
	j.cmd = append(j.cmd, more...)
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			j.dump()
		}
		j.wipe()
	})
	return j
}

// run calls phalanx run with the job's own flags and more. It does not wait.
func (j *job) run(more ...string) *process {
	j.t.Helper()
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		j.t.Fatal(err)
	}
	args := []string{"run", "--dir", j.dir, "--host", j.host, "--nproc", strconv.Itoa(j.nproc)}
	args = append(append(args, j.flags...), more...)
	args = append(append(args, "--"), j.cmd...)
	base := filepath.Join(filepath.Dir(j.dir), fmt.Sprintf("run%d", len(j.runs)))
	p := &process{stdout: base + ".out", stderr: base + ".err", ended: make(chan struct{})}
	out, err := os.Create(p.stdout)
	if err != nil {
		j.t.Fatal(err)
	}
	defer out.Close()
	errs, err := os.Create(p.stderr)
	if err != nil {
		j.t.Fatal(err)
	}
	defer errs.Close()
	p.cmd = exec.Command(j.program("phalanx"), args...)
	p.cmd.Env = append(os.Environ(), j.env...)
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	go func() { // ends with the process; wipe sees to it that it ends
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.ended)
	}()
	j.runs = append(j.runs, p)
	return p
}

func (j *job) program(name string) string { return filepath.Join(j.bin, name) }

// newest is the newest phalanx run.
func (j *job) newest() *process { return j.runs[len(j.runs)-1] }

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it has ended: its code tells

func (p *process) out() string  { return content(p.stdout) }
func (p *process) errs() string { return content(p.stderr) }

func content(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// look asks the job's daemons in turn until one answers. It knows what the leader knows if the answer is Fresh.
func (j *job) look() (*node.Status, error) {
	var errs []error
	for i := range j.nproc + 1 { // one more: a spare
		index := (j.asked + i) % (j.nproc + 1)
		s, err := ask.Daemon(j.ctx, j.dir, index, askTime)
		if err == nil {
			j.asked = index
			if s.Leader.Host() == j.host { // it answers by itself; the others have to ask it
				j.asked = s.Leader.Index()
			}
			j.readHits()
			j.note(s)
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// until asks until a leader's answer is as wanted.
func (j *job) until(what string, ok func(*node.Status) bool) *node.Status {
	j.t.Helper()
	s, err := j.wait(what, ok)
	if err != nil {
		j.t.Fatal(err)
	}
	return s
}

func (j *job) wait(what string, ok func(*node.Status) bool) (*node.Status, error) {
	ctx, cancel := context.WithTimeout(j.ctx, patience)
	defer cancel()
	var last *node.Status
	for {
		if s, err := j.look(); err == nil {
			if last = s; s.Fresh && ok(s) {
				return s, nil
			}
		}
		select {
		case <-j.newest().ended:
			if !j.orphaned() {
				return nil, fmt.Errorf("wait until %s: the run has ended with %d; last seen: %s", what, j.newest().code, describe(last))
			}
		default:
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until %s: %w; last seen: %s", what, ctx.Err(), describe(last))
		case <-time.After(pollTime):
		}
	}
}

// orphaned reports whether daemons go on without a run.
func (j *job) orphaned() bool { return len(j.own()) > 0 }

func describe(s *node.Status) string {
	if s == nil {
		return "no daemon answered"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "phase %s generation %d step %d leader %s fresh %t world %v halt %q", s.Phase, s.Generation, s.Step, s.Leader, s.Fresh, s.World, s.Halt)
	for _, m := range s.Members {
		fmt.Fprintf(&b, "\n  %s.%d rank %d %s/%s daemon %d trainer %d step %d %s", m.Member, m.Incarnation, m.Rank, m.State, m.Local, m.DaemonPID, m.TrainerPID, m.Step, m.Why)
	}
	return b.String()
}

// end waits until the newest run has ended, and reads the history meanwhile.
func (j *job) end() *process {
	j.t.Helper()
	p := j.newest()
	for {
		select {
		case <-p.ended:
			return p
		case <-j.ctx.Done():
			s, _ := j.look()
			j.t.Fatalf("the run does not end: %s", describe(s))
		case <-time.After(4 * pollTime):
			_, _ = j.look() // for the history; its daemons end one after the other
		}
	}
}

var doneLine = regexp.MustCompile(`(?m)^phalanx: done step=(\d+) generation=([\d.]+) digest=([0-9a-f]{32})\n\z`)

// finish waits for the end of the job, and fails unless it ends as the undisturbed run does.
func (j *job) finish() {
	j.t.Helper()
	p := j.end()
	m := doneLine.FindStringSubmatch(p.out())
	if p.code != 0 || m == nil {
		j.t.Fatalf("the run ended with %d\n%s", p.code, tail(p.out()+p.errs(), 15))
	}
	if want := oracle(j.t, j.train...); m[3] != want {
		j.t.Errorf("the parameters differ from those of an undisturbed run: digest %s, want %s", m[3], want)
	}
	for _, line := range finalLine.FindAllString(strings.ReplaceAll(p.out(), " | ", "\n"), -1) {
		if !strings.HasSuffix(line, m[3]) {
			j.t.Errorf("a trainer ended with other parameters: %s, want digest %s", line, m[3])
		}
	}
	for life, steps := range j.printed() {
		for i := 1; i < len(steps) && j.allowed == ""; i++ {
			if steps[i] <= steps[i-1] {
				j.t.Errorf("%s has applied step %d after step %d", life, steps[i], steps[i-1])
			}
		}
	}
	j.check(j.t)
}

// refused waits for the end of a run that must not go well, and checks its code and its words.
func (j *job) refused(code int, words ...string) {
	j.t.Helper()
	p := j.end()
	if p.code != code {
		j.t.Errorf("the run ended with %d, want %d\n%s", p.code, code, tail(p.errs(), 12))
	}
	for _, w := range words {
		if !strings.Contains(p.errs(), w) {
			j.t.Errorf("stderr does not say %q\n%s", w, tail(p.errs(), 12))
		}
	}
	if n := strings.Count(p.errs(), "\nphalanx: ") + strings.Count(p.errs(), "\nhint: "); code != 75 && !strings.Contains(p.errs(), "hint: ") {
		j.t.Errorf("the error has no hint (%d lines)\n%s", n, tail(p.errs(), 12))
	}
}

// verb calls another verb of phalanx on the job.
func (j *job) verb(args ...string) (string, int) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, program("phalanx"), append(args, "--dir", j.dir)...)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		j.t.Fatalf("phalanx %v: %v\n%s", args, err, out)
	}
	return string(out), c.ProcessState.ExitCode()
}

// own lists the living daemons and trainers of this job. They are known by its folder in command line and environment.
func (j *job) own() []int {
	var out []int
	entries, _ := os.ReadDir("/proc")
	socket := []byte("PHALANX_SOCKET=" + node.NewPaths(j.dir, "").Socket(0))
	socket = socket[:bytes.LastIndexByte(socket, '0')+1]
	socket = bytes.TrimSuffix(socket, []byte("0/sock"))
	socket = bytes.TrimSuffix(socket, []byte("0"))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if bytes.Contains(line, []byte("daemon\x00--dir\x00"+j.dir+"\x00")) || bytes.Contains(environ, socket) {
			out = append(out, pid)
		}
	}
	return out
}

// killAll kills the runs, daemons and trainers of this job without a warning.
func (j *job) killAll() {
	for _, p := range j.runs {
		p.signal(syscall.SIGKILL)
	}
	for range 100 {
		left := j.own()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // has ended
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond) // until the kernel has ended them
	}
	for _, p := range j.runs {
		<-p.ended
	}
}

// reboot forgets the host's memory, as a reboot does.
func (j *job) reboot() {
	name := node.NewPaths(j.dir, "").Bells()
	names, _ := filepath.Glob(strings.TrimSuffix(name, "bells") + "*")
	for _, n := range names {
		_ = os.Remove(n) // gone already is as good
	}
}

func (j *job) wipe() {
	j.killAll()
	j.reboot()
}

// dump prints what happened, for a test that failed.
func (j *job) dump() {
	j.t.Logf("history:\n%s", j.history)
	if s, err := j.look(); err == nil {
		j.t.Logf("status: %s", describe(s))
	}
	for _, p := range j.runs {
		j.t.Logf("stdout:\n%s\nstderr:\n%s", tail(p.out(), 10), tail(p.errs(), 25))
	}
	logs, _ := filepath.Glob(filepath.Join(j.dir, "log", "daemon.*.log"))
	for _, name := range logs {
		var lines []string
		for line := range strings.Lines(content(name)) {
			if !strings.Contains(line, "memberlist") {
				lines = append(lines, line)
			}
		}
		j.t.Logf("%s:\n%s", filepath.Base(name), tail(strings.Join(lines, ""), 60))
	}
	if keep := os.Getenv("PHALANX_CHAOS_KEEP"); keep != "" {
		to := filepath.Join(keep, strings.ReplaceAll(j.t.Name(), "/", "_"))
		j.t.Logf("logs are copied to %s: %v", to, os.CopyFS(to, os.DirFS(filepath.Join(j.dir, "log"))))
	}
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return "  | " + strings.Join(lines[max(0, len(lines)-n):], "\n  | ")
}
