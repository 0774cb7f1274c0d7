// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const patience = 20 * time.Second

// spawn starts a child process that lives until it is killed or the test ends.
func spawn(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return cmd
}

func startOf(t *testing.T, pid int) uint64 {
	t.Helper()
	start, err := StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	return start
}

func newWatch(t *testing.T) *ProcWatch {
	t.Helper()
	w, err := NewProcWatch(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func nextExit(t *testing.T, w *ProcWatch) ProcExit {
	t.Helper()
	select {
	case exit, ok := <-w.Exits():
		if !ok {
			t.Fatal("exits closed")
		}
		return exit
	case <-time.After(patience):
		t.Fatal("no exit was reported")
	}
	return ProcExit{}
}

// waitState polls until the process shows the state.
func waitState(t *testing.T, pid int, want byte) {
	t.Helper()
	var got byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		var err error
		if got, err = StateOf(pid); err != nil {
			t.Fatal(err)
		}
		if got == want {
			return
		}
	}
	t.Fatalf("pid %d is in state %c, want %c", pid, got, want)
}

func TestWatchSeesKillOfUnreapedChild(t *testing.T) {
	w, cmd := newWatch(t), spawn(t)
	pid := cmd.Process.Pid
	start := startOf(t, pid)
	if err := w.Watch(pid, start, "trainer"); err != nil {
		t.Fatal(err)
	}
	if !Alive(pid, start) {
		t.Fatal("a running child is not alive")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Nobody has waited for it: it is a zombie, and that counts as dead.
	exit := nextExit(t, w)
	if exit.Key != "trainer" || exit.PID != pid || exit.At.IsZero() {
		t.Errorf("exit %+v", exit)
	}
	waitState(t, pid, 'Z')
	if Alive(pid, start) {
		t.Error("a zombie is alive")
	}
	// The key is free again.
	if err := w.Watch(pid, start, "trainer"); err != nil {
		t.Fatal(err)
	}
	if exit := nextExit(t, w); exit.Key != "trainer" {
		t.Errorf("zombie at Watch: %+v", exit)
	}
}

func TestWatchReportsTheAlreadyDeadAtOnce(t *testing.T) {
	w, cmd := newWatch(t), spawn(t)
	pid := cmd.Process.Pid
	start := startOf(t, pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := w.Watch(pid, start, 7); err != nil {
		t.Fatal(err)
	}
	if exit := nextExit(t, w); exit.Key != 7 || exit.PID != pid {
		t.Errorf("exit %+v", exit)
	}
	if _, err := StateOf(pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("state of a reaped pid: %v", err)
	}
}

func TestWatchIsNotFooledByReusedPID(t *testing.T) {
	w, cmd := newWatch(t), spawn(t)
	pid := cmd.Process.Pid
	start := startOf(t, pid)
	// The process that had this pid before started earlier.
	if err := w.Watch(pid, start-1, "earlier life"); err != nil {
		t.Fatal(err)
	}
	if exit := nextExit(t, w); exit.Key != "earlier life" {
		t.Errorf("exit %+v", exit)
	}
	if Alive(pid, start-1) || !Alive(pid, start) {
		t.Error("Alive confuses two lives of a pid")
	}
}

func TestUnwatchSilences(t *testing.T) {
	w, a, b := newWatch(t), spawn(t), spawn(t)
	for _, p := range []struct {
		cmd *exec.Cmd
		key string
	}{{a, "a"}, {b, "b"}} {
		if err := w.Watch(p.cmd.Process.Pid, startOf(t, p.cmd.Process.Pid), p.key); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Watch(b.Process.Pid, startOf(t, b.Process.Pid), "b"); err == nil {
		t.Error("a key was taken twice")
	}
	w.Unwatch("a")
	w.Unwatch("unknown")
	_ = a.Process.Kill()
	_ = a.Wait()
	_ = b.Process.Kill()
	if exit := nextExit(t, w); exit.Key != "b" {
		t.Errorf("exit %+v after Unwatch", exit)
	}
}

func TestWatchNeverWaitsForItsReader(t *testing.T) {
	w := newWatch(t)
	const many = 500 // far more than the channel holds
	for key := range many {
		if err := w.Watch(-1, 0, key); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[any]bool{}
	for range many {
		seen[nextExit(t, w).Key] = true
	}
	if len(seen) != many {
		t.Errorf("%d different exits, want %d", len(seen), many)
	}
}

func TestCloseEndsAnUnreadWatch(t *testing.T) {
	w, err := NewProcWatch(nil)
	if err != nil {
		t.Fatal(err)
	}
	for key := range 100 {
		if err := w.Watch(-1, 0, key); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := w.Watch(os.Getpid(), startOf(t, os.Getpid()), "late"); !errors.Is(err, ErrClosed) {
		t.Errorf("watch after close: %v", err)
	}
	for range w.Exits() { // ends because it is closed
	}
}

func TestStoppedProcessIsSeenAndNotDead(t *testing.T) {
	w, cmd := newWatch(t), spawn(t)
	pid := cmd.Process.Pid
	start := startOf(t, pid)
	if err := w.Watch(pid, start, "stalled"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitState(t, pid, 'T')
	if !Alive(pid, start) {
		t.Error("a stopped process is dead")
	}
	sample := func(s Stopped, now time.Time) Stopped {
		stat, err := ReadStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		return s.Sample(now, stat.State, stat.UserTicks+stat.SysTicks)
	}
	t0 := time.Now()
	s := sample(sample(Stopped{}, t0), t0.Add(2*time.Second))
	if got := s.For(t0.Add(2 * time.Second)); got != 2*time.Second {
		t.Errorf("stopped for %v", got)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitState(t, pid, 'S')
	if got := sample(s, t0.Add(3*time.Second)).For(t0.Add(3 * time.Second)); got != 0 {
		t.Errorf("running again, yet stopped for %v", got)
	}
	select {
	case exit := <-w.Exits():
		t.Errorf("a stop was reported as an exit: %+v", exit)
	default:
	}
}

func TestStopped(t *testing.T) {
	type sample struct {
		at    time.Duration
		state byte
		ticks uint64
	}
	for name, c := range map[string]struct {
		samples []sample
		at      time.Duration
		want    time.Duration
	}{
		"nothing seen":          {nil, 9, 0},
		"running":               {[]sample{{1, 'R', 1}, {2, 'S', 2}}, 9, 0},
		"stopped once":          {[]sample{{1, 'T', 5}}, 4, 3},
		"counts from the first": {[]sample{{1, 'R', 5}, {2, 'T', 5}, {6, 'T', 5}}, 7, 5},
		"traced counts":         {[]sample{{1, 't', 5}, {2, 'T', 5}}, 3, 2},
		"ran between samples":   {[]sample{{1, 'T', 5}, {2, 'T', 6}}, 4, 2},
		"went on":               {[]sample{{1, 'T', 5}, {2, 'S', 5}}, 4, 0},
		"stopped anew":          {[]sample{{1, 'T', 5}, {2, 'S', 5}, {3, 'T', 5}}, 4, 1},
		"clock before sample":   {[]sample{{5, 'T', 5}}, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t0 := time.Unix(1000, 0)
			var s Stopped
			for _, p := range c.samples {
				s = s.Sample(t0.Add(p.at*time.Second), p.state, p.ticks)
			}
			if got := s.For(t0.Add(c.at * time.Second)); got != c.want*time.Second {
				t.Errorf("stopped for %v, want %v s", got, int64(c.want))
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	const tail = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 18 4711 20 21\n"
	stat, err := parseStat([]byte("12 (a) b (c)) T" + tail))
	if err != nil {
		t.Fatal(err)
	}
	want := ProcStat{State: 'T', UserTicks: 11, SysTicks: 12, Threads: 3, Start: 4711, Ending: true}
	// Field 9, the flags, is the sixth number after the state, and 6 has the one of a thread that exits. Field 20 is the seventeenth after the state, field 22 the nineteenth.
	if stat != want {
		t.Errorf("got %+v, want %+v", stat, want)
	}
	for _, bad := range []string{"", "12 (x", "12 (x) T 1 2", "12 (x) TT" + tail, "12 (x) T 1 2 3 4 5 6 7 8 9 10 -11 12 13 14 15 16 17 18 19 20"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q parsed as %+v", bad, got)
		}
	}
}

// TestKilledIsKnownBeforeTheEnd asks about a process that nobody has waited for, and about one that is stopped.
func TestKilledIsKnownBeforeTheEnd(t *testing.T) {
	child := exec.Command("sleep", "100")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }() // was killed
	want := func(signal syscall.Signal, state byte) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			st, err := ReadStat(child.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			if st.State == state {
				if st.Killed() != signal {
					t.Fatalf("%+v: killed by %d, want %d", st, st.Killed(), signal)
				}
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the process is %+v, want state %c", st, state)
			}
		}
	}
	want(0, 'S')
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	want(0, 'T')
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	want(syscall.SIGKILL, 'Z')
	for code, signal := range map[int]syscall.Signal{0: 0, 1 << 8: 0, 9: syscall.SIGKILL, 11 | 0x80: syscall.SIGSEGV, 19: 0, 20: 0, 0x7f: 0} {
		if got := (ProcStat{ExitCode: code, Ending: true}).Killed(); got != signal {
			t.Errorf("exit code %#x is signal %d, want %d", code, got, signal)
		}
	}
	if got := (ProcStat{ExitCode: 9}).Killed(); got != syscall.SIGKILL {
		t.Errorf("a process that is killed and has not run since is killed by %d", got)
	}
}

// TestTracedIsNotKilled: a debugger that is about to be told of a signal or a trap is no end of the process.
func TestTracedIsNotKilled(t *testing.T) {
	runtime.LockOSThread() // the kernel knows one thread as the tracer
	defer runtime.UnlockOSThread()
	child := exec.Command("sleep", "100")
	child.SysProcAttr = &syscall.SysProcAttr{Ptrace: true} // traced from its first instruction
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := child.Process.Pid
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait() // was killed
	}()
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("wait for the trap at its start: %v, status %#x", err, status)
	}
	if err := unix.PtraceCont(pid, 0); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		st, err := ReadStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		if st.Killed() != 0 || st.Ending {
			t.Fatalf("%+v is taken for killed by %d", st, st.Killed())
		}
		if st.State == 't' && st.ExitCode == int(syscall.SIGUSR1) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the process is %+v, want it stopped for its tracer with the signal shown", st)
		}
	}
}

func TestDeadNeedsAllThreadsGone(t *testing.T) {
	if (ProcStat{State: 'Z', Threads: 3}).Dead() {
		t.Error("a process whose first thread has left is dead while others run")
	}
	if !(ProcStat{State: 'Z', Threads: 1}).Dead() || !(ProcStat{State: 'X'}).Dead() {
		t.Error("a zombie is not dead")
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (x) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 18 4711 20 21"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, text []byte) { _, _ = parseStat(text) })
}

func TestBootID(t *testing.T) {
	first, second := BootID(), BootID()
	if len(first) != 36 || first != second {
		t.Errorf("boot ids %q and %q", first, second)
	}
}

func TestEpollIDsSurviveTheirPacking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint64().Draw(t, "id")
		if got := eventID(epollEvent(id)); got != id {
			t.Fatalf("packed %d, got %d", id, got)
		}
	})
}
