// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// child is set in the process that passes the places "first", for nobody, and "second".
const child = "PHALANX_FAILPOINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		Here("first")
		Here("second")
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// TestHere: a process dies at the place that is armed for it or for anybody, once, and passes the others.
func TestHere(t *testing.T) {
	dir := t.TempDir()
	pass := func() error {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), child+"=1", Environment+"="+dir)
		return c.Run()
	}
	var exit *exec.ExitError
	if err := pass(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("nothing is armed: %v", err)
	}
	for name, content := range map[string]string{"first": strconv.Itoa(os.Getpid()), "second": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := pass()
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the second place is armed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "second"+HitSuffix)); err != nil {
		t.Errorf("the place does not say that it was hit: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "first")); err != nil {
		t.Errorf("the place that was armed for another process: %v", err)
	}
	if err := pass(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the same arming kills twice: %v", err)
	}
}
