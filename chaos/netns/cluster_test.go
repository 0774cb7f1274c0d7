// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
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
	// floor makes a step long enough that everything a test does comes before the last one, and that a busy machine does not
	// take much longer.
	floor = 100 * time.Millisecond
	port  = 7700
	// patience is for one wait, on a machine that is busy with other things too.
	patience = 40 * time.Second
	pollTime = 100 * time.Millisecond
)

// alone is the digest of a run without daemons, without a network and without disturbance; more are arguments of the trainer.
func alone(t *testing.T, steps int, more ...string) string {
	t.Helper()
	args := append([]string{"--alone", "--steps", strconv.Itoa(steps), "--data", data}, more...)
	once, _ := oracles.LoadOrStore(strings.Join(args, " "), sync.OnceValues(func() (string, error) {
		out, err := exec.Command(filepath.Join(bin, "phalanx-lm"), args...).CombinedOutput()
		m := regexp.MustCompile(`(?m)^final step=\d+ digest=([0-9a-f]{32})$`).FindSubmatch(out)
		if err != nil || m == nil {
			return "", fmt.Errorf("phalanx-lm --alone: %w\n%s", err, out)
		}
		return string(m[1]), nil
	}))
	digest, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

var oracles sync.Map

// cluster is a job over several hosts. The first one founds it and the others join it.
type cluster struct {
	t     *testing.T
	net   *netns.Net
	hosts []*netns.Host
	nproc int // members on each host
	steps int
	dir   string   // of the test; each host has its own below
	key   string   // file
	flags []string // of phalanx run, more than those of all tests
	train []string // of the trainers, likewise
	runs  []*run
	watch *watch
}

// run is one call of phalanx run.
type run struct {
	cmd   *exec.Cmd
	out   string        // file
	errs  string        // file
	ended chan struct{} // closed when it has ended
}

// newCluster makes hosts. Tests over namespaces run beside each other: mostly they wait.
func newCluster(t *testing.T, nproc, steps int, names ...string) *cluster {
	t.Helper()
	return newClusterBeside(t, nproc, steps, len(names), names...)
}

// newClusterBeside makes hosts of which only the first ones are the job's.
func newClusterBeside(t *testing.T, nproc, steps, own int, names ...string) *cluster {
	t.Helper()
	t.Parallel()
	n, err := netns.New(names...)
	if err != nil {
		t.Fatalf("%d hosts: %v (PHALANX_NETNS=off leaves this test out)", len(names), err)
	}
	c := &cluster{t: t, net: n, hosts: slices.Clone(n.Hosts[:own]), nproc: nproc, steps: steps, dir: t.TempDir()}
	c.watch = newWatch(c)
	t.Cleanup(func() {
		c.watch.end()
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

// begin starts all hosts and waits until they train together.
func (c *cluster) begin() *node.Status {
	c.t.Helper()
	for _, h := range c.hosts {
		c.start(h)
	}
	return c.whole(5)
}

// start starts the members of a host. It is the same command each time.
func (c *cluster) start(h *netns.Host) *run {
	c.t.Helper()
	if h == c.hosts[0] {
		return c.run(h, "--key-file", c.key, "--bind", fmt.Sprintf("%s:%d", h.Addr, port))
	}
	return c.run(h, "--key-file", c.key, "--bind", h.Addr.String(), "--join", c.address())
}

// address is where others join.
func (c *cluster) address() string { return fmt.Sprintf("%s:%d", c.hosts[0].Addr, port) }

func (c *cluster) home(h *netns.Host) string { return filepath.Join(c.dir, "host-"+h.Name) }

// recorded is the file in which the trainers of a host note the steps that they apply.
func (c *cluster) recorded(h *netns.Host) string { return filepath.Join(c.dir, "applied-"+h.Name) }

func (c *cluster) run(h *netns.Host, flags ...string) *run {
	c.t.Helper()
	base := filepath.Join(c.dir, fmt.Sprintf("run%d-%s", len(c.runs), h.Name))
	r := &run{out: base + ".out", errs: base + ".err", ended: make(chan struct{})}
	args := append([]string{"run", "--job", "two", "--dir", c.home(h), "--host", h.Name, "--nproc", strconv.Itoa(c.nproc),
		"--nnodes", fmt.Sprintf("1:%d", len(c.hosts)), "--store", filepath.Join(c.dir, "store"), "--save-every", "50"}, slices.Concat(c.flags, flags)...)
	args = append(args, "--", filepath.Join(bin, "phalanx-lm"), "--steps", strconv.Itoa(c.steps), "--step-floor", floor.String(),
		"--data", data, "--record", c.recorded(h))
	args = append(args, c.train...)
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
	if code := c.end(r, patience+2*time.Duration(c.steps)*floor); code != 0 {
		c.t.Fatalf("%s ended with code %d", filepath.Base(r.errs), code)
	}
	lines := strings.Split(strings.TrimSpace(content(r.out)), "\n")
	last, want := lines[len(lines)-1], alone(c.t, c.steps)
	if !strings.HasPrefix(last, fmt.Sprintf("phalanx: done step=%d ", c.steps)) || !strings.HasSuffix(last, " digest="+want) {
		c.t.Errorf("the last line of %s is %q, want the digest %s", filepath.Base(r.out), last, want)
	}
}

// finish waits for the good end of the given runs, all of them without an argument, and judges all that was seen and recorded.
func (c *cluster) finish(runs ...*run) {
	c.t.Helper()
	if len(runs) == 0 {
		runs = slices.Clone(c.runs)
	}
	for _, r := range runs {
		c.done(r)
	}
	c.watch.end()
	c.watch.judge()
}

// until asks a host until the answer is as wanted.
func (c *cluster) until(h *netns.Host, what string, ok func(*node.Status) bool) *node.Status {
	c.t.Helper()
	return c.within(patience, h, what, ok)
}

func (c *cluster) within(limit time.Duration, h *netns.Host, what string, ok func(*node.Status) bool) *node.Status {
	c.t.Helper()
	var last *node.Status
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(pollTime) {
		s, err := c.watch.ask(h)
		if err != nil {
			continue // no daemon listens yet
		}
		if last = s; ok(s) {
			return s
		}
	}
	seen := "no daemon answered"
	if last != nil {
		seen = fmt.Sprintf("generation %d, phase %s, step %d of %d, world %v, leader %s, fresh %v, members %+v", last.Generation, last.Phase, last.Step, last.LastStep, last.World, last.Leader, last.Fresh, last.Members)
	}
	c.t.Fatalf("host %s: not seen within %s: %s; seen: %s", h.Name, limit, what, seen)
	return nil
}

// whole waits until the members of all hosts train beyond a step.
func (c *cluster) whole(beyond phalanx.Step) *node.Status {
	c.t.Helper()
	n := c.nproc * len(c.hosts)
	return c.until(c.hosts[0], fmt.Sprintf("%d members train beyond step %d", n, beyond), func(s *node.Status) bool {
		return s.Fresh && s.Phase == "running" && len(s.World) == n && s.Step > beyond && !slices.ContainsFunc(s.Members, func(m node.MemberStatus) bool { return m.TrainerPID <= 0 || m.DaemonPID <= 0 })
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

// members are the ids of the members of some hosts.
func (c *cluster) members(hosts ...*netns.Host) []phalanx.MemberID {
	var out []phalanx.MemberID
	for _, h := range hosts {
		for i := range c.nproc {
			out = append(out, phalanx.NewMemberID(h.Name, i))
		}
	}
	return out
}

// host is the one of a member.
func (c *cluster) host(id phalanx.MemberID) *netns.Host {
	i := slices.IndexFunc(c.hosts, func(h *netns.Host) bool { return h.Name == id.Host() })
	if i < 0 {
		c.t.Fatalf("no host of %q", id)
	}
	return c.hosts[i]
}

// others are all hosts but the given ones.
func (c *cluster) others(than ...*netns.Host) []*netns.Host {
	return slices.DeleteFunc(slices.Clone(c.hosts), func(h *netns.Host) bool { return slices.Contains(than, h) })
}

// survived checks that daemons and trainers live on: nothing was achieved by starting them again.
func (c *cluster) survived(before, after *node.Status, members ...phalanx.MemberID) {
	c.t.Helper()
	for _, id := range members {
		if old, now := member(before, id), member(after, id); old.TrainerPID != now.TrainerPID || old.TrainerPID <= 0 {
			c.t.Errorf("the trainer of %s had pid %d and has %d", id, old.TrainerPID, now.TrainerPID)
		}
	}
}

// voters waits until the hosts have so many voters each.
func (c *cluster) voters(counts ...int) {
	c.t.Helper()
	c.until(c.hosts[0], fmt.Sprintf("%v voters on the hosts", counts), func(s *node.Status) bool {
		for i, h := range c.hosts {
			n := 0
			for _, m := range s.Members {
				if m.Host == h.Name && m.Role == "voter" {
					n++
				}
			}
			if n != counts[i] {
				return false
			}
		}
		return true
	})
}

func (c *cluster) kill(pid int) {
	c.t.Helper()
	if pid <= 1 {
		c.t.Fatalf("kill pid %d", pid)
	}
	c.watch.killing(pid)
	c.must(syscall.Kill(pid, syscall.SIGKILL))
}

// reboot lets a host fall: its processes and its memory are gone.
func (c *cluster) reboot(h *netns.Host) {
	c.t.Helper()
	c.watch.rebooting(h)
	c.must(h.Reboot())
}

// filter replaces the filters of the network.
func (c *cluster) filter(filters ...netns.Filter) {
	c.t.Helper()
	c.must(c.net.Apply(filters...))
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func content(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// dump shows the history and the ends of all logs.
func (c *cluster) dump() {
	c.t.Logf("history:\n%s", c.watch)
	logs, _ := filepath.Glob(filepath.Join(c.dir, "host-*", "log", "daemon.*.log"))
	for _, r := range c.runs {
		logs = append(logs, r.errs, r.out)
	}
	for _, name := range logs {
		lines := strings.Split(strings.TrimSpace(content(name)), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "memberlist") })
		c.t.Logf("== %s\n%s", strings.TrimPrefix(name, c.dir), strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
	if keep := os.Getenv("PHALANX_CHAOS_KEEP"); keep != "" {
		to := filepath.Join(keep, strings.ReplaceAll(c.t.Name(), "/", "_"))
		c.t.Logf("everything is copied to %s: %v", to, exec.Command("cp", "-r", c.dir, to).Run())
	}
}
