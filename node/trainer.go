// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"phalanx"
)

// trainerProcess is a training process of one life: started by this daemon, or adopted from its predecessor.
type trainerProcess struct {
	system System
	pid    int
	start  uint64
	own    bool // a child of this process
}

// startTrainer starts the command. It outlives this daemon. exited is called once, from another goroutine.
func startTrainer(cfg *Config, paths Paths, who phalanx.Incarnate, env []string, exited func(how string, code int)) (*trainerProcess, error) {
	pid, start, err := paths.system.Start(Command{cfg.Command, env, paths.TrainerLog(who)}, exited)
	if err != nil {
		return nil, err
	}
	return &trainerProcess{system: paths.system, pid: pid, start: start, own: true}, nil
}

// kill ends the trainer and what it forked.
func (t *trainerProcess) kill() {
	if t != nil && t.pid > 0 {
		t.system.Kill(t.pid, t.start)
	}
}

func (t *trainerProcess) alive() bool { return t.system.Alive(t.pid, t.start) }

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
