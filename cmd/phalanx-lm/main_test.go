// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the command, for the ways to end that a test cannot survive.
func TestMain(m *testing.M) {
	if os.Getenv("PHALANX_LM_TEST_COMMAND") != "" {
		main()
	}
	os.Exit(m.Run())
}

// small is a short job on the corpus in the repository.
func small(args ...string) []string {
	return append([]string{"--alone", "--data", "testdata/corpus", "--steps", "8", "--slots", "12", "--global-batch", "24", "--log-every", "4"}, args...)
}

func TestUsage(t *testing.T) {
	t.Setenv("PHALANX_SOCKET", "")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"indivisible batch": {[]string{"--alone", "--slots", "12", "--global-batch", "32"}, "12 slots do not divide the global batch of 32"},
		"no slots":          {[]string{"--alone", "--slots", "0"}, "slots"},
		"no steps":          {[]string{"--alone", "--steps", "0"}, "last step is 0"},
		"unknown flag":      {[]string{"--alone", "--stepz", "3"}, "stepz"},
		"argument":          {[]string{"--alone", "train"}, `unexpected argument "train"`},
		"bad poison":        {[]string{"--alone", "--fault-die-at", "7"}, "STEP:SLOT"},
		"no daemon":         {[]string{"--data", "testdata/corpus"}, "PHALANX_SOCKET is not set"},
		"no record":         {small("--record", "testdata/none/record"), "--record"},
		"no data":           {[]string{"--alone", "--data", "testdata/none"}, "testdata/none"},
		"too little data":   {[]string{"--alone", "--data", "testdata/corpus", "--data-limit", "32"}, "one sample needs 33"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(c.args, &stdout, &stderr)
			if code != exitUsage || stdout.Len() > 0 {
				t.Errorf("exit %d, stdout %q", code, &stdout)
			}
			line := stderr.String()
			if strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "phalanx-lm: ") || !strings.Contains(line, c.want) {
				t.Errorf("stderr %q, want one line with %q", line, c.want)
			}
		})
	}
}

func TestHelpNamesTheFaultsAsTests(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"--help"}, &stdout, &stderr); code != exitDone || stderr.Len() > 0 {
		t.Errorf("exit %d, stderr %q", code, &stderr)
	}
	if got := strings.Count(stdout.String(), "for tests: "); got != 11 {
		t.Errorf("%d flags for tests are documented:\n%s", got, &stdout)
	}
}

func TestOutput(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(small(), &stdout, &stderr); code != exitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "step=4 loss=") || !strings.HasPrefix(lines[1], "step=8 loss=") ||
		!strings.HasPrefix(lines[2], "final step=8 digest=") {
		t.Errorf("stdout %q", &stdout)
	}
	again := bytes.Buffer{}
	if run(small("--step-floor", "1ms"), &again, &stderr); again.String() != stdout.String() {
		t.Errorf("a second run printed %q", &again)
	}
}

// command starts this binary as phalanx-lm.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), "PHALANX_LM_TEST_COMMAND=1", "PHALANX_SOCKET=/nonexistent/socket")
	return c
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		code   int // -1: killed
		stdout string
	}{
		"die at":        {[]string{"--fault-die-at", "6:11"}, -1, "step=4 loss="},
		"die nowhere":   {[]string{"--fault-die-at", "6:12"}, 0, "final step=8"},
		"exit 0":        {[]string{"--fault-exit0-at", "6"}, 0, "step=4 loss="},
		"exit code":     {[]string{"--fault-exit0-at", "6", "--fault-exit-code", "9"}, 9, "step=4 loss="},
		"crash":         {[]string{"--fault-crash-at-start"}, 1, ""},
		"crash code":    {[]string{"--fault-crash-at-start", "--fault-exit-code", "3"}, 3, ""},
		"code at start": {[]string{"--fault-exit-code", "75"}, 75, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, small(c.args...)...)
			out, err := cmd.Output()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit %d (%v), want %d", code, err, c.code)
			}
			if !strings.Contains(string(out), c.stdout) {
				t.Errorf("stdout %q, want %q in it", out, c.stdout)
			}
			if c.code != 0 && strings.Contains(string(out), "final") {
				t.Errorf("a failed run printed a final line: %q", out)
			}
			var ended *exec.ExitError
			if c.code == -1 && (!errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
				t.Errorf("ended by %v, want SIGKILL", err)
			}
		})
	}
}

// A signal ends a run between two steps, and a trainer that never registers. Each case prints something once it is ready.
func TestSignalExits75(t *testing.T) {
	for name, args := range map[string][]string{
		"training": small("--steps", "1000000", "--log-every", "1", "--step-floor", "20ms"),
		"no hello": {"--fault-no-hello"},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				cmd := command(t, args...)
				read, write, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer read.Close()
				cmd.Stdout, cmd.Stderr = write, write
				err = cmd.Start()
				write.Close()
				if err != nil {
					t.Fatal(err)
				}
				kill := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
				defer kill.Stop()
				ready := make([]byte, 1)
				if _, err := io.ReadFull(read, ready); err != nil {
					t.Fatalf("ended before it was ready: %v", cmd.Wait())
				}
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, read); err != nil {
					t.Error(err)
				}
				cmd.Wait()
				if code := cmd.ProcessState.ExitCode(); code != exitPreempted {
					t.Errorf("ended with %v, want exit 75", cmd.ProcessState)
				}
			})
		}
	}
}
