// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"phalanx/client/wire"
	"phalanx/node"
)

// said counts the lines of all daemons' logs of a job that contain words.
func (j *job) said(words ...string) int {
	n := 0
	logs, _ := filepath.Glob(filepath.Join(j.dir, "log", "daemon.*.log"))
	for _, name := range logs {
		for line := range strings.Lines(content(name)) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				n++
			}
		}
	}
	return n
}

// mount makes the store of a job a link to a folder, that can be taken away from its daemons alone.
func (j *job) mount(to string) string {
	j.t.Helper()
	own := filepath.Join(filepath.Dir(j.dir), "mount")
	err := os.MkdirAll(to, 0o700)
	if err == nil {
		err = os.Symlink(to, own)
	}
	if err != nil {
		j.t.Fatal(err)
	}
	j.flags = append(j.flags, "--store", own)
	return own
}

// unmount takes the store away: there is a file in its place.
func unmount(t *testing.T, own string) {
	t.Helper()
	err := os.Remove(own)
	if err == nil {
		err = os.WriteFile(own, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostWithoutItsStore: the store of one of two hosts goes away. The other host writes its shares, in the same saves, and what is
// published is whole. The leader may die at that, and whoever leads next does the same.
func TestHostWithoutItsStore(t *testing.T) {
	t.Parallel()
	var own, store string
	a, b := twoHosts(t, 280, 25*time.Millisecond, func(a, b *job) {
		store = filepath.Join(filepath.Dir(a.dir), "store")
		own = b.mount(store)
		a.flags = append(a.flags, "--save-every", "20")
		b.flags = append(b.flags, "--save-every", "20")
	})
	s := a.until("four ranks train", both(whole(4), at(5)))
	a.arm("share-taken-over", 0)
	unmount(t, own)
	a.untilReached("share-taken-over")
	s = a.until("four ranks train on", both(whole(4), at(s.Step+5)))
	a.until("a later step is published", func(n *node.Status) bool { return n.Published != nil && n.Published.Step > s.Step+20 })
	if s = a.until("it is in the memory of two hosts", func(n *node.Status) bool { return n.Saves.Levels.Memory != nil }); s.Saves.Levels.Local == nil || s.Saves.Levels.Durable == nil {
		t.Errorf("levels: %+v", s.Saves.Levels)
	}
	finishBoth(a, b)
	if a.said("a share of a save is taken over")+b.said("a share of a save is taken over") == 0 {
		t.Error("no share was taken over")
	}
	if out, code := a.verb("ckpt", "verify", "--store", store, "--job", "two"); code != 0 {
		t.Errorf("verify ends with %d: %s", code, out)
	}
}

// TestFailingSaves: the store is gone. Training goes on; with a policy the job ends, by its own exit code, and once the store is
// mended the same command goes on from what is in host memory.
func TestFailingSaves(t *testing.T) {
	for name, policy := range map[string]string{"for ever": "", "after three": "halt-after=3", "when old": "halt-older=3s"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, 3, 300, 30*time.Millisecond)
			j.flags = []string{"--save-every", "20"}
			if policy != "" {
				j.flags = append(j.flags, "--save-failure", policy)
			}
			store := filepath.Join(filepath.Dir(j.dir), "behind")
			own := j.mount(store)
			j.run()
			j.until("a step is published", func(n *node.Status) bool { return n.Published != nil })
			unmount(t, own)
			if policy == "" {
				s := j.until("saves fail", func(n *node.Status) bool { return n.Saves.Failures >= 2 })
				if !strings.Contains(s.Saves.Trouble, "mount") || s.Saves.RecoveryPoint < 20 || s.Saves.Policy != "continue" {
					t.Errorf("saves: %+v", s.Saves)
				}
				s = j.until("training goes on", at(s.Step+20))
				mend(t, own, store)
				s = j.until("saves go well again", func(n *node.Status) bool { return n.Published.Step > s.Published.Step })
				if s.Saves.Failures != 0 || s.Saves.Trouble != "" {
					t.Errorf("saves: %+v", s.Saves)
				}
			} else {
				j.refused(7, "durable", "mend the store")
				mend(t, own, store)
				j.forget()
				j.run()
				s := j.until("it trains again", whole(3))
				if s.Floor < 20 {
					t.Errorf("goes on from step %d", s.Floor)
				}
				j.history.allowed = "the job was started again"
			}
			j.finish()
		})
	}
}

