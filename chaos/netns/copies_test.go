// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"phalanx/chaos/netns"
	"phalanx/node"
)

// logged returns the lines of a host's daemons that contain all of some words.
func (c *cluster) logged(h *netns.Host, words ...string) []string {
	var out []string
	logs, _ := filepath.Glob(filepath.Join(c.home(h), "log", "daemon.*.log"))
	for _, name := range logs {
		for line := range strings.Lines(content(name)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				out = append(out, line)
			}
		}
	}
	return out
}

// TestPeerCopyOutlivesItsHost: two hosts hold one copy of the model together, so each coordinate is in the memory of one host alone; a third
// one is a spare. Nothing can be stored. The host of rank 0 falls silent and loses its memory for good. The spare takes the rank and reads
// the state over the network, from the copy that the host of rank 1 keeps, if only to keep one too while it is not clear yet that the
// host is lost: no host can see another one's memory here. Both coordinates end as undisturbed.
func TestPeerCopyOutlivesItsHost(t *testing.T) {
	c := newCluster(t, 1, 130, "a", "b", "c")
	c.flags = []string{"--min", "2", "--save-every", "20"}
	c.train = []string{"--group-size", "2", "--slots", "4", "--global-batch", "4"}
	a := c.hosts[0]
	for _, h := range c.hosts {
		c.start(h)
	}
	group := func(s *node.Status) bool { return s.Fresh && s.Phase == "running" && len(s.World) == 2 }
	c.until(a, "a group trains and a spare is there", func(s *node.Status) bool {
		return group(s) && s.GroupSize == 2 && len(s.Members) == 3 && s.Step >= 2
	})
	// Where the folder of the job's checkpoints would be is a file.
	c.must(os.WriteFile(filepath.Join(c.dir, "store", "two"), nil, 0o600))
	s := c.until(a, "a state is in the memory of two hosts", func(s *node.Status) bool {
		return group(s) && s.Saves.Levels.Memory != nil && s.Saves.Levels.Memory.Held
	})
	reached := s.Saves.Levels.Memory.Step
	if s.Published != nil || reached < 20 {
		t.Fatalf("step %d is in the memory of two hosts, and published is %+v", reached, s.Published)
	}
	lost, keeper := c.host(s.World[0]), c.host(s.World[1])
	spare := c.others(lost, keeper)[0]
	before := s.Generation
	if len(c.logged(keeper, "keeps a copy of a staged state", "coordinate=0")) == 0 || len(c.logged(spare, "keeps a copy of a staged state", "coordinate=0")) > 0 {
		t.Fatalf("host %s and not %s should keep the copy of coordinate 0", keeper.Name, spare.Name)
	}
	c.must(lost.Cut())
	c.reboot(lost)
	s = c.until(keeper, "the group trains again", func(s *node.Status) bool {
		return group(s) && s.Generation > before && s.Step > s.Floor
	})
	if want := append(c.members(spare), c.members(keeper)...); s.Floor < reached || s.Branch != 1 || !slices.Equal(s.World, want) {
		t.Errorf("world %v goes on from step %d on branch %d, want a rewind of %v to step %d at least", s.World, s.Floor, s.Branch, want, reached)
	}
	if len(c.logged(spare, "msg=heals", "source=slab", "coordinate 0")) == 0 {
		t.Errorf("host %s did not heal from a copy", spare.Name)
	}
	c.must(os.Remove(filepath.Join(c.dir, "store", "two")))

	final := regexp.MustCompile(`(?m)^final step=\d+ digest=([0-9a-f]{32})$`)
	want := []string{alone(t, c.steps, append([]string{"--coordinate", "0"}, c.train...)...), alone(t, c.steps, append([]string{"--coordinate", "1"}, c.train...)...)}
	if want[0] == want[1] {
		t.Fatal("both coordinates train the same model")
	}
	for r, id := range s.World {
		h := c.host(id)
		run := c.runs[slices.Index(c.hosts, h)]
		if code := c.end(run, patience); code != 0 {
			t.Fatalf("the run of host %s ended with code %d\n%s", h.Name, code, content(run.errs))
		}
		m := final.FindStringSubmatch(strings.ReplaceAll(content(run.out), " | ", "\n"))
		if m == nil || m[1] != want[r] {
			t.Errorf("rank %d on host %s ended with %q, undisturbed it is %s", r, h.Name, m, want[r])
		}
	}
	// Nothing was restarted beside the host that fell.
	c.watch.end()
	for _, f := range c.watch.faults {
		t.Error(f)
	}
}
