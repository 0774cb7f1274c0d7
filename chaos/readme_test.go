// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReadmeCommands runs the commands of the README that lead from a killed run to safetensors, as they stand there.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "### From a killed run to safetensors\n```\n")
	block, _, closed := strings.Cut(rest, "```\n")
	if !found || !closed || strings.Count(block, "\n") != 6 {
		t.Fatalf("the README has no block of six commands:\n%s", block)
	}
	j := newJob(t, 2, 100, 10*time.Millisecond) // for its folder, and its end
	script := "set -euo pipefail\n" + strings.ReplaceAll(block, "/tmp/second", j.dir)
	c := exec.CommandContext(j.ctx, "bash", "-s") // as typed: its own command line must not match what pkill looks for
	c.Stdin = strings.NewReader(script)
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(j.program("phalanx"))+":"+os.Getenv("PATH"))
	c.WaitDelay = time.Second // the run in the background has the pipe, too
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, words := range []string{"step=", "container dcp", "fenced by the store", " ok\n", "format dcp", "format safetensors"} {
		if !strings.Contains(string(out), words) {
			t.Errorf("nothing said %q:\n%s", words, out)
		}
	}
	if _, err := os.Stat(filepath.Join(j.dir, "model.safetensors")); err != nil {
		t.Error(err)
	}
}

// TestReadmeSeveralHosts runs the block of the README about several hosts on this machine, with fewer steps. A third run that has
// the second host's name in another directory is refused at once, and disturbs nobody.
func TestReadmeSeveralHosts(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "## Several hosts\n")
	_, rest, opened := strings.Cut(rest, "```\n")
	block, _, closed := strings.Cut(rest, "```\n")
	lines := strings.Split(strings.TrimSuffix(block, "\n"), "\n")
	if !found || !opened || !closed || len(lines) != 3 {
		t.Fatalf("the README has no block of three commands about several hosts:\n%s", block)
	}
	one, two, rival := newJob(t, 2, 100, 0), newJob(t, 2, 100, 0), newJob(t, 2, 100, 0) // for their folders, and their end
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil { // the founder takes it
		t.Fatal(err)
	}
	own := t.TempDir()
	here := strings.NewReplacer("/tmp/one", one.dir, "/tmp/two", two.dir, "/tmp/three", rival.dir, "/tmp/", own+"/", "127.0.0.1:7400", address,
		"--steps 600", "--data "+data+" --steps 150").Replace
	script := "set -uo pipefail\n" + here(lines[0]) + "\n" + here(lines[1]) + "\n" + here(lines[2]) + " &\n" +
		"for i in $(seq 400); do phalanx status --dir " + two.dir + " 2>&1 | grep 'phase running' && break; sleep .1; done\n" +
		here(strings.ReplaceAll(lines[2], "/tmp/two", "/tmp/three")) + "; echo the rival ended with $?\n" +
		"phalanx status --dir " + two.dir + " --explain\nwait\n"
	c := exec.CommandContext(one.ctx, "bash", "-s")
	c.Stdin = strings.NewReader(script)
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(one.program("phalanx"))+":"+os.Getenv("PATH"))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) } // the runs in the background, too
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ends := regexp.MustCompile(`(?m)^phalanx: done step=150 generation=1 digest=([0-9a-f]{32})$`).FindAllStringSubmatch(string(out), -1)
	if want := oracle(t, "--data", data, "--steps", "150"); len(ends) != 2 || ends[0][1] != want || ends[1][1] != want {
		t.Errorf("ends: %v, want two with digest %s\n%s", ends, want, out)
	}
	for _, words := range []string{"phase running", "the rival ended with 9", "give this host a name of its own with --host NAME", "two/1"} {
		if !strings.Contains(string(out), words) {
			t.Errorf("nothing said %q:\n%s", words, out)
		}
	}
}
