// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"phalanx/node"
)

// TestLeaderDiesWhileItRetains: the leader dies when it has forgotten checkpoints and has not swept them. Training goes on, whoever
// leads next sweeps them, and what is published can be read.
func TestLeaderDiesWhileItRetains(t *testing.T) {
	t.Parallel()
	j := newSmallArmedJob(t, 3, 240, 20*time.Millisecond)
	j.flags = append(j.flags, "--save-every", "10", "--keep", "2", "--keep-every", "50", "--gc-grace", "0s")
	j.run()
	s := j.until("three ranks train", both(whole(3), at(5)))
	j.arm("checkpoints-forgotten", find(t, s, s.Leader).DaemonPID)
	j.untilReached("checkpoints-forgotten")
	s = j.until("three ranks train on", both(whole(3), at(s.Step+5)))
	j.until("later steps are published", func(n *node.Status) bool { return n.Published != nil && n.Published.Step > s.Step+40 })
	j.finish()
	if out, code := j.verb("ckpt", "gc", "--grace", "0s"); code != 0 { // what the last run of retention did not come to
		t.Fatalf("gc ends with %d: %s", code, out)
	}
	out, code := j.verb("ckpt", "ls", "--json")
	var list []struct {
		Step  uint64
		State string
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 {
		t.Fatalf("ls ends with %d: %v: %s", code, err, out)
	}
	published := map[uint64]bool{}
	for _, c := range list {
		switch c.State {
		case "published":
			published[c.Step] = true
			if out, code := j.verb("ckpt", "verify", strconv.FormatUint(c.Step, 10)); code != 0 {
				t.Errorf("verify of step %d ends with %d: %s", c.Step, code, out)
			}
		case "removed", "unpublished":
		default:
			t.Errorf("step %d is %s after gc", c.Step, c.State)
		}
	}
	// A save that falls due while nobody leads is skipped, and there is nothing to keep of it.
	kept := 0
	for step := range publishedEver(t, j) {
		if step%50 == 0 {
			kept++
			if !published[step] {
				t.Errorf("step %d was published and is to be kept", step)
			}
		}
	}
	if !published[240] || kept < 2 || len(published) > 7 {
		t.Errorf("published are %v", published)
	}
}

var publishedLine = regexp.MustCompile(`msg="checkpoint published".* step=(\d+)`)

// publishedEver are the steps whose checkpoints were published, as the daemons' logs have them.
func publishedEver(t *testing.T, j *job) map[uint64]bool {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(j.dir, "log", "daemon.*.log"))
	if err != nil {
		t.Fatal(err)
	}
	steps := map[uint64]bool{}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range publishedLine.FindAllSubmatch(text, -1) {
			step, err := strconv.ParseUint(string(m[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			steps[step] = true
		}
	}
	return steps
}
