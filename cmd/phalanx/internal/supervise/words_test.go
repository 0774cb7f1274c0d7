// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// A daemon whose log and directory take nothing any more is heard all the same: what it says, and what Go says of its crash.
func TestLastWords(t *testing.T) {
	if os.Getenv("CRASH") != "" {
		f := os.NewFile(wordsFD, "words")
		_ = debug.SetCrashOutput(f, debug.CrashOptions{})
		panic("no room for it")
	}
	f, err := newWords()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if x, crash := readWords(f); x != nil || crash != "" {
		t.Errorf("nothing was said: %v, %q", x, crash)
	}
	want := Failure{PID: 7, Code: 1, Reason: "the disk is full", Hint: "make room"}
	if err := WriteWords(f, want); err != nil {
		t.Fatal(err)
	}
	if x, _ := readWords(f); x == nil || *x != want {
		t.Errorf("read %+v, want %+v", x, want)
	}
	f, err = newWords()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0) // its log
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLastWords$")
	c.Env = append(os.Environ(), "CRASH=1")
	c.Stdout, c.Stderr, c.ExtraFiles = full, full, []*os.File{f}
	if err := c.Run(); err == nil {
		t.Fatal("no crash")
	}
	if x, crash := readWords(f); x != nil || !strings.Contains(crash, "no room for it") || strings.Count(crash, "\n") > 3 {
		t.Errorf("of a crash: %v, %q", x, crash)
	}
}

func TestFull(t *testing.T) {
	if why := full(filepath.Join(t.TempDir(), "none")); why != "" {
		t.Errorf("of no directory: %q", why)
	}
	if why := full("/proc"); !strings.Contains(why, "0 KiB are left") { // which has no room, ever
		t.Errorf("of one without room: %q", why)
	}
}
