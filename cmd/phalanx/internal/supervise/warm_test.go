// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/client/wire"
	"phalanx/node"
)

// testKeeper runs a keeper of a command that nobody reaps but the test.
func testKeeper(t *testing.T, command ...string) *keeper {
	t.Helper()
	k := &keeper{want: 1, host: "h", paths: node.NewPaths(t.TempDir(), ""), command: command, env: os.Environ(), log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() { // ends with the test
		defer close(done)
		k.run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	return k
}

func ask(t *testing.T, k *keeper, m wire.WarmMessage) (wire.WarmMessage, error) {
	t.Helper()
	var conn net.Conn
	var err error
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if conn, err = net.Dial("unix", k.paths.WarmSocket()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if err := wire.WriteWarm(conn, m); err != nil {
		return wire.WarmMessage{}, err
	}
	return wire.ReadWarm(conn)
}

// Only what was started is taken for one that waits, and who asks while none waits is told so at once.
func TestWhoWaits(t *testing.T) {
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Fatal("sleep is missing; install coreutils")
	}
	k := testKeeper(t, "sleep", "60") // never connects
	if a, err := ask(t, k, wire.WarmMessage{Op: wire.WarmTake, Member: "h/0", Log: "/dev/null"}); err != nil || a.Op != wire.WarmNone {
		t.Errorf("none waits: %+v, %v", a, err)
	}
	if a, err := ask(t, k, wire.WarmMessage{Op: wire.WarmReady}); err == nil { // this process: another group
		t.Errorf("a stranger was given a place: %+v", a)
	}
	if _, err := ask(t, k, wire.WarmMessage{Op: "else"}); err == nil {
		t.Error("an unknown word has an answer")
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s := node.ReadWarmState(k.paths)
		if s != nil && len(s.Processes) == 1 && !s.Processes[0].Ready {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("state %+v", s)
		}
	}
}

// The pause doubles up to a minute while none gets ready, and what is said last is told.
func TestWarmPause(t *testing.T) {
	k := &keeper{log: slog.New(slog.DiscardHandler)}
	now := time.Unix(1, 0)
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		k.failed(now, "x")
		if got := k.next.Sub(now); got != want*time.Second {
			t.Errorf("pause %d is %s, want %d s", i, got, want)
		}
	}
}

func TestNoRoom(t *testing.T) {
	for _, c := range []struct {
		available, total int64
		room             bool
	}{{0, 0, true}, {100, 1000, true}, {50, 1000, true}, {49, 1000, false}, {0, 1000, false}} {
		if why := noRoom(c.available, c.total); (why == "") != c.room {
			t.Errorf("%d of %d: %q", c.available, c.total, why)
		}
	}
	if available, total := memoryNow(); available <= 0 || total < available {
		t.Errorf("this machine has %d of %d bytes", available, total)
	}
}

// What a process has printed before goes before what it prints in its place.
func TestHandOver(t *testing.T) {
	ours, its := net.Pipe()
	dir := t.TempDir()
	k := &keeper{host: "h", paths: node.NewPaths(dir, ""), log: slog.New(slog.DiscardHandler)}
	pid, start := os.Getpid(), uint64(0)
	if b, err := wire.ProcessStart(pid); err == nil {
		start = b
	}
	life := dir + "/life.log"
	for name, text := range map[string]string{k.paths.WarmLog("h", 1): "imports\n", life: "an older generation\n"} {
		if err := os.MkdirAll(dir+"/log", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan wire.WarmMessage, 1)
	go func() { // ends with its answer
		m, _ := wire.ReadWarm(its)
		got <- m
		_ = wire.WriteWarm(its, wire.WarmMessage{Op: wire.WarmTaken})
		_, _ = io.Copy(io.Discard, its)
	}()
	p := &warmProcess{pid: pid, start: start, number: 1, conn: ours}
	if err := k.handOver(p, wire.WarmMessage{Env: map[string]string{"RANK": "1"}, Log: life}, time.Now().Add(5*time.Second)); err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	if m := <-got; m.Op != wire.WarmPlace || m.Env["RANK"] != "1" || m.Log != life {
		t.Errorf("it got %+v", m)
	}
	b, err := os.ReadFile(life)
	if string(b) != "an older generation\nimports\n" || err != nil {
		t.Errorf("its output is %q, %v", b, err)
	}
	if _, err := os.Stat(k.paths.WarmLog("h", 1)); err == nil {
		t.Error("its first output is left")
	}
	p.start++
	if err := k.handOver(p, wire.WarmMessage{}, time.Now()); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("another process of its pid: %v", err)
	}
}

func TestExitCode(t *testing.T) {
	for status, want := range map[unix.WaitStatus]int{0: 0, 3 << 8: 3, 9: 137} {
		if got := exitCode(status); got != want {
			t.Errorf("%x is %d, want %d", status, got, want)
		}
	}
}
