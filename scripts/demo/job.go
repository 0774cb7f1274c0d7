// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// status is the part of `phalanx status --explain --json` that the demo reads.
type status struct {
	Generation  uint64       `json:"generation"`
	Phase       string       `json:"phase"`
	Step        uint64       `json:"step"`
	Leader      string       `json:"leader"`
	World       []string     `json:"world"`
	ResumeStep  uint64       `json:"resume_step"`
	Members     []member     `json:"members"`
	Transitions []transition `json:"transitions"`
}

type member struct {
	Member     string `json:"member"`
	Rank       int    `json:"rank"`
	State      string `json:"state"`
	DaemonPID  int    `json:"daemon_pid"`
	TrainerPID int    `json:"trainer_pid"`
}

type transition struct {
	Generation generation `json:"generation"`
	Cause      string     `json:"cause"`
	Planned    bool       `json:"planned"`
	Rewind     bool       `json:"rewind"`
	Members    []string   `json:"members"`
	Lost       []struct {
		Member string `json:"member"`
	} `json:"lost"`
	ResumeStep uint64 `json:"resume_step"`
	NewestStep uint64 `json:"newest_step"`
	Seconds    *struct {
		Detect    float64 `json:"detect"`
		Agree     float64 `json:"agree"`
		Seal      float64 `json:"seal"`
		Form      float64 `json:"form"`
		Heal      float64 `json:"heal"`
		FirstStep float64 `json:"first_step"`
	} `json:"seconds"`
}

func (s *status) find(id string) *member {
	for i := range s.Members {
		if s.Members[i].Member == id {
			return &s.Members[i]
		}
	}
	return nil
}

// whole reports whether all ranks train, with daemon and trainer alive.
func (s *status) whole() bool {
	if s.Phase != "running" || len(s.World) != ranks || s.Leader == "" {
		return false
	}
	for _, id := range s.World {
		if m := s.find(id); m == nil || m.DaemonPID <= 1 || m.TrainerPID <= 1 || m.Rank < 0 {
			return false
		}
	}
	return true
}

// job is one `phalanx run`.
type job struct {
	plan
	dir   string
	cmd   *exec.Cmd
	out   string        // file that its stdout goes to
	ended chan struct{} // closed when it has ended
	err   error         // of its end, to be read after that
}

func start(ctx context.Context, p plan, dir string, floor time.Duration) (*job, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	j := &job{plan: p, dir: dir, out: filepath.Join(dir, "run.out"), ended: make(chan struct{})}
	args := []string{"run", "--dir", dir, "--host", "demo", "--nproc", strconv.Itoa(ranks), "--save-every", "50", "--",
		filepath.Join(p.bin, "phalanx-lm"), "--steps", strconv.Itoa(p.steps), "--step-floor", floor.String()}
	if p.data != "" {
		args = append(args, "--data", p.data)
	}
	out, err := os.Create(j.out)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	j.cmd = exec.Command(filepath.Join(p.bin, "phalanx"), args...)
	j.cmd.Stdout, j.cmd.Stderr = out, out
	// A group of its own: an interrupt of the demo is passed on in order, by kill.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the run
		j.err = j.cmd.Wait()
		close(j.ended)
	}()
	if ctx.Err() != nil {
		j.kill()
	}
	return j, ctx.Err()
}

// kill ends a run that has not ended by itself: the second interrupt kills.
func (j *job) kill() {
	for range 2 {
		_ = j.cmd.Process.Signal(os.Interrupt) // has ended
		select {
		case <-j.ended:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
	select {
	case <-j.ended:
	case <-time.After(5 * time.Second):
		_ = j.cmd.Process.Kill()
	}
	j.sweep()
}

// sweep kills daemons and trainers of this job that are left: what was started between a look at the job and its end. It
// knows them by the job's folder in their command line and environment.
func (j *job) sweep() {
	for range 20 {
		left := 0
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == os.Getpid() || !j.owns(pid) {
				continue
			}
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				left++
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond) // until the kernel has ended them
	}
}

func (j *job) owns(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
	if bytes.Contains(line, []byte("daemon\x00--dir\x00"+j.dir+"\x00")) {
		return true
	}
	environ, _ := os.ReadFile(filepath.Join(proc, "environ"))
	return bytes.Contains(environ, []byte("PHALANX_SOCKET="+j.dir+"/"))
}

// look asks the job once.
func (j *job) look(ctx context.Context) (*status, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(j.bin, "phalanx"), "status", "--dir", j.dir, "--explain", "--json").Output()
	if err != nil {
		return nil, err
	}
	s := new(status)
	if err := json.Unmarshal(out, s); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

var errEnded = errors.New("the run ended")

// until asks until the answer is as wanted. While no daemon answers it asks on.
func (j *job) until(ctx context.Context, what string, ok func(*status) bool) (*status, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var last *status
	for {
		if s, err := j.look(ctx); err == nil {
			if last = s; ok(s) {
				return s, nil
			}
		}
		select {
		case <-j.ended:
			return nil, fmt.Errorf("wait until %s: %w too early\n%s", what, errEnded, j.tail())
		case <-ctx.Done():
			seen := "no daemon answered"
			if last != nil {
				seen = fmt.Sprintf("phase %s, generation %d, step %d, world %s", last.Phase, last.Generation, last.Step, strings.Join(last.World, " "))
			}
			return nil, fmt.Errorf("wait until %s: %w (%s)\n%s", what, ctx.Err(), seen, j.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var doneLine = regexp.MustCompile(`(?m)^phalanx: done step=(\d+) generation=([\d.]+) digest=([0-9a-f]{32})\n\z`)

// finish waits for the end and returns the digest of the last line.
func (j *job) finish(ctx context.Context) (string, error) {
	select {
	case <-j.ended:
	case <-ctx.Done():
		j.kill()
		return "", fmt.Errorf("it did not end: %w\n%s", ctx.Err(), j.tail())
	}
	out, err := os.ReadFile(j.out)
	if err == nil {
		err = j.err
	}
	m := doneLine.FindSubmatch(out)
	if err != nil || m == nil {
		return "", fmt.Errorf("it did not end well: %v\n%s", err, j.tail())
	}
	fmt.Printf("   done: step %s, generation %s, digest %s\n", m[1], m[2], m[3])
	return string(m[3]), nil
}

// tail is the end of the run's output, for messages.
func (j *job) tail() string {
	b, _ := os.ReadFile(j.out)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "  | " + strings.Join(lines[max(0, len(lines)-15):], "\n  | ")
}

// generation is a bare number in JSON while the authority has not changed hands.
type generation struct{ Number uint64 }

func (g *generation) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &g.Number) }
