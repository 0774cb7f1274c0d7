// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"phalanx/internal/failpoint"
	"phalanx/node"
)

// buildArmed makes the programs once more, with the fail points in them. It returns their folder.
var buildArmed = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(bin, "armed")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "failpoints", "-o", dir+"/", "../cmd/phalanx", "../cmd/phalanx-lm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with fail points: %w\n%s", err, out)
	}
	return dir, nil
})

// newArmedJob makes a job whose processes have fail points.
func newArmedJob(t *testing.T, nproc, steps int, floor time.Duration, more ...string) *job {
	t.Helper()
	dir, err := buildArmed()
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(t, nproc, steps, floor, more...)
	j.bin = dir
	j.cmd[0] = j.program("phalanx-lm")
	j.points = t.TempDir()
	j.env = []string{armedFolder(j.points)}
	return j
}

// newSmallArmedJob makes one that costs little: many of them run.
func newSmallArmedJob(t *testing.T, nproc, steps int, floor time.Duration, more ...string) *job {
	t.Helper()
	small := []string{"--slots", "4", "--global-batch", "4"}
	j := newArmedJob(t, nproc, steps, floor, slices.Concat(small, []string{"--log-every", "1"}, more)...)
	j.train = append(j.train, small...)
	return j
}

// arm makes a process end itself at a place: the one with that pid, or with 0 whichever comes there first.
func (j *job) arm(name string, pid int) {
	j.t.Helper()
	content := ""
	if pid != 0 {
		content = strconv.Itoa(pid)
	}
	// By a new name, so that nobody reads half of it.
	whole := filepath.Join(filepath.Dir(j.dir), "arming")
	err := os.WriteFile(whole, []byte(content), 0o600)
	if err == nil {
		err = os.Rename(whole, filepath.Join(j.points, name))
	}
	if err != nil {
		j.t.Fatal(err)
	}
}

// readHits notes who has ended itself at a fail point. It is written before the kill, so nobody sees the end before.
func (h *history) readHits() {
	if h.points == "" {
		return
	}
	names, _ := filepath.Glob(filepath.Join(h.points, "*"+failpoint.HitSuffix))
	for _, name := range names {
		if pid, err := strconv.Atoi(content(name)); err == nil && h.struck[pid] == "" {
			h.hit(pid, strings.TrimSuffix(filepath.Base(name), failpoint.HitSuffix))
		}
	}
}

// reached reports who ended itself at a fail point, 0 while nobody has.
func (j *job) reached(name string) int {
	pid, err := strconv.Atoi(content(filepath.Join(j.points, name+failpoint.HitSuffix)))
	if err != nil {
		return 0
	}
	return pid
}

// untilReached waits for the end of a process at a fail point. The job may end meanwhile.
func (j *job) untilReached(name string) {
	j.t.Helper()
	for end := time.Now().Add(patience); j.reached(name) == 0; time.Sleep(pollTime) {
		_, _ = j.look() // for the history
		ended := false
		select {
		case <-j.newest().ended:
			ended = j.reached(name) == 0
		default:
		}
		if ended || time.Now().After(end) {
			s, _ := j.look()
			j.t.Fatalf("fail point %s was not reached; last seen: %s", name, describe(s))
		}
	}
}

// moment is when a fail point is reached, and what the test does for that.
type moment int

const (
	starting  moment = iota // armed before the job starts
	training                // armed while all ranks train
	saving                  // likewise; a save is due soon
	losing                  // then the trainer of another member is killed
	rejoining               // likewise, and the point is in whoever comes back
	returning               // then the daemon of the same member is killed
	finishing               // armed while all ranks train; reached at the job's end
)

// many reports whether a job comes to such points again and again. Daemons that die too often at their start end the run.
func (m moment) many() bool { return m == training || m == saving || m == losing || m == rejoining }

// victim is the process that a fail point ends.
type victim int

const (
	anybody victim = iota
	daemon         // of a member that does not lead and is not hit otherwise
	leader         // the leader's daemon
	trainer        // of a member that does not lead
	loser          // the daemon of the member whose trainer is killed
)

// point is one fail point, and how a job reaches it.
type point struct {
	name string
	when moment
	who  victim
	more []string // arguments of the trainers
}

