// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx/node"
)

// plainTrainer is a program that knows nothing of Phalanx: it writes its variables down, is at work until it is told to
// finish, and says when it is asked to end. $1 is the folder.
const plainTrainer = `#!/bin/sh
trap 'echo "TERM to $$" >> "$1/terms"; exit 0' TERM
env > "$1/new.$$"
mv "$1/new.$$" "$1/env.$PHALANX_GENERATION.$RANK.$$"
while [ ! -e "$1/finish" ] && [ ! -e "$1/finish.$RANK" ]; do sleep 0.05; done
`

// plainJob is a job whose trainers are shell scripts.
type plainJob struct {
	*job
	out string
}

func newPlainJob(t *testing.T, nproc int, script string) *plainJob {
	t.Helper()
	j := &plainJob{job: newJob(t, nproc, 1, 0), out: t.TempDir()}
	name := filepath.Join(j.out, "trainer.sh")
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	j.cmd, j.flags = []string{name, j.out}, []string{"--plain", "--grace", "5s"}
	t.Cleanup(func() { // before the job's own, which does not know trainers without a socket
		j.tell("finish")
		j.job.killAll()
		for _, v := range j.started() {
			if environ, err := os.ReadFile("/proc/" + v["pid"] + "/environ"); err == nil && strings.Contains(string(environ), v["PHALANX_START"]) {
				pid, _ := strconv.Atoi(v["pid"])
				_ = syscall.Kill(-pid, syscall.SIGKILL) // has ended
			}
		}
	})
	return j
}

func (j *plainJob) tell(what string) {
	if err := os.WriteFile(filepath.Join(j.out, what), nil, 0o600); err != nil {
		j.t.Error(err)
	}
}

// started are the variables of every trainer that was started, with its pid, by generation and rank.
func (j *plainJob) started() []map[string]string {
	names, _ := filepath.Glob(filepath.Join(j.out, "env.*"))
	slices.Sort(names)
	var out []map[string]string
	for _, name := range names {
		v := map[string]string{"pid": name[strings.LastIndexByte(name, '.')+1:]}
		for line := range strings.Lines(content(name)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				v[key] = value
			}
		}
		out = append(out, v)
	}
	return out
}

// generation waits until n trainers of a generation have started, and checks their variables.
func (j *plainJob) generation(s *node.Status, n int) []map[string]string {
	j.t.Helper()
	var all []map[string]string
	for end := time.Now().Add(patience); ; time.Sleep(pollTime) {
		all = slices.DeleteFunc(j.started(), func(v map[string]string) bool { return v["PHALANX_GENERATION"] != fmt.Sprint(s.Generation) })
		if len(all) >= n {
			break
		}
		if time.Now().After(end) {
			j.t.Fatalf("%d of %d trainers of generation %d have started", len(all), n, s.Generation)
		}
	}
	for i, v := range all {
		for key, want := range map[string]string{
			"RANK": strconv.Itoa(i), "LOCAL_RANK": strconv.Itoa(i), "WORLD_SIZE": strconv.Itoa(n), "LOCAL_WORLD_SIZE": strconv.Itoa(n), "GROUP_RANK": "0",
			"MASTER_ADDR": "127.0.0.1", "PHALANX_RENDEZVOUS": all[0]["PHALANX_RENDEZVOUS"], "TORCHELASTIC_RESTART_COUNT": fmt.Sprint(s.Generation - 1),
			"PHALANX_MEMBER": string(s.World[i]),
		} {
			if v[key] != want {
				j.t.Errorf("generation %d rank %d has %s=%s, want %s", s.Generation, i, key, v[key], want)
			}
		}
	}
	if len(all) != n {
		j.t.Errorf("generation %d has %d trainers, want %d: one was started twice", s.Generation, len(all), n)
	}
	return all
}

func newer(s *node.Status) func(*node.Status) bool {
	return func(now *node.Status) bool { return now.Generation > s.Generation }
}

func pids(all []map[string]string) []string {
	var out []string
	for _, v := range all {
		out = append(out, v["pid"])
	}
	return out
}

// finishPlain lets the trainers end and wants the job to be done.
func (j *plainJob) finishPlain(s *node.Status) {
	j.t.Helper()
	j.tell("finish")
	p := j.end()
	want := fmt.Sprintf("phalanx: done step=0 generation=%d digest=%032d\n", s.Generation, 0)
	if p.code != 0 || !strings.HasSuffix(p.out(), want) {
		j.t.Errorf("the run ended with %d, want 0 and %q\n%s", p.code, want, tail(p.out()+p.errs(), 15))
	}
}

// TestPlainRestartsAll: the death of one trainer ends the others in order and starts all of them with new variables.
func TestPlainRestartsAll(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 3, plainTrainer)
	j.run()
	s := j.until("three ranks run", whole(3))
	first := j.generation(s, 3)
	victim := find(t, s, s.World[1])
	j.strike(s, []node.MemberStatus{victim}, nil)
	s = j.until("all are started again", both(whole(3), replaced(victim), newer(s)))
	second := j.generation(s, 3)
	terms := content(filepath.Join(j.out, "terms"))
	for _, v := range first {
		if heard := strings.Contains(terms, "TERM to "+v["pid"]+"\n"); heard != (v["RANK"] != "1") {
			t.Errorf("rank %s of the first generation heard TERM: %t", v["RANK"], heard)
		}
	}
	for _, v := range []string{"MASTER_PORT", "PHALANX_RENDEZVOUS"} {
		if first[0][v] == second[0][v] {
			t.Errorf("two generations meet at %s=%s", v, first[0][v])
		}
	}
	j.finishPlain(s)
}

