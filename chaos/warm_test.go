// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx"
	"phalanx/membership"
	"phalanx/node"
)

// slowStart is what a trainer's start costs here. A takeover must not pay it.
const slowStart = 3 * time.Second

// ready waits until n processes that were started ahead wait, none of them among the given ones.
func (j *job) ready(n int, not ...int) []node.WarmProcess {
	j.t.Helper()
	var s *node.WarmState
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
		if s = node.ReadWarmState(node.NewPaths(j.dir, "")); s == nil {
			continue
		}
		waiting := slices.DeleteFunc(slices.Clone(s.Processes), func(p node.WarmProcess) bool {
			return !p.Ready || slices.Contains(not, p.PID) || !membership.Alive(p.PID, p.Start)
		})
		if len(waiting) == n {
			return waiting
		}
	}
	j.t.Fatalf("no %d processes wait for a place: %+v", n, s)
	return nil
}

// niceness are the priorities of a process's threads.
func niceness(t *testing.T, pid int) []int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		if n, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && !slices.Contains(out, 20-n) {
			out = append(out, 20-n) // the system call shifts it
		}
	}
	slices.Sort(out)
	return out
}

func oomScore(pid int) string {
	return strings.TrimSpace(content(fmt.Sprintf("/proc/%d/oom_score_adj", pid)))
}

// TestWarmTakesOver: with a process started ahead, the place of a killed trainer is taken at once although a start takes three
// seconds, and the next one is started. What happens to those that wait harms nobody, and none is left at the end.
func TestWarmTakesOver(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3, 700, 40*time.Millisecond, "--fault-slow-start", slowStart.String(), "--log-every", "10")
	j.flags = []string{"--warm"}
	j.run()
	s := j.until("three ranks train", both(whole(3), at(3)))
	first := j.ready(1)[0]
	usual := niceness(t, find(t, s, s.World[0]).TrainerPID)
	if got := oomScore(first.PID); got != "1000" {
		t.Errorf("memory is not taken from %d first: %s", first.PID, got)
	}
	if os.Getuid() == 0 && !slices.Equal(niceness(t, first.PID), []int{19}) {
		t.Errorf("it waits with priorities %v", niceness(t, first.PID))
	}

	victim := find(t, s, s.World[1])
	began := time.Now()
	j.strike(s, []node.MemberStatus{victim}, nil)
	s = j.until("its place is taken", both(whole(3), replaced(victim)))
	took := time.Since(began)
	t.Logf("kill → full world again: %s", took.Round(time.Millisecond))
	if took >= slowStart {
		t.Errorf("it took %s: a trainer was started for it", took)
	}
	taken := find(t, s, victim.Member)
	if taken.TrainerPID != first.PID {
		t.Errorf("pid %d took the place, want %d, which was started ahead", taken.TrainerPID, first.PID)
	}
	if got := niceness(t, taken.TrainerPID); slices.Max(got) > slices.Max(usual) {
		t.Errorf("the trainer has priorities %v, others %v", got, usual)
	}
	if got := oomScore(taken.TrainerPID); got != oomScore(find(t, s, s.World[0]).TrainerPID) {
		t.Errorf("the kernel prefers to kill the trainer: %s", got)
	}
	life := node.NewPaths(j.dir, "").TrainerLog(phalanx.Incarnate{Member: taken.Member, Incarnation: taken.Incarnation})
	if left, _ := filepath.Glob(filepath.Join(j.dir, "log", "warm.h.1.log")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}

	// One that waits dies: another comes.
	second := j.ready(1, first.PID)[0]
	_ = syscall.Kill(second.PID, syscall.SIGKILL)
	third := j.ready(1, first.PID, second.PID)[0]

	// The daemon of a trainer that was started ahead dies, and the trainer goes on; how it ends is known to the next daemon.
	j.strike(s, nil, []node.MemberStatus{taken})
	s = j.until("the daemon is back beside it", both(whole(3), restarted(taken)))
	if now := find(t, s, taken.Member); now.TrainerPID != first.PID {
		t.Errorf("its trainer is %d, want %d", now.TrainerPID, first.PID)
	}
	if out := content(life); !strings.Contains(out, "seat taken") && !strings.Contains(out, "step=") {
		t.Errorf("its output has none of its lines:\n%s", tail(out, 10))
	}

	other := find(t, s, s.World[0])
	j.strike(s, []node.MemberStatus{other}, nil)
	s = j.until("its place is taken too", both(whole(3), replaced(other)))
	if now := find(t, s, other.Member); now.TrainerPID != third.PID {
		t.Errorf("pid %d took the place, want %d", now.TrainerPID, third.PID)
	}
	j.strike(s, []node.MemberStatus{find(t, s, other.Member)}, nil)
	j.until("it is missed, with how it ended", both(newer(s), func(*node.Status) bool {
		return strings.Contains(content(node.NewPaths(j.dir, "").DaemonLog(other.Member)), "killed by signal 9")
	}))
	j.finish()
	j.noneWaits()
}

