// SPDX-License-Identifier: Apache-2.0

package job

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Job is one `phalanx run`.
type Job struct {
	Dir string
	// Output is the file that the run's stdout and stderr go to.
	Output string
	// Ended is closed when the run has ended.
	Ended chan struct{}

	program string
	every   time.Duration
	most    time.Duration // that Until waits
	cmd     *exec.Cmd
	err     error // of its end, to be read after that
}

// Plan says what is started.
type Plan struct {
	Bin     string   // folder of the programs
	Dir     string   // of the job
	Flags   []string // of `phalanx run`, besides --dir
	Command []string // of the trainer
	Every   time.Duration
	// Patience is how long Until waits at most; 0 means half a minute.
	Patience time.Duration
}

// Start starts a job.
func Start(p Plan) (*Job, error) {
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return nil, err
	}
	j := &Job{
		Dir: p.Dir, Output: filepath.Join(p.Dir, "run.out"), Ended: make(chan struct{}),
		program: filepath.Join(p.Bin, "phalanx"), every: p.Every, most: cmp.Or(p.Patience, 30*time.Second),
	}
	out, err := os.Create(j.Output)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	args := append([]string{"run", "--dir", p.Dir}, p.Flags...)
	j.cmd = exec.Command(j.program, append(append(args, "--"), p.Command...)...)
	j.cmd.Stdout, j.cmd.Stderr = out, out
	// A group of its own: an interrupt of the caller is passed on in order, by End.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the run
		j.err = j.cmd.Wait()
		close(j.Ended)
	}()
	return j, nil
}

// PID is the run's own process.
func (j *Job) PID() int { return j.cmd.Process.Pid }

// Finish waits for a job that ends by itself.
func (j *Job) Finish(ctx context.Context) error {
	select {
	case <-j.Ended:
	case <-ctx.Done():
		return fmt.Errorf("it did not end: %w\n%s", ctx.Err(), j.Tail())
	}
	if j.err != nil {
		return fmt.Errorf("it did not end well: %w\n%s", j.err, j.Tail())
	}
	return nil
}

// End stops a job whatever it does: in order for the given time, then killed. It removes what the job keeps in shared memory
// for a resumption; its folder stays.
func (j *Job) End(patience time.Duration) {
	for _, wait := range []time.Duration{patience, 2 * time.Second} { // the second interrupt kills
		_ = j.cmd.Process.Signal(os.Interrupt) // has ended
		select {
		case <-j.Ended:
		case <-time.After(wait):
			continue
		}
		break
	}
	select {
	case <-j.Ended:
	default:
		_ = j.cmd.Process.Kill()
		<-j.Ended
	}
	j.Sweep()
	if real, err := filepath.EvalSymlinks(j.Dir); err == nil {
		sum := sha256.Sum256([]byte(real)) // names the folder's files there
		files, _ := filepath.Glob("/dev/shm/phalanx." + hex.EncodeToString(sum[:6]) + ".*")
		for _, f := range files {
			_ = os.Remove(f) // gone already is as good
		}
	}
}

// Sweep kills daemons and trainers of this job that a killed run has left. It knows them by the job's folder in their
// command line and environment.
func (j *Job) Sweep() {
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

func (j *Job) owns(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
	if bytes.Contains(line, []byte("daemon\x00--dir\x00"+j.Dir+"\x00")) {
		return true
	}
	environ, _ := os.ReadFile(filepath.Join(proc, "environ"))
	return bytes.Contains(environ, []byte("PHALANX_SOCKET="+j.Dir+"/"))
}

// Look asks the job once.
func (j *Job) Look(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, j.program, "status", "--dir", j.Dir, "--explain", "--json").Output()
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", j.Dir, err)
	}
	s := new(Status)
	if err := json.Unmarshal(out, s); err != nil {
		return nil, fmt.Errorf("status of %s: %w", j.Dir, err)
	}
	return s, nil
}

// ErrEnded is returned by Until when the run ended instead.
var ErrEnded = errors.New("the run ended")

// Until asks until the answer is as wanted, for as long as the plan allows. While no daemon answers it asks on.
func (j *Job) Until(ctx context.Context, what string, ok func(*Status) bool) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, j.most)
	defer cancel()
	var last *Status
	for {
		if s, err := j.Look(ctx); err == nil {
			if last = s; ok(s) {
				return s, nil
			}
		}
		select {
		case <-j.Ended:
			return last, fmt.Errorf("wait until %s: %w too early\n%s", what, ErrEnded, j.Tail())
		case <-ctx.Done():
			seen := "no daemon answered"
			if last != nil {
				seen = fmt.Sprintf("phase %s, generation %d, step %d, world %s", last.Phase, last.Generation, last.Step, strings.Join(last.World, " "))
			}
			return last, fmt.Errorf("wait until %s: %w (%s)\n%s", what, ctx.Err(), seen, j.Tail())
		case <-time.After(j.every):
		}
	}
}

// Tail is the end of the run's output, for messages.
func (j *Job) Tail() string {
	b, _ := os.ReadFile(j.Output)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "  | " + strings.Join(lines[max(0, len(lines)-15):], "\n  | ")
}

// Kill sends SIGKILL to processes and returns when the first was sent.
func Kill(pids ...int) (unixNS int64, err error) {
	at := time.Now().UnixNano()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return 0, fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	return at, nil
}

// Pause waits unless the context ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
