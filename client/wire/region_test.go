// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestPageFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page")
	daemon, err := CreatePage(path, 6, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CreatePage(path, 6, 7); !errors.Is(err, os.ErrExist) {
		t.Errorf("second create: %v", err)
	}
	if _, err := AdoptPage(path); !errors.Is(err, ErrLocked) {
		t.Errorf("adopt beside a living daemon: %v", err)
	}
	trainer, err := OpenPage(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := WatchPage(path)
	if err != nil {
		t.Fatal(err)
	}
	if trainer.DaemonBell() != 6 || trainer.TrainerBell() != 7 || daemon.Path() != path {
		t.Errorf("bells %d and %d, path %s", trainer.DaemonBell(), trainer.TrainerBell(), daemon.Path())
	}
	daemon.WriteCommit(Commit{Step: 4})
	if v, n := other.ReadCommit(); v.Step != 4 || n != 1 {
		t.Errorf("other mapping reads %+v, %d", v, n)
	}
	if err := daemon.Unmap(); err != nil {
		t.Fatal(err)
	}
	next, err := AdoptPage(path)
	if err != nil {
		t.Fatalf("adopt after the daemon ended: %v", err)
	}
	if v, n := next.ReadCommit(); v.Step != 4 || n != 1 {
		t.Errorf("successor reads %+v, %d", v, n)
	}
	for _, p := range []*Page{next, trainer, other, trainer} {
		if err := p.Unmap(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenPageRefuses(t *testing.T) {
	good := NewPage(0, 1)
	for name, c := range map[string]struct {
		size int
		at   int
		word uint64
		want error
	}{
		"unknown major":    {PageBytes, headerVersion, 2 << 32, ErrVersion},
		"no magic":         {PageBytes, headerMagic, 0, ErrFormat},
		"short":            {4096, headerSize, PageBytes, ErrFormat},
		"empty":            {0, headerSize, PageBytes, ErrFormat},
		"size beyond file": {PageBytes, headerSize, 1 << 30, ErrFormat},
		"bell out of file": {PageBytes, headerTrainerBell, BellLines, ErrFormat},
		"newer minor":      {PageBytes, headerVersion, Major<<32 | 77, nil},
	} {
		path := filepath.Join(t.TempDir(), "page")
		b := make([]byte, PageBytes)
		copy(wordsOf(b), good.words)
		wordsOf(b)[c.at] = c.word
		if err := os.WriteFile(path, b[:c.size], 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := OpenPage(path)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil {
			_ = p.Unmap()
		}
	}
}

func TestNoSpace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slab")
	_, err := CreateRegion(path, 1<<55)
	var space *SpaceError
	if !errors.Is(err, ErrNoSpace) || !errors.As(err, &space) || space.Needed != 1<<55 {
		t.Fatalf("reserving 2^55 bytes: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRegion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seg")
	w, err := CreateRegion(path, 8192)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenRegion(path, false)
	if err != nil {
		t.Fatal(err)
	}
	w.Bytes()[8191] = 9
	if len(r.Bytes()) != 8192 || r.Bytes()[8191] != 9 || len(r.Words()) != 1024 {
		t.Errorf("read-only mapping of %d bytes ends in %d", len(r.Bytes()), r.Bytes()[8191])
	}
	if err := errors.Join(w.Remove(), w.Unmap(), r.Unmap(), r.Unmap()); err != nil {
		t.Error(err)
	}
}

// Writing to pages that were populated faults no more, and their content is as it was.
func TestPopulate(t *testing.T) {
	const size = 16 << 20
	faults := func(populate bool) int64 {
		r, err := CreateRegion(filepath.Join(t.TempDir(), "slab"), size)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(r.Remove(), r.Unmap()); err != nil {
				t.Error(err)
			}
		}()
		r.Bytes()[size-1] = 7
		if populate {
			if err := r.Populate(nil); err != nil {
				t.Fatal(err)
			}
		}
		if r.Bytes()[size-1] != 7 || r.Bytes()[0] != 0 {
			t.Error("populating changed bytes")
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var before, after unix.Rusage
		err = unix.Getrusage(unix.RUSAGE_THREAD, &before)
		for i := 0; i < size; i += 4096 {
			r.Bytes()[i] = 1
		}
		if err := errors.Join(err, unix.Getrusage(unix.RUSAGE_THREAD, &after)); err != nil {
			t.Fatal(err)
		}
		return after.Minflt - before.Minflt
	}
	if without, with := faults(false), faults(true); with > 50 || without < 10*max(with, 1) {
		t.Errorf("%d faults of a region that was populated, %d of one that was not", with, without)
	}
	ended := make(chan struct{})
	close(ended)
	r, err := CreateRegion(filepath.Join(t.TempDir(), "slab"), size)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Populate(ended), r.Remove(), r.Unmap()); err != nil {
		t.Error(err)
	}
}

// Two processes ring each other's bell a hundred times.
func TestFutexBellBetweenProcesses(t *testing.T) {
	const rounds = 100
	if path := os.Getenv("WIRE_TEST_BELLS"); path != "" {
		b, err := OpenBells(path)
		if err != nil {
			t.Fatal(err)
		}
		answer(t, b.Bell(511), b.Bell(0), rounds)
		return
	}
	path := filepath.Join(t.TempDir(), "bells")
	b, err := CreateBells(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := CreateBells(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(again.Unmap(), b.Unmap()) }()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFutexBellBetweenProcesses$")
	child.Env = append(os.Environ(), "WIRE_TEST_BELLS="+path)
	out, done := []byte(nil), make(chan error, 1) // 1: the child ends once
	go func() {
		var err error
		out, err = child.CombinedOutput()
		done <- err
	}()
	mine, theirs := b.Bell(0), again.Bell(511)
	for n := range uint32(rounds) {
		theirs.Ring()
		if got := mine.Wait(n, 20*time.Second); got != n+1 {
			t.Fatalf("round %d: count %d", n, got)
		}
	}
	if err := <-done; err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	if got := mine.Wait(rounds, 10*time.Millisecond); got != rounds {
		t.Errorf("a bell that nobody rings went to %d", got)
	}
}

func answer(t *testing.T, mine, theirs Bell, rounds uint32) {
	for n := range rounds {
		if got := mine.Wait(n, 20*time.Second); got != n+1 {
			t.Fatalf("child, round %d: count %d", n, got)
		}
		theirs.Ring()
	}
}

func TestLocalBellInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewLocalBell()
		start := time.Now()
		if got := b.Wait(0, time.Hour); got != 0 || time.Since(start) != time.Hour {
			t.Errorf("silent bell: count %d after %s", got, time.Since(start))
		}
		go func() {
			time.Sleep(time.Minute)
			b.Ring()
		}()
		start = time.Now()
		if got := b.Wait(0, time.Hour); got != 1 || time.Since(start) != time.Minute {
			t.Errorf("rung bell: count %d after %s", got, time.Since(start))
		}
		if got := b.Wait(0, time.Hour); got != 1 || time.Since(start) != time.Minute {
			t.Errorf("a ring before the wait was lost: %d", got)
		}
	})
}

func TestProcessStart(t *testing.T) {
	start, err := ProcessStart(os.Getpid())
	if err != nil || start == 0 {
		t.Fatalf("own start time: %d, %v", start, err)
	}
	if !Alive(os.Getpid(), start) || Alive(os.Getpid(), start+1) {
		t.Error("own life is not told by pid and start time")
	}
	child := exec.CommandContext(t.Context(), "true")
	if err := child.Start(); err != nil {
		t.Skip("no command true: " + err.Error())
	}
	pid := child.Process.Pid
	childStart, startErr := ProcessStart(pid)
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if startErr == nil && Alive(pid, childStart) {
		t.Error("process " + strconv.Itoa(pid) + " ended and counts as alive")
	}
}
