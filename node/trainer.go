// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"phalanx"
	"phalanx/membership"
)

// trainerProcess is a training process of one life: started by this daemon, or adopted from its predecessor.
type trainerProcess struct {
	pid   int
	start uint64
	own   bool // a child of this process
}

// startTrainer starts the command in a process group of its own. It outlives this daemon: no pipe and no parent-death
// signal ties it, its output goes to a file. exited is called once, from another goroutine.
func startTrainer(cfg *Config, paths Paths, who phalanx.Incarnate, env []string, exited func(how string, code int)) (*trainerProcess, error) {
	name := paths.TrainerLog(who)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("start trainer: %w", err)
	}
	out, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start trainer: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start trainer %q: %w", cfg.Command[0], err)
	}
	start, _ := membership.StartTime(cmd.Process.Pid) // 0 when it has ended already; wait tells
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, cmd.Process.Pid, 0)
	go func() { // ends with the process
		err := cmd.Wait()
		how, code := describeExit(cmd.ProcessState, err)
		exited(how, code)
	}()
	return &trainerProcess{pid: cmd.Process.Pid, start: start, own: true}, nil
}

func describeExit(s *os.ProcessState, err error) (string, int) {
	if s == nil {
		return fmt.Sprintf("wait failed: %v", err), -1
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return fmt.Sprintf("killed by signal %d (%s)", int(w.Signal()), w.Signal()), 128 + int(w.Signal())
	}
	return fmt.Sprintf("exited with status %d", s.ExitCode()), s.ExitCode()
}

// kill ends the whole process group: forked data workers must not outlive their trainer.
func (t *trainerProcess) kill() {
	if t == nil || t.pid <= 0 {
		return
	}
	if start, err := membership.StartTime(t.pid); err == nil && t.start != 0 && start != t.start {
		return // the pid belongs to somebody else by now
	}
	if err := syscall.Kill(-t.pid, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
		_ = syscall.Kill(t.pid, syscall.SIGKILL)
	}
}

// healthCheck runs the user's command before a start of the trainer. Non-zero keeps the member out, with the last line of
// its output as the reason.
func healthCheck(ctx context.Context, command string, deadline time.Duration) error {
	if command == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	last := lines[len(lines)-1]
	if ctx.Err() != nil {
		return fmt.Errorf("health check did not end within %s: %s", deadline, last)
	}
	return fmt.Errorf("health check failed (%w): %s", err, last)
}

// lastLine is the last line of a trainer's output, for messages.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 4096 {
		_, _ = f.Seek(-4096, 2)
	}
	b := make([]byte, 4096)
	n, _ := f.Read(b)
	lines := strings.Split(strings.TrimSpace(string(b[:n])), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
