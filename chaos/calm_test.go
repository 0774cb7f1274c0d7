// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"bufio"
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/node"
)

// TestTrainerOutlivesDaemonsAndRuns: a trainer that prints in every step keeps its pid, and its output is whole, while its daemon
// is killed twenty times and the run three times.
func TestTrainerOutlivesDaemonsAndRuns(t *testing.T) {
	t.Parallel()
	const daemons, runs = 20, 3
	j := newJob(t, 3, 1500, 25*time.Millisecond, "--log-every", "1", "--slots", "4", "--global-batch", "4")
	j.train = append(j.train, "--slots", "4", "--global-batch", "4")
	j.run()
	s := j.until("three ranks train", both(whole(3), at(5)))
	first := s
	for n := range daemons {
		// Each member in turn, so that none dies several times within a second, and the run in between.
		if n%(daemons/runs) == daemons/runs-1 && len(j.runs) <= runs {
			p := j.newest()
			p.signal(syscall.SIGKILL)
			<-p.ended
			j.run()
			j.until("the new run has taken over", func(*node.Status) bool {
				return strings.Count(j.newest().errs(), "attached to a living daemon") == 3
			})
		}
		m := find(t, s, s.World[n%3])
		j.strike(s, nil, []node.MemberStatus{m})
		s = j.until("its daemon is back", both(whole(3), restarted(m), at(s.Step+5)))
	}
	if len(j.runs) != runs+1 {
		t.Errorf("the run was killed %d times, want %d", len(j.runs)-1, runs)
	}
	for _, m := range first.Members {
		if now := find(t, s, m.Member); now.TrainerPID != m.TrainerPID || now.Incarnation != m.Incarnation {
			t.Errorf("the trainer of %s was pid %d and is %d", m.Member, m.TrainerPID, now.TrainerPID)
		}
	}
	if s.Generation != first.Generation {
		t.Errorf("%d kills of daemons made generation %d of %d", daemons, s.Generation, first.Generation)
	}
	j.interrupt()
	for id, lines := range j.printed() {
		for i, step := range lines {
			if step != phalanx.Step(i+1) {
				t.Fatalf("%s printed step %d after %d steps", id, step, i)
			}
		}
		if len(lines) < int(s.Step) {
			t.Errorf("%s printed %d steps of %d", id, len(lines), s.Step)
		}
	}
}

// interrupt ends the job in order, before its last step.
func (j *job) interrupt() {
	j.t.Helper()
	p := j.newest()
	p.signal(syscall.SIGTERM)
	if p = j.end(); p.code != 75 {
		j.t.Errorf("the run ended with %d, want 75\n%s", p.code, tail(p.errs(), 15))
	}
	j.check(j.t)
}

var stepLine = regexp.MustCompile(`(?m)^step=(\d+) `)

// printed are the steps that each life of a trainer has printed, by the name of its log.
func (j *job) printed() map[string][]phalanx.Step {
	out := map[string][]phalanx.Step{}
	names, _ := filepath.Glob(filepath.Join(j.dir, "log", j.host+".*.log"))
	for _, name := range names {
		for _, m := range stepLine.FindAllStringSubmatch(content(name), -1) {
			step, _ := strconv.ParseUint(m[1], 10, 64)
			out[filepath.Base(name)] = append(out[filepath.Base(name)], phalanx.Step(step))
		}
	}
	return out
}

// calls are the system calls that a healthy step may make in the trainer, and for what.
var calls = map[string]string{
	"futex": "bells, and Go's own locks", "nanosleep": "Go's monitor", "clock_nanosleep": "Go's monitor", "clock_gettime": "where the kernel has no vDSO for the clock",
	"epoll_pwait": "Go's timers", "epoll_pwait2": "Go's timers", "epoll_wait": "Go's timers", "write": "its output, and Go waking its own timer thread", "read": "Go waking its own timer thread",
	"tgkill": "Go's preemption", "getpid": "Go's preemption", "gettid": "Go's preemption", "rt_sigreturn": "Go's preemption", "rt_sigprocmask": "a new thread", "sigaltstack": "a new thread",
	"clone": "a new thread", "clone3": "a new thread", "set_robust_list": "a new thread", "rseq": "a new thread", "exit": "a thread's end",
	"sched_yield": "Go's locks", "sched_getaffinity": "Go looks at its cores", "restart_syscall": "a call that the tracer broke",
	"mmap": "Go's heap", "munmap": "Go's heap", "madvise": "Go's heap", "mprotect": "Go's heap", "prctl": "names of Go's heap",
	"pread64": "Go looks at its cores", "openat": "", "close": "",
}