var points = []point{
	{"founding", starting, anybody, nil},
	{"bootstrapped", starting, anybody, nil},
	{"founded", starting, anybody, nil},
	{"raft-opened", starting, anybody, nil},
	{"incarnation-written", starting, anybody, nil},
	{"life-made", starting, anybody, nil},
	{"daemon-started", starting, anybody, nil},
	{"trainer-started", starting, anybody, nil},
	{"hello-heard", starting, anybody, nil},
	{"hello-written", starting, anybody, nil},
	{"client-attached", starting, anybody, nil},
	{"admitting", starting, anybody, nil},

	{"vote-writing", training, daemon, nil},
	{"vote-written", training, daemon, nil},
	{"commit-telling", training, daemon, nil},
	{"commit-written", training, daemon, nil},
	{"commit-told", training, leader, nil},
	{"applying-seen", training, daemon, []string{"--fault-slow-apply", "15ms"}},
	{"applied-seen", training, daemon, nil},
	{"collective-completing", training, daemon, nil},
	{"collective-completed", training, leader, nil},
	{"lease-granted", training, daemon, nil},
	{"lease-written", training, daemon, nil},
	{"client-seat-taken", training, trainer, nil},
	{"client-gradient-written", training, trainer, nil},
	{"client-vote-asked", training, trainer, nil},
	{"client-applying", training, trainer, nil},
	{"client-optimizer-returned", training, trainer, nil},
	{"client-applied", training, trainer, nil},

	{"save-announced", saving, leader, nil},
	{"save-asked", saving, daemon, nil},
	{"client-staging", saving, trainer, nil},
	{"client-staged", saving, trainer, nil},
	{"staged", saving, daemon, nil},
	{"shard-writing", saving, daemon, nil},
	{"shard-written", saving, daemon, nil},
	{"publishing", saving, leader, nil},
	{"commit-object", saving, leader, nil},
	{"publish-committed", saving, leader, nil},
	{"published", saving, leader, nil},
	{"level-reached", saving, leader, nil},

	{"trainer-death-seen", losing, loser, nil},
	{"seal-round-begun", losing, leader, nil},
	{"seal-asked", losing, daemon, nil},
	{"sealing", losing, daemon, nil},
	{"sealed", losing, daemon, nil},
	{"revoked", losing, daemon, nil},
	{"seal-answering", losing, daemon, nil},
	{"seal-answered", losing, daemon, nil},
	{"proposing", losing, leader, nil},
	{"form-committed", losing, leader, nil},
	{"entry-applied", losing, leader, nil},
	{"entry-read", losing, daemon, nil},
	{"seat-writing", losing, daemon, nil},
	{"seat-written", losing, daemon, nil},
	{"form-begun", losing, daemon, nil},
	{"peers-mapped", losing, daemon, nil},
	{"formed", losing, daemon, nil},
	{"activating", losing, leader, nil},
	{"fenced-out", losing, loser, nil},
	{"sweeping", losing, loser, nil},

	{"heal-begun", rejoining, anybody, nil},
	{"heal-half-way", rejoining, anybody, nil},
	{"healed", rejoining, anybody, nil},
	{"heal-end-written", rejoining, anybody, nil},
	{"heal-result-seen", rejoining, anybody, nil},
	{"donor-asked-trainer", rejoining, anybody, nil},
	{"donor-serving", rejoining, anybody, nil},
	{"client-serving", rejoining, anybody, nil},
	{"client-heal-begun", rejoining, anybody, nil},
	{"client-heal-filling", rejoining, anybody, nil},
	{"client-heal-verified", rejoining, anybody, nil},
	{"client-heal-labelled", rejoining, anybody, nil},
	{"client-healed", rejoining, anybody, nil},

	{"page-adopted", returning, anybody, nil},
	{"promises-read", returning, anybody, nil},
	{"took-over", returning, anybody, nil},

	{"client-finishing", finishing, trainer, nil},
	{"client-done", finishing, trainer, nil},
	{"done-seen", finishing, daemon, nil},
	{"finishing", finishing, leader, nil},
	{"done-committed", finishing, leader, nil},
	{"outcome-writing", finishing, daemon, nil},
	{"outcome-written", finishing, daemon, nil},
}

// elsewhere are the fail points that have a test of their own.
var elsewhere = map[string]string{
	"rolled-forward":   "TestRollForwardAfterALostVote",
	"refusing":         "TestRefusalSurvives",
	"refused":          "TestRefusalSurvives",
	"copy-begun":       "TestPeerCopies",
	"copy-filled":      "TestPeerCopies",
	"copy-kept":        "TestPeerCopies",
	"slab-served":      "TestMixedSources",
	"share-taken-over": "TestHostWithoutItsStore",

	"second-save-announced": "TestKillsWithBothSlabsFull",

	"checkpoints-forgotten": "TestLeaderDiesWhileItRetains",
	"plain-start":           "TestPlainDaemonDiesAtStart",
}