// mend brings the store back.
func mend(t *testing.T, own, store string) {
	t.Helper()
	err := os.Remove(own)
	if err == nil {
		err = os.Symlink(store, own)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStagedStateIsWrittenWithoutItsTrainer: a trainer dies while it stages. The others have staged: the next generation publishes that
// very step from their slabs, in an attempt of its own, and none of their trainers is asked for it again.
func TestStagedStateIsWrittenWithoutItsTrainer(t *testing.T) {
	t.Parallel()
	const step = 40
	j := newSmallArmedJob(t, 3, 100, 40*time.Millisecond)
	j.flags = []string{"--save-every", strconv.Itoa(step)}
	j.run()
	s := j.until("three ranks train", both(whole(3), at(5)))
	lost := follower(t, s)
	j.arm("client-staging", lost.TrainerPID)
	j.hit(lost.TrainerPID, "KILL")
	j.untilReached("client-staging")
	s = j.until("the step is published", func(n *node.Status) bool { return n.Published != nil && n.Published.Step == step })
	if s.Generation < 2 || !strings.Contains(s.Published.Folder, fmt.Sprintf("/step-%d-g2-", step)) && !strings.Contains(s.Published.Folder, fmt.Sprintf("/step-%d-g3-", step)) {
		t.Errorf("in generation %d: published in %s", s.Generation, s.Published.Folder)
	}
	local := func(n *node.Status) bool { return n.Saves.Levels.Local != nil && n.Saves.Levels.Local.Step >= step }
	if l := j.until("it is local", local).Saves.Levels; l.Memory != nil || l.Durable == nil {
		t.Errorf("levels on one host: %+v", l)
	}
	for _, m := range s.Members {
		if m.Member == lost.Member {
			continue
		}
		page, err := wire.OpenPage(node.NewPaths(j.dir, "").Shared(m.Member.Index(), m.Incarnation, "page"))
		if err != nil {
			t.Fatal(err)
		}
		save, asked := page.ReadSave()
		if asked > 2 || asked == 2 && save.Step == step {
			t.Errorf("the trainer of %s was asked %d times for a state, last for step %d", m.Member, asked, save.Step)
		}
		if err := page.Unmap(); err != nil {
			t.Error(err)
		}
	}
	j.until("three ranks train again", both(whole(3), replaced(lost)))
	j.end()
	j.finish()
}

// TestMixedSources: everything is killed and one member's slab is all that is left in memory of a published step. The others read it, its
// daemon dies in that, and they read the rest from the store.
func TestMixedSources(t *testing.T) {
	t.Parallel()
	j := newSmallArmedJob(t, 3, 100, 40*time.Millisecond)
	j.flags = []string{"--save-every", "40"}
	j.run()
	s := j.until("a checkpoint is published and training goes on", func(s *node.Status) bool {
		return s.Published != nil && s.Step >= s.Published.Step+5
	})
	j.killAll()
	for _, index := range []int{0, 1} {
		if err := os.Remove(node.NewPaths(j.dir, "").Shared(index, 1, "slab")); err != nil {
			t.Fatal(err)
		}
	}
	j.forget()
	j.arm("slab-served", 0)
	j.run()
	j.untilReached("slab-served")
	s = j.until("it trains again", both(whole(3), at(s.Step)))
	if s.Branch != 1 {
		t.Errorf("branch %d: somebody was taken out while it healed", s.Branch)
	}
	if j.said("heals the rest from the store") == 0 {
		t.Error("nobody has healed from a slab and from the store")
	}
	j.history.allowed = "everything was killed"
	j.finish()
}

// TestMaxHostBytes: what saves and heals need is summed before training begins. Too little is said at once, with its parts; enough
// is enough for saves too.
func TestMaxHostBytes(t *testing.T) {
	t.Parallel()
	j := newJob(t, 2, 40, 10*time.Millisecond)
	j.flags = []string{"--save-every", "20", "--max-host-bytes", "8MiB"}
	j.run()
	j.refused(2, "--max-host-bytes leaves less", "slab", "buffers of saves")
	j = newJob(t, 2, 40, 10*time.Millisecond)
	j.flags = []string{"--save-every", "20", "--max-host-bytes", "64MiB"}
	j.run()
	s := j.until("a step is published", func(n *node.Status) bool { return n.Published != nil })
	for _, m := range s.Members {
		if m.HostBytes < 1<<20 || m.HostBytes > 32<<20 {
			t.Errorf("%s uses %d bytes of host memory of its 32 MiB", m.Member, m.HostBytes)
		}
		if m.Slabs != 1 {
			t.Errorf("%s has %d slabs", m.Member, m.Slabs)
		}
	}
	least := s.Members[0].HostBytes // without what a save needs for a while
	j.until("more steps", func(n *node.Status) bool {
		if b := n.Members[0].HostBytes; b > 0 {
			least = min(least, b)
		}
		return n.Step >= 30
	})
	j.finish()
	// What one slab needs is there, a second one does not fit: it is left out, and said so.
	j = newJob(t, 2, 40, 10*time.Millisecond)
	j.flags = []string{"--save-every", "20", "--slabs", "2", "--max-host-bytes", strconv.FormatInt(2*least+(128<<10), 10)}
	j.run()
	s = j.until("a step is published", func(n *node.Status) bool { return n.Published != nil })
	notes := strings.Join(s.Notes, "\n")
	if s.Members[0].Slabs != 1 || !strings.Contains(notes, "no second slab: it takes") || !strings.Contains(notes, "more than --max-host-bytes leaves") {
		t.Errorf("%d slabs, notes: %s", s.Members[0].Slabs, notes)
	}
	j.finish()
}
