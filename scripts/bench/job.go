// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// status is the part of `phalanx status --explain --json` that is read here.
type status struct {
	Generation  uint64       `json:"generation"`
	Phase       string       `json:"phase"`
	Step        uint64       `json:"step"`
	Leader      string       `json:"leader"`
	Fresh       bool         `json:"fresh"`
	World       []string     `json:"world"`
	Members     []member     `json:"members"`
	Transitions []transition `json:"transitions"`
}

type member struct {
	Member     string `json:"member"`
	Rank       int    `json:"rank"`
	DaemonPID  int    `json:"daemon_pid"`
	TrainerPID int    `json:"trainer_pid"`
}

// transition is one change of the world as the job tells it.
type transition struct {
	Generation generation  `json:"generation"`
	Cause      string      `json:"cause"`
	Planned    bool        `json:"planned"`
	Rewind     bool        `json:"rewind"`
	Members    []string    `json:"members"`
	Lost       []incarnate `json:"lost"`
	Healing    []string    `json:"healing"`
	Evidence   []evidence  `json:"evidence"`
	ResumeStep uint64      `json:"resume_step"`
	NewestStep uint64      `json:"newest_step"`
	UnixNS     int64       `json:"unix_ns"` // when the change was proposed, everybody having sealed
	Seconds    *seconds    `json:"seconds"`
}

// generation is a bare number in JSON while the authority has not changed hands.
type generation struct{ Number uint64 }

func (g *generation) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &g.Number) }

type incarnate struct {
	Member      string `json:"member"`
	Incarnation uint64 `json:"incarnation"`
}

type evidence struct {
	Kind   string    `json:"kind"`
	About  incarnate `json:"about"`
	Source string    `json:"source"`
	UnixNS int64     `json:"unix_ns"`
	Detail string    `json:"detail"`
}

type seconds struct {
	Detect    float64 `json:"detect"`
	Agree     float64 `json:"agree"`
	Seal      float64 `json:"seal"`
	Form      float64 `json:"form"`
	Heal      float64 `json:"heal"`
	FirstStep float64 `json:"first_step"`
}

// committed is when the first step of the generation was committed, 0 while that is not recorded.
func (t *transition) committed() int64 {
	if t.Seconds == nil {
		return 0
	}
	s := t.Seconds
	return t.UnixNS + int64((s.Agree+s.Form+s.Heal+s.FirstStep)*1e9)
}

func (s *status) find(id string) *member {
	i := slices.IndexFunc(s.Members, func(m member) bool { return m.Member == id })
	if i < 0 {
		return nil
	}
	return &s.Members[i]
}

// whole reports whether all ranks train, with daemons and trainers alive, and all that there is to know of the last change
// is recorded.
func (s *status) whole() bool {
	if s.Phase != "running" || len(s.World) != ranks || s.Leader == "" || !s.Fresh || len(s.Transitions) == 0 {
		return false
	}
	for _, id := range s.World {
		if m := s.find(id); m == nil || m.DaemonPID <= 1 || m.TrainerPID <= 1 || m.Rank < 0 {
			return false
		}
	}
	return s.Transitions[len(s.Transitions)-1].Seconds != nil
}

// job is one `phalanx run`.
type job struct {
	plan
	dir   string
	cmd   *exec.Cmd
	out   string        // file that its output goes to
	ended chan struct{} // closed when it has ended
	err   error         // of its end, to be read after that
}

// start runs a job of all ranks in a folder of its own. Nothing is published before the last step: no disk is measured here.
func start(p plan, dir string, command ...string) (*job, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	j := &job{plan: p, dir: dir, out: filepath.Join(dir, "run.out"), ended: make(chan struct{})}
	out, err := os.Create(j.out)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	args := append([]string{"run", "--dir", dir, "--host", "bench", "--nproc", strconv.Itoa(ranks), "--save-every", "100000000", "--"}, command...)
	j.cmd = exec.Command(filepath.Join(p.bin, "phalanx"), args...)
	j.cmd.Stdout, j.cmd.Stderr = out, out
	// A group of its own: an interrupt of the benchmark is passed on in order, by end.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the run
		j.err = j.cmd.Wait()
		close(j.ended)
	}()
	return j, nil
}

// finish waits for a job that ends by itself.
func (j *job) finish(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-j.ended:
	case <-ctx.Done():
		return fmt.Errorf("it did not end: %w\n%s", ctx.Err(), j.tail())
	}
	if j.err != nil {
		return fmt.Errorf("it did not end well: %w\n%s", j.err, j.tail())
	}
	return nil
}

// end stops a job whatever it does, and removes what it keeps in shared memory for a resumption. Its logs stay.
func (j *job) end() {
	for _, wait := range []time.Duration{5 * time.Second, 2 * time.Second} { // stop in order, then kill
		_ = j.cmd.Process.Signal(os.Interrupt) // has ended
		select {
		case <-j.ended:
		case <-time.After(wait):
			continue
		}
		break
	}
	select {
	case <-j.ended:
	default:
		_ = j.cmd.Process.Kill()
		<-j.ended
	}
	j.sweep()
	if real, err := filepath.EvalSymlinks(j.dir); err == nil {
		sum := sha256.Sum256([]byte(real)) // names the folder's files there
		files, _ := filepath.Glob("/dev/shm/phalanx." + hex.EncodeToString(sum[:6]) + ".*")
		for _, f := range files {
			_ = os.Remove(f) // gone already is as good
		}
	}
}

// sweep kills daemons and trainers of this job that a killed run has left. It knows them by the job's folder in their
// command line and environment.
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
			return last, fmt.Errorf("wait until %s: %w too early\n%s", what, errEnded, j.tail())
		case <-ctx.Done():
			seen := "no daemon answered"
			if last != nil {
				seen = fmt.Sprintf("phase %s, generation %d, step %d, world %s", last.Phase, last.Generation, last.Step, strings.Join(last.World, " "))
			}
			return last, fmt.Errorf("wait until %s: %w (%s)\n%s", what, ctx.Err(), seen, j.tail())
		case <-time.After(40 * time.Millisecond):
		}
	}
}

// calm waits until all ranks train and some steps of peace were committed.
func (j *job) calm(ctx context.Context) (*status, error) {
	s, err := j.until(ctx, "all ranks train", (*status).whole)
	if err != nil {
		return s, err
	}
	enough := s.Step + 5
	return j.until(ctx, "training goes on", func(s *status) bool { return s.whole() && s.Step >= enough })
}

// kill sends SIGKILL and returns when.
func kill(pid int) (int64, error) {
	at := time.Now().UnixNano()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return 0, fmt.Errorf("kill %d: %w", pid, err)
	}
	return at, nil
}

// pause waits unless the context ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tail is the end of the run's output, for messages.
func (j *job) tail() string {
	b, _ := os.ReadFile(j.out)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "  | " + strings.Join(lines[max(0, len(lines)-12):], "\n  | ")
}