// TestEveryFailPoint kills one process at each place that matters, and wants the bits of an undisturbed run, with everybody
// else where he was. What is reached once in a job has a job of its own; a few of the others share one, one after the other.
func TestEveryFailPoint(t *testing.T) {
	const together = 4 // a daemon that dies five times in a row right after its start ends the run
	rest := slices.Clone(points)
	for len(rest) > 0 {
		n := 1
		for n < len(rest) && n < together && rest[n].when == rest[0].when && len(rest[0].more)+len(rest[n].more) == 0 && rest[0].when.many() {
			n++
		}
		group := rest[:n]
		rest = rest[n:]
		names := make([]string, n)
		for i, p := range group {
			names[i] = p.name
		}
		t.Run(strings.Join(names, ","), func(t *testing.T) {
			t.Parallel()
			testPoints(t, group)
		})
	}
}

func testPoints(t *testing.T, group []point) {
	when := group[0].when
	j := newSmallArmedJob(t, 3, 20+40*len(group), 40*time.Millisecond, group[0].more...)
	if when == saving {
		j.flags = []string{"--save-every", "20"}
	}
	if when == starting {
		j.arm(group[0].name, 0)
	}
	j.run()
	if when == starting {
		j.untilReached(group[0].name)
	}
	s := j.until("three ranks train", both(whole(3), at(3)))
	for _, p := range group {
		if when != starting {
			s = p.test(j, s)
		}
	}
	begun := time.Now()
	j.end()
	if took := time.Since(begun); when == finishing && took > patience/2 {
		t.Errorf("the job ended %s after the kill: somebody waited for what does not come", took.Round(time.Second))
	}
	j.finish()
}

// test lets the point be reached in a job whose ranks all train, and waits until they do again.
func (p *point) test(j *job, s *node.Status) *node.Status {
	t := j.t
	t.Helper()
	lost := follower(t, s)
	i := slices.IndexFunc(s.Members, func(m node.MemberStatus) bool { return m.Member != lost.Member && m.Member != s.Leader })
	pid := p.pid(t, s, lost, s.Members[i])
	t.Logf("step %d generation %d: fail point %s, armed for %d", s.Step, s.Generation, p.name, pid)
	j.arm(p.name, pid)
	gone := []func(*node.Status) bool{whole(3)}
	switch p.when {
	case losing, rejoining:
		j.strike(s, []node.MemberStatus{lost}, nil)
		gone = append(gone, replaced(lost))
	case returning:
		j.hit(lost.TrainerPID, "its daemon is killed twice, which may take longer than a daemon may be gone")
		j.strike(s, nil, []node.MemberStatus{lost})
		gone = append(gone, restarted(lost))
	default:
	}
	j.untilReached(p.name)
	if p.when == finishing {
		return s
	}
	for _, m := range s.Members { // who was armed by pid has a successor
		switch pid {
		case m.DaemonPID:
			gone = append(gone, restarted(m))
		case m.TrainerPID:
			gone = append(gone, replaced(m))
		}
	}
	return j.until("three ranks train after "+p.name, both(append(gone, at(s.Step+3))...))
}

// pid is the process that the point is armed for.
func (p *point) pid(t *testing.T, s *node.Status, lost, other node.MemberStatus) int {
	switch p.who {
	case daemon:
		return other.DaemonPID
	case leader:
		return find(t, s, s.Leader).DaemonPID
	case trainer:
		return other.TrainerPID
	case loser:
		return lost.DaemonPID
	case anybody:
	}
	return 0
}

// TestFailPointsAreTested: what the source has and what the tests kill at are the same places.
func TestFailPointsAreTested(t *testing.T) {
	tested := map[string]bool{}
	for _, p := range points {
		if tested[p.name] {
			t.Errorf("%s is twice in the table", p.name)
		}
		tested[p.name] = true
	}
	for name := range elsewhere {
		if tested[name] {
			t.Errorf("%s is in both tables", name)
		}
		tested[name] = true
	}
	placed := map[string]int{}
	for _, name := range failPoints(t) {
		placed[name]++
	}
	for name, n := range placed {
		if !tested[name] {
			t.Errorf("fail point %q has no test: add it to the table", name)
		}
		if n != 1 {
			t.Errorf("fail point %q is at %d places: a test of it would reach one of them", name, n)
		}
	}
	for name := range tested {
		if placed[name] == 0 {
			t.Errorf("fail point %q is tested and in no source", name)
		}
	}
}

// armedFolder is the variable that tells a process where its fail points are armed.
func armedFolder(dir string) string { return failpoint.Environment + "=" + dir }