// TestHealthyStepAsksTheKernelForLittle traces a trainer for a hundred steps: no call is about a socket, and all are on a list.
func TestHealthyStepAsksTheKernelForLittle(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatalf("this test needs strace (Debian: apt-get install strace): %v", err)
	}
	j := newJob(t, 3, 2000, 10*time.Millisecond, "--log-every", "1")
	j.run()
	s := j.until("three ranks train", both(whole(3), at(20)))
	m := follower(t, s)
	out := filepath.Join(t.TempDir(), "trace")
	var said bytes.Buffer
	tracer := exec.Command(strace, "-f", "-qq", "-y", "-o", out, "-p", strconv.Itoa(m.TrainerPID))
	tracer.Stderr = &said
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1) // 1: it ends once
	go func() { ended <- tracer.Wait() }()
	t.Cleanup(func() { _ = tracer.Process.Kill() }) // has ended
	for end := time.Now().Add(patience); ; time.Sleep(pollTime) {
		if info, err := os.Stat(out); err == nil && info.Size() > 0 {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("strace cannot trace a process here; the container or kernel must permit ptrace (CAP_SYS_PTRACE): %v\n%s", err, &said)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("strace has traced nothing: %s", &said)
		}
	}
	from := j.until("it is traced", whole(3))
	to := j.until("a hundred steps later", at(from.Step+101))
	_ = tracer.Process.Signal(syscall.SIGINT) // it detaches
	if err := <-ended; err != nil && !strings.Contains(err.Error(), "signal: interrupt") {
		t.Errorf("strace: %v\n%s", err, &said)
	}
	if to.Generation != s.Generation || find(t, to, m.Member).TrainerPID != m.TrainerPID {
		t.Fatalf("the steps were not healthy: generation %d, then %d", s.Generation, to.Generation)
	}
	counts := map[string]int{}
	trace := bufio.NewScanner(strings.NewReader(content(out)))
	for trace.Scan() {
		line := trace.Text()
		call := callOf(line)
		if call == "" {
			continue
		}
		counts[call]++
		if bad := forbidden(call, line, j.dir); bad != "" {
			t.Errorf("%s: %s", bad, line)
		}
	}
	if steps := to.Step - from.Step; counts["futex"] < int(steps) || counts["write"] < int(steps) {
		t.Errorf("%d steps and %v: the trace does not show them", steps, counts)
	}
	for _, call := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%5d %s", counts[call], call)
	}
	j.interrupt()
}

var callLine = regexp.MustCompile(`^\d+ +(?:<\.\.\. )?([a-z][a-z0-9_]*)(?:\(| resumed)`)

// callOf is the system call that a line of a trace begins, "" for its second half, signals and ends.
func callOf(line string) string {
	m := callLine.FindStringSubmatch(line)
	if m == nil || strings.Contains(line, "<... ") {
		return ""
	}
	return m[1]
}

// forbidden says why a healthy step must not make a call.
func forbidden(call, line, dir string) string {
	why, listed := calls[call]
	switch {
	case strings.Contains(line, "<socket:") || strings.Contains(line, "<TCP") || strings.Contains(line, "<UDP") || strings.Contains(line, "<UNIX"):
		return "a call about a socket"
	case !listed:
		return "a call that is not on the list"
	case call == "write" && !strings.Contains(line, "<"+dir+"/log/") && !strings.Contains(line, "eventfd"):
		return "a write to something else than its output"
	case why == "" && !strings.Contains(line, "/sys/fs/cgroup") && !strings.Contains(line, "/proc/"):
		return "a file that is none of the kernel's own"
	}
	return ""
}