// TestPlainOutlivesDaemons: a daemon's death beside a living trainer restarts nothing, and how such a trainer ends is still
// known: here all of them end well after every daemon was killed.
func TestPlainOutlivesDaemons(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 3, plainTrainer)
	j.run()
	s := j.until("three ranks run", whole(3))
	first := j.generation(s, 3)
	leader := find(t, s, s.Leader)
	j.strike(s, nil, []node.MemberStatus{leader})
	s = j.until("the leader's daemon is back", both(whole(3), restarted(leader)))
	for _, id := range s.World {
		if m := find(t, s, id); m.Member != leader.Member {
			j.strike(s, nil, []node.MemberStatus{m})
			s = j.until("its daemon is back", both(whole(3), restarted(m)))
		}
	}
	if s.Generation != 1 || !slices.Equal(pids(j.started()), pids(first)) {
		t.Errorf("generation %d, trainers %v, want those of generation 1: %v", s.Generation, pids(j.started()), pids(first))
	}
	j.finishPlain(s)
}

// TestPlainFinishedStartsAgain: a rank that has exited with 0 waits for the others, and starts again with them if one fails.
func TestPlainFinishedStartsAgain(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 2, plainTrainer)
	j.run()
	s := j.until("two ranks run", whole(2))
	j.generation(s, 2)
	j.tell("finish.0")
	rank0, rank1 := find(t, s, s.World[0]), find(t, s, s.World[1])
	s = j.until("rank 0 has ended", func(s *node.Status) bool { return find(t, s, rank0.Member).TrainerPID == 0 })
	if s.Phase != "running" || s.Generation != 1 {
		t.Errorf("after the end of rank 0: %s", describe(s))
	}
	if err := os.Remove(filepath.Join(j.out, "finish.0")); err != nil {
		t.Fatal(err)
	}
	j.strike(s, []node.MemberStatus{rank1}, nil)
	s = j.until("both are started again", both(whole(2), newer(s), replaced(rank1)))
	j.generation(s, 2)
	j.finishPlain(s)
}

// TestPlainStops: TERM to run reaches the trainers, also one that does not listen; the same command goes on.
func TestPlainStops(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 2, strings.Replace(plainTrainer, "; exit 0' TERM", `; [ $RANK = 1 ] || exit 0' TERM`, 1))
	j.flags = []string{"--plain", "--grace", "1s"}
	p := j.run()
	s := j.until("two ranks run", whole(2))
	first := j.generation(s, 2)
	p.signal(syscall.SIGTERM)
	j.refused(75, "stopped on request")
	terms := content(filepath.Join(j.out, "terms"))
	for _, v := range first {
		if !strings.Contains(terms, "TERM to "+v["pid"]+"\n") {
			t.Errorf("rank %s heard no TERM", v["RANK"])
		}
		if environ, err := os.ReadFile("/proc/" + v["pid"] + "/environ"); err == nil && strings.Contains(string(environ), v["PHALANX_START"]) {
			t.Errorf("rank %s lives on", v["RANK"])
		}
	}
	j.forget()
	j.run()
	s = j.until("two ranks run again", both(whole(2), newer(s)))
	j.generation(s, 2)
	j.finishPlain(s)
}

// TestPlainCrashLoop: trainers that fail at every start end the job with the reason, after the budget.
func TestPlainCrashLoop(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 2, "#!/bin/sh\nenv > \"$1/env.$PHALANX_GENERATION.$RANK.$$\"\necho the disk of rank $RANK is full\nexit 3\n")
	j.run("--max-restarts", "2")
	j.refused(1, "started 3 times without a minute of uptime", "--max-restarts 2", "is full")
	starts := map[string]int{}
	for _, v := range j.started() {
		starts[v["PHALANX_MEMBER"]]++
	}
	for _, m := range []string{"h/0", "h/1"} {
		if starts[m] < 1 || starts[m] > 6 { // three of its own, and as often it was started anew because the other failed
			t.Errorf("%s was started %d times", m, starts[m])
		}
	}
}

// TestPlainEndsWithItsDaemon: a daemon is killed in the instant in which its trainer ends well. Its successor learns how it
// ended, and nothing is run again.
func TestPlainEndsWithItsDaemon(t *testing.T) {
	t.Parallel()
	j := newPlainJob(t, 3, plainTrainer)
	j.run()
	s := j.until("three ranks run", whole(3))
	j.generation(s, 3)
	m := find(t, s, s.World[1])
	if m.Member == s.Leader {
		m = find(t, s, s.World[2])
	}
	j.strike(s, nil, []node.MemberStatus{m})
	j.tell("finish." + strconv.Itoa(m.Rank))
	s = j.until("the daemon is back and its trainer has ended", both(restarted(m), func(s *node.Status) bool { return find(t, s, m.Member).TrainerPID == 0 }))
	if s.Generation != 1 {
		t.Errorf("its end made generation %d", s.Generation)
	}
	j.finishPlain(s)
}
