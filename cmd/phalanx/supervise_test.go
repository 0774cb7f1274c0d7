// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"phalanx/cmd/phalanx/internal/control"
	"phalanx/membership"
)

// These tests run the program with fake daemons: real processes, signals, locks and files.

// job is a directory with a run in it.
type job struct {
	t   *testing.T
	dir string
}

func newJob(t *testing.T) *job {
	j := &job{t, filepath.Join(t.TempDir(), "j")}
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.sweep)
	return j
}

// sweep kills what a failed test left. It knows the processes by the job's own files.
func (j *job) sweep() {
	for _, l := range control.Find(j.dir) {
		_ = syscall.Kill(l.PID, syscall.SIGKILL)
	}
	files, _ := filepath.Glob(filepath.Join(j.dir, "members", "*", "trainer"))
	for _, f := range files {
		if pid := j.pidIn(f); pid > 1 {
			if b, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline"); err == nil && strings.Contains(string(b), "fake-trainer") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

func (j *job) pidIn(file string) int {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	pid := 0
	for _, c := range strings.TrimSpace(string(b)) {
		pid = pid*10 + int(c-'0')
	}
	return pid
}

func (j *job) tell(what string) {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.dir, what), nil, 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// process is a started program.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout buffer
	stderr buffer
}

// buffer is written by the copier of exec and read by the test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (j *job) run(args ...string) *process {
	j.t.Helper()
	return j.start(append([]string{"run", "--dir", j.dir, "--host", "h", "--nproc", "2", "--"}, args...)...)
}

func (j *job) start(args ...string) *process {
	j.t.Helper()
	p := &process{t: j.t, cmd: exec.Command("phalanx", args...)}
	p.cmd.Env = append(os.Environ(), "FAKE_DAEMON=1")
	p.cmd.Dir = j.t.TempDir()
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// ends waits for the end and wants a code.
func (p *process) ends(code int) {
	p.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.cmd.Wait() // the exit code tells
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		p.t.Fatalf("the run does not end\nstdout:\n%s\nstderr:\n%s", p.stdout.String(), p.stderr.String())
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", got, code, p.stdout.String(), p.stderr.String())
	}
}

func (p *process) says(b *buffer, want ...string) {
	p.t.Helper()
	for _, w := range want {
		if !strings.Contains(b.String(), w) {
			p.t.Errorf("output has no %q:\n%s\nstderr:\n%s", w, p.stdout.String(), p.stderr.String())
		}
	}
}

// poll waits until f has no error any more.
func (j *job) poll(f func() error) {
	j.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			j.t.Fatalf("waited in vain: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// up waits until all daemons live and the trainers have said so.
func (j *job) up(n int) []control.Living {
	j.t.Helper()
	var living []control.Living
	j.poll(func() error {
		living = control.Find(j.dir)
		if len(living) < n {
			return errNotYet
		}
		for i := range n {
			if b, _ := os.ReadFile(filepath.Join(j.dir, "log", "h."+itoa(i)+".1.log")); !bytes.Contains(b, []byte("up\n")) {
				return errNotYet
			}
			ctx, cancel := context.WithTimeout(j.t.Context(), 5*time.Second)
			_, err := control.Status(ctx, living[i], false)
			cancel()
			if err != nil {
				return err
			}
		}
		return nil
	})
	return living
}

// reborn waits until a daemon has another pid.
func (j *job) reborn(old control.Living) {
	j.t.Helper()
	j.poll(func() error {
		if l, ok := control.FindOne(j.dir, old.Index); !ok || l.PID == old.PID {
			return errNotYet
		}
		return nil
	})
}

func (j *job) trainer(index int) int {
	return j.pidIn(filepath.Join(j.dir, "members", itoa(index), "trainer"))
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

const doneLine = "phalanx: done step=9 generation=2 digest=00000000000000010000000000000002\n"

func TestRunRestartsDaemons(t *testing.T) {
	j := newJob(t)
	p := j.run("fake-trainer")
	living := j.up(2)
	trainer := j.trainer(1)
	kill(t, living[1].PID, syscall.SIGKILL)
	j.reborn(living[1])
	kill(t, living[0].PID, syscall.SIGKILL)
	j.reborn(living[0])
	if got := j.trainer(1); got != trainer || !alive(trainer) {
		t.Errorf("trainer is %d, want %d to live on", got, trainer)
	}
	j.up(2)
	j.tell("finish")
	p.ends(0)
	p.says(&p.stdout, "h/0 | trainer is up\n", "h/1 | trainer is up\n")
	if out := p.stdout.String(); !strings.HasSuffix(out, doneLine) {
		t.Errorf("last line is not %q:\n%s", doneLine, out)
	}
	p.says(&p.stderr, "daemon died", "SIGKILL")
}

func alive(pid int) bool {
	start, err := membership.StartTime(pid)
	return err == nil && membership.Alive(pid, start)
}

func TestRunGivesUpOnACrashLoop(t *testing.T) {
	j := newJob(t)
	j.tell("crash")
	p := j.run("fake-trainer")
	p.ends(1)
	p.says(&p.stderr, "died 5 times at its start", "exit status 3", "the fake disk is full", "daemon.h.")
}

func TestRunEndsWhenAMemberCannotBegin(t *testing.T) {
	j := newJob(t)
	j.tell("refuse")
	p := j.run("fake-trainer")
	p.ends(10)
	p.says(&p.stderr, "the fake key is refused", "hint: phalanx key new")
}

func TestRunHoldsTheDirectory(t *testing.T) {
	j := newJob(t)
	p := j.run("fake-trainer")
	j.up(2)
	second := j.run("fake-trainer")
	second.ends(9)
	second.says(&second.stderr, "pid "+itoa(p.cmd.Process.Pid))
	j.tell("finish")
	p.ends(0)
}

func TestRunAttachesToLivingDaemons(t *testing.T) {
	j := newJob(t)
	first := j.run("fake-trainer")
	living := j.up(2)
	trainer := j.trainer(0)
	kill(t, first.cmd.Process.Pid, syscall.SIGKILL)
	first.ends(-1)

	other := j.run("fake-trainer", "--other")
	other.ends(2)
	other.says(&other.stderr, "command is fake-trainer --other, running is fake-trainer", "settings")

	p := j.run("fake-trainer")
	j.poll(func() error {
		if strings.Count(p.stderr.String(), "attached to a living daemon") < 2 {
			return errNotYet
		}
		return nil
	})
	kill(t, living[0].PID, syscall.SIGKILL) // no child of this run
	j.reborn(living[0])
	if !alive(trainer) {
		t.Error("the trainer did not outlive run and daemon")
	}
	j.up(2)
	j.tell("finish")
	p.ends(0)
	if out := p.stdout.String(); out != doneLine {
		t.Errorf("lines of before were printed again:\n%s", out)
	}
}

func TestRunStopsInOrder(t *testing.T) {
	j := newJob(t)
	p := j.run("fake-trainer")
	j.up(2)
	kill(t, p.cmd.Process.Pid, syscall.SIGTERM)
	p.ends(75)
	p.says(&p.stderr, "stopped after step 7", "hint: the same command goes on from there")
	// The next run starts anew and does not take the old outcomes for its own.
	p = j.run("fake-trainer")
	j.up(2)
	j.tell("finish")
	p.ends(0)
}

func TestRunKillsAtTheSecondInterrupt(t *testing.T) {
	j := newJob(t)
	j.tell("deaf")
	p := j.run("fake-trainer")
	living := j.up(2)
	pids := []int{living[0].PID, living[1].PID, j.trainer(0), j.trainer(1)}
	kill(t, p.cmd.Process.Pid, syscall.SIGINT)
	j.poll(func() error {
		if !strings.Contains(p.stderr.String(), "interrupt again to kill") {
			return errNotYet
		}
		return nil
	})
	kill(t, p.cmd.Process.Pid, syscall.SIGINT)
	p.ends(130)
	for _, pid := range pids {
		if alive(pid) {
			stat, _ := os.ReadFile("/proc/" + itoa(pid) + "/stat")
			t.Errorf("process %d of %v lives on: %s\n%s", pid, pids, stat, p.stderr.String())
		}
	}
}

func TestRunPassesSignalsOn(t *testing.T) {
	j := newJob(t)
	p := j.run("fake-trainer")
	j.up(2)
	kill(t, p.cmd.Process.Pid, syscall.SIGUSR1)
	j.poll(func() error {
		if strings.Count(p.stdout.String(), "| trainer got USR1") < 2 {
			return errNotYet
		}
		return nil
	})
	j.tell("finish")
	p.ends(0)
}

func TestVerbsPassOverAStoppedDaemon(t *testing.T) {
	j := newJob(t)
	p := j.run("fake-trainer")
	living := j.up(2)
	kill(t, living[0].PID, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(living[0].PID, syscall.SIGCONT) }()
	for _, args := range [][]string{{"status"}, {"members"}} {
		q := j.start(append(args, "--dir", j.dir)...)
		q.ends(0)
		q.says(&q.stdout, itoa(living[1].PID))
	}
	q := j.start("drain", "h/1", "--dir", j.dir)
	q.ends(4) // the second daemon's refusal
	kill(t, living[0].PID, syscall.SIGCONT)
	j.tell("finish")
	p.ends(0)
}

func TestReadingVerbsAskTheDaemon(t *testing.T) {
	j := newJob(t)
	p := j.run("fake-trainer")
	living := j.up(2)
	for want, args := range map[string][]string{
		"job j  phase running  generation 1  step 5  leader h/0": {"status"},
		"no change of the world yet":                             {"status", "--explain"},
		`"daemon_pid": ` + itoa(living[0].PID):                   {"members", "--json"},
		`"authority_epoch": 0`:                                   {"status", "--json"},
	} {
		q := j.start(append(args, "--dir", j.dir)...)
		q.ends(0)
		q.says(&q.stdout, want)
	}
	q := j.start("drain", "h/1", "--dir", j.dir)
	q.ends(4)
	q.says(&q.stderr, "no leader", "hint: wait for an election")
	j.tell("finish")
	p.ends(0)
}

// A member that has been at work and cannot be started for a while, as on a full disk, does not end the run of its host: it is
// tried again until it can.
func TestADaemonThatCannotBeginForAWhileComesBack(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	p := j.run("fake-trainer")
	living := j.up(2)
	time.Sleep(1100 * time.Millisecond) // longer than a daemon lives that does not get to work
	j.tell("crash")
	kill(t, living[1].PID, syscall.SIGKILL)
	j.poll(func() error {
		if strings.Count(p.stderr.String(), "started again") < 6 { // more often than one that never began may die
			return errNotYet
		}
		return nil
	})
	if err := os.Remove(filepath.Join(j.dir, "crash")); err != nil {
		t.Fatal(err)
	}
	j.reborn(living[1])
	j.tell("finish")
	p.ends(0)
}
