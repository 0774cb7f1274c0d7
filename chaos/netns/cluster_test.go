// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/chaos/netns"
	"phalanx/node"
)

const (
	steps = 150
	// floor makes a step long enough that everything a test does comes before the last one, and that a busy machine does not
	// take much longer.
	floor = 100 * time.Millisecond
	port  = 7700
	// patience is for one wait, on a machine that is busy with other things too.
	patience = 30 * time.Second
	pollTime = 100 * time.Millisecond
)

// alone is the digest of a run without daemons, without a network and without disturbance.
var alone = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(bin, "phalanx-lm"), "--alone", "--steps", strconv.Itoa(steps), "--data", data).CombinedOutput()
	m := regexp.MustCompile(`(?m)^final step=\d+ digest=([0-9a-f]{32})$`).FindSubmatch(out)
	if err != nil || m == nil {
		return "", fmt.Errorf("phalanx-lm --alone: %w\n%s", err, out)
	}
	return string(m[1]), nil
})

// cluster is a job over two hosts, a and b, with two members each. a founds it and b joins it.
type cluster struct {
	t    *testing.T
	a, b *netns.Host
	dir  string // of the test; each host has its own below
	key  string // file
	runs []*run
}

// run is one call of phalanx run.
type run struct {
	cmd   *exec.Cmd
	out   string        // file
	errs  string        // file
	ended chan struct{} // closed when it has ended
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	n, err := netns.New("a", "b")
	if err != nil {
		t.Fatalf("two hosts: %v (PHALANX_NETNS=off leaves this test out)", err)
	}
	c := &cluster{t: t, a: n.Hosts[0], b: n.Hosts[1], dir: t.TempDir()}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("remove the hosts: %v", err)
		}
		for _, r := range c.runs {
			<-r.ended
		}
		if t.Failed() {
			c.dump()
		}
	})
	c.key = c.newKey("key")
	return c
}

