// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
