// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/node"
)

// startHosts starts a job of one member on each of several hosts: names and folders of this machine, whose daemons reach each other by
// TCP alone. The first one's job knows the history of all.
func startHosts(t *testing.T, names []string, steps int, floor time.Duration, flags, args []string) []*job {
	t.Helper()
	var jobs []*job
	key := "PHALANX_KEY=" + node.NewJobKey().String()
	for i, name := range names {
		j := newSmallArmedJob(t, 1, steps, floor, args...)
		j.host = name
		if i > 0 {
			j.points = jobs[0].points
			j.env = jobs[0].env
		} else {
			j.env = append(j.env, key)
		}
		j.flags = append([]string{"--job", "hosts", "--bind", "127.0.0.1"}, flags...)
		jobs = append(jobs, j)
	}
	first := jobs[0]
	store := filepath.Join(filepath.Dir(first.dir), "behind")
	for _, j := range jobs {
		j.flags = append(j.flags, "--store", store)
	}
	first.run()
	var d node.DaemonFile
	for end := time.Now().Add(patience); d.Addr == ""; time.Sleep(pollTime) {
		_ = json.Unmarshal([]byte(content(node.NewPaths(first.dir, "").DaemonFile(0))), &d) // not there yet
		if time.Now().After(end) {
			t.Fatalf("no daemon of the first host says where it listens\n%s", tail(first.newest().errs(), 15))
		}
	}
	for _, j := range jobs[1:] {
		j.flags = append(j.flags, "--join", d.Addr)
		j.run()
	}
	return jobs
}

// TestPeerCopies: a group of two ranks on two hosts, and a spare on a third one. Each coordinate is in the memory of one host alone, so
// the other one keeps a copy. The store is gone. A host is lost with its memory; the spare takes its rank and reads the state from
// the copy. Whoever keeps the copy dies before, while and after it is filled.
func TestPeerCopies(t *testing.T) {
	const saved = 40
	for _, point := range []string{"", "copy-begun", "copy-filled", "copy-kept"} {
		name := point
		if name == "" {
			name = "undisturbed"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slabs := "1"
			if point == "copy-kept" {
				slabs = "2"
			}
			jobs := startHosts(t, []string{"h", "i", "k"}, 200, 40*time.Millisecond,
				[]string{"--nnodes", "1:3", "--min", "2", "--save-every", "40", "--slabs", slabs}, []string{"--group-size", "2"})
			a := jobs[0]
			// Nothing can be written into the job's folder of the store, which holds nothing and can be read.
			folder := filepath.Join(filepath.Dir(a.dir), "behind", "hosts")
			a.until("a group trains and a spare is there", func(s *node.Status) bool {
				return len(s.World) == 2 && len(s.Members) == 3 && s.Step >= 5 && s.GroupSize == 2
			})
			if err := os.WriteFile(folder, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if point != "" {
				a.arm(point, 0)
				a.untilReached(point)
			}
			s := a.until("a state is in the memory of two hosts", func(s *node.Status) bool {
				return s.Saves.Levels.Memory != nil && s.Saves.Levels.Memory.Step >= saved && s.Saves.Levels.Memory.Held
			})
			reached := s.Saves.Levels.Memory.Step
			if s.Published != nil {
				t.Fatalf("step %d is published without a store", s.Published.Step)
			}
			// The host of a rank of the group is lost, not the one that is asked.
			lost := jobs[1]
			if len(s.World) == 2 && string(s.World[0].Host()) != lost.host && string(s.World[1].Host()) != lost.host {
				lost = jobs[2]
			}
			for _, m := range s.Members {
				if m.Host == lost.host {
					a.hit(m.TrainerPID, "its host is lost")
				}
			}
			lost.killAll()
			lost.reboot()
			g := s.Generation
			s = a.until("the group trains again", func(s *node.Status) bool {
				return s.Generation > g && len(s.World) == 2 && s.Phase == "running" && s.Step > s.Floor
			})
			if s.Floor < reached || s.Branch != 1 {
				t.Errorf("goes on from step %d on branch %d, want a rewind to step %d at least", s.Floor, s.Branch, reached)
			}
			slab := 0
			for _, j := range jobs {
				slab += j.said("msg=heals", "source=slab")
			}
			if slab == 0 {
				t.Error("nobody has healed from a slab")
			}
			if err := os.Remove(folder); err != nil {
				t.Fatal(err)
			}
			a.checkGroup(t)
		})
	}
}

// checkGroup waits for the end of a job in groups of two, and wants each coordinate to end as an undisturbed run of it does.
func (j *job) checkGroup(t *testing.T) {
	t.Helper()
	p := j.end()
	if p.code != 0 {
		t.Fatalf("the run ended with %d\n%s", p.code, tail(p.out()+p.errs(), 15))
	}
	m := doneLine.FindStringSubmatch(p.out())
	if m == nil {
		t.Fatalf("no result\n%s", tail(p.out(), 5))
	}
	want := []phalanx.Digest{}
	for _, c := range []string{"0", "1"} {
		digest := oracle(t, append(append([]string{}, j.train...), "--group-size", "2", "--coordinate", c)...)
		d, err := phalanx.ParseDigest(digest)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, d)
	}
	if want[0] == want[1] {
		t.Fatal("both coordinates train the same model")
	}
	if m[3] != want[0].String() {
		t.Errorf("coordinate 0 ends with %s, undisturbed it is %s", m[3], want[0])
	}
	for _, line := range finalLine.FindAllString(strings.ReplaceAll(p.out(), " | ", "\n"), -1) {
		if !strings.HasSuffix(line, want[0].String()) && !strings.HasSuffix(line, want[1].String()) {
			t.Errorf("a trainer ended with neither coordinate's parameters: %s", line)
		}
	}
}