func (c *cluster) newKey(name string) string {
	c.t.Helper()
	out, err := exec.Command(filepath.Join(bin, "phalanx"), "key", "new").Output()
	if err != nil {
		c.t.Fatalf("phalanx key new: %v", err)
	}
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, out, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// found starts the members of host a.
func (c *cluster) found() *run {
	c.t.Helper()
	return c.run(c.a, "--key-file", c.key, "--bind", fmt.Sprintf("%s:%d", c.a.Addr, port))
}

// join starts those of host b. It is the same command each time.
func (c *cluster) join() *run {
	c.t.Helper()
	return c.run(c.b, "--key-file", c.key, "--bind", c.b.Addr.String(), "--join", c.address())
}

// address is where others join.
func (c *cluster) address() string { return fmt.Sprintf("%s:%d", c.a.Addr, port) }

func (c *cluster) home(h *netns.Host) string { return filepath.Join(c.dir, "host-"+h.Name) }

func (c *cluster) run(h *netns.Host, flags ...string) *run {
	c.t.Helper()
	base := filepath.Join(c.dir, fmt.Sprintf("run%d-%s", len(c.runs), h.Name))
	r := &run{out: base + ".out", errs: base + ".err", ended: make(chan struct{})}
	args := append([]string{"run", "--job", "two", "--dir", c.home(h), "--host", h.Name, "--nproc", "2", "--nnodes", "1:2",
		"--store", filepath.Join(c.dir, "store"), "--save-every", "50"}, flags...)
	args = append(args, "--", filepath.Join(bin, "phalanx-lm"), "--steps", strconv.Itoa(steps), "--step-floor", floor.String(), "--data", data)
	r.cmd = h.Command(filepath.Join(bin, "phalanx"), args...)
	out, err := os.Create(r.out)
	if err != nil {
		c.t.Fatal(err)
	}
	defer out.Close()
	errs, err := os.Create(r.errs)
	if err != nil {
		c.t.Fatal(err)
	}
	defer errs.Close()
	r.cmd.Stdout, r.cmd.Stderr = out, errs
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() { // ends with the process, at the latest when its host is removed
		_ = r.cmd.Wait() // the exit code tells
		close(r.ended)
	}()
	c.runs = append(c.runs, r)
	return r
}

// end waits for the end of a run and returns its exit code.
func (c *cluster) end(r *run, within time.Duration) int {
	c.t.Helper()
	select {
	case <-r.ended:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		c.t.Fatalf("%s has not ended within %s", filepath.Base(r.errs), within)
		return -1
	}
}

// done waits for the good end of a run and checks its result.
func (c *cluster) done(r *run) {
	c.t.Helper()
	if code := c.end(r, patience+2*steps*floor); code != 0 {
		c.t.Fatalf("%s ended with code %d", filepath.Base(r.errs), code)
	}
	want, err := alone()
	if err != nil {
		c.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(content(r.out)), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, fmt.Sprintf("phalanx: done step=%d ", steps)) || !strings.HasSuffix(last, " digest="+want) {
		c.t.Errorf("the last line of %s is %q, want the digest %s", filepath.Base(r.out), last, want)
	}
}

// status asks the daemons of one host.
func (c *cluster) status(h *netns.Host) (*node.Status, error) {
	out, err := exec.Command(filepath.Join(bin, "phalanx"), "status", "--dir", c.home(h), "--explain", "--json").Output()
	if err != nil {
		return nil, err
	}
	s := new(node.Status)
	if err := json.Unmarshal(out, s); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

// until asks a host until the answer is as wanted.
func (c *cluster) until(h *netns.Host, what string, ok func(*node.Status) bool) *node.Status {
	c.t.Helper()
	var last *node.Status
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
		s, err := c.status(h)
		if err != nil {
			continue // no daemon listens yet
		}
		if last = s; ok(s) {
			return s
		}
	}
	seen := "no daemon answered"
	if last != nil {
		seen = fmt.Sprintf("generation %d, phase %s, step %d of %d, world %v, leader %s, members %+v", last.Generation, last.Phase, last.Step, last.LastStep, last.World, last.Leader, last.Members)
	}
	c.t.Fatalf("host %s: not seen within %s: %s; seen: %s", h.Name, patience, what, seen)
	return nil
}

// whole waits until all four members train beyond a step.
func (c *cluster) whole(beyond phalanx.Step) *node.Status {
	c.t.Helper()
	return c.until(c.a, fmt.Sprintf("four members train beyond step %d", beyond), func(s *node.Status) bool {
		return s.Fresh && s.Phase == "running" && len(s.World) == 4 && s.Step > beyond && !slices.ContainsFunc(s.Members, func(m node.MemberStatus) bool { return m.TrainerPID <= 0 || m.DaemonPID <= 0 })
	})
}

func member(s *node.Status, id phalanx.MemberID) node.MemberStatus {
	for _, m := range s.Members {
		if m.Member == id {
			return m
		}
	}
	return node.MemberStatus{}
}

// survived checks that trainers live on: nothing was achieved by starting them again.
func (c *cluster) survived(before, after *node.Status, members ...phalanx.MemberID) {
	c.t.Helper()
	for _, id := range members {
		if old, now := member(before, id), member(after, id); old.TrainerPID != now.TrainerPID || old.TrainerPID <= 0 {
			c.t.Errorf("the trainer of %s had pid %d and has %d", id, old.TrainerPID, now.TrainerPID)
		}
	}
}

// history checks that no change of the world cost more than a step, or went back to a checkpoint.
func (c *cluster) history() {
	c.t.Helper()
	s, err := c.status(c.a)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, tr := range s.Transitions {
		c.t.Logf("generation %s at step %d, %d ranks: %s", tr.Generation, tr.ResumeStep, len(tr.Members), tr.Cause)
		if tr.Rewind || tr.Newest > tr.ResumeStep+1 {
			c.t.Errorf("generation %s resumes at step %d after %d, rewind %v", tr.Generation, tr.ResumeStep, tr.Newest, tr.Rewind)
		}
	}
}

func content(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// dump shows the ends of all logs.
func (c *cluster) dump() {
	logs, _ := filepath.Glob(filepath.Join(c.dir, "host-*", "log", "daemon.*.log"))
	for _, r := range c.runs {
		logs = append(logs, r.errs, r.out)
	}
	for _, name := range logs {
		lines := strings.Split(strings.TrimSpace(content(name)), "\n")
		c.t.Logf("== %s\n%s", strings.TrimPrefix(name, c.dir), strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
}