// noneWaits wants no process of the job that waits for a place.
func (j *job) noneWaits() {
	j.t.Helper()
	socket := []byte("PHALANX_WARM=" + node.NewPaths(j.dir, "").WarmSocket() + "\x00")
	var left []string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(pollTime) {
		left = nil
		environs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range environs {
			if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, socket) {
				left = append(left, name)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	j.t.Errorf("processes that were started ahead live on: %v", left)
}

// TestWarmEndsWithItsRun: what waits for a place ends when run is stopped, and when it is killed, also while it still starts. Trainers
// that were started ahead outlive it like the others.
func TestWarmEndsWithItsRun(t *testing.T) {
	t.Parallel()
	j := newJob(t, 2, 2000, 40*time.Millisecond, "--fault-slow-start", "1s")
	j.flags = []string{"--warm=2"}
	p := j.run()
	s := j.until("two ranks train", both(whole(2), at(3)))
	victim, waiting := find(t, s, s.World[1]), j.ready(2)
	j.strike(s, []node.MemberStatus{victim}, nil)
	s = j.until("its place is taken", both(whole(2), replaced(victim)))
	taken := find(t, s, victim.Member)
	p.signal(syscall.SIGKILL)
	<-p.ended
	for _, w := range waiting {
		if w.PID == taken.TrainerPID {
			continue
		}
		for end := time.Now().Add(5 * time.Second); membership.Alive(w.PID, w.Start); time.Sleep(pollTime) {
			if time.Now().After(end) {
				t.Fatalf("process %d waits for a run that was killed", w.PID)
			}
		}
	}
	s = j.until("they train on", both(whole(2), at(s.Step+5)))
	if now := find(t, s, victim.Member); now.TrainerPID != taken.TrainerPID {
		t.Errorf("the trainer is %d, want %d", now.TrainerPID, taken.TrainerPID)
	}
	p = j.run()
	j.ready(2)
	p.signal(syscall.SIGTERM)
	j.refused(75, "stopped")
	j.noneWaits()
}

// TestWarmCrashes: a program that cannot be started ahead runs as without --warm, and it is told why.
func TestWarmCrashes(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 2, strings.Replace(plainTrainer, "trap", `[ -z "$PHALANX_WARM" ] || { echo "no RANK before there is a place"; exit 1; }
trap`, 1))
	j.flags = append(j.flags, "--warm")
	j.run()
	s := j.until("two ranks run", whole(2))
	j.generation(s, 2)
	for end := time.Now().Add(patience); ; time.Sleep(pollTime) {
		if w := node.ReadWarmState(node.NewPaths(j.dir, "")); w != nil && strings.Contains(w.Why, "exit status 1: no RANK before there is a place") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing says why none waits")
		}
	}
	rank1 := find(t, s, s.World[1])
	j.strike(s, []node.MemberStatus{rank1}, nil)
	s = j.until("both are started again", both(whole(2), newer(s), replaced(rank1)))
	j.generation(s, 2)
	j.finishPlain(s)
	j.noneWaits()
}
