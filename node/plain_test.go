// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// plainDaemon is as much of a daemon as knows its place in a world.
func plainDaemon(t *testing.T, host string, index int, w phalanx.World) *Daemon {
	t.Helper()
	d := &Daemon{cfg: Config{Job: "j", Host: host, Index: index, Bind: "127.0.0.1", LocalSize: 2, MaxStarts: 3}, paths: NewPaths(t.TempDir(), t.TempDir()), log: quiet()}
	if err := os.MkdirAll(d.paths.Member(index), 0o700); err != nil {
		t.Fatal(err)
	}
	d.plain, d.state = newPlainRun(d), elastic.NewState()
	d.state.World = w
	d.life = &life{who: incarnate(host, index, 1), plain: true}
	return d
}

func plainWorld(generation uint64, seats ...phalanx.Incarnate) phalanx.World {
	w := phalanx.World{Generation: phalanx.Generation{Number: generation}, GroupSize: 1, SlotCount: plainSlots}
	for i, s := range seats {
		w.Seats = append(w.Seats, phalanx.Seat{Incarnate: s, Rank: phalanx.Rank(i), Group: i})
	}
	return w
}

// The variables are torchrun's, also where the ranks of a host do not follow each other.
func TestPlainEnv(t *testing.T) {
	t.Setenv("OMP_NUM_THREADS", "7")
	w := plainWorld(4, incarnate("b", 1, 1), incarnate("a", 0, 3), incarnate("b", 0, 2), incarnate("a", 1, 1))
	for who, want := range map[phalanx.MemberID]string{
		"b/1": "RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0",
		"a/0": "RANK=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1",
		"b/0": "RANK=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0",
		"a/1": "RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1",
	} {
		env := plainDaemon(t, who.Host(), who.Index(), w).plainEnv(&w, "10.0.0.9:29500", 4711, "tok")
		for _, v := range append(strings.Fields(want), "WORLD_SIZE=4", "GROUP_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4711", "TORCHELASTIC_USE_AGENT_STORE=True", "PHALANX_RENDEZVOUS=10.0.0.9:29500",
			"TORCHELASTIC_RESTART_COUNT=3", "TORCHELASTIC_RUN_ID=j", "PHALANX_GENERATION=4", "PHALANX_MEMBER="+string(who)) {
			if !slices.Contains(env, v) {
				t.Errorf("%s: no %s in %v", who, v, env)
			}
		}
		for _, v := range env {
			if strings.HasPrefix(v, "OMP_NUM_THREADS=") {
				t.Errorf("%s: %s is not for a plain trainer", who, v)
			}
		}
	}
}

// Rank 0's daemon names one port for a generation, also after its restart, and a port that can be bound. Nobody else names one.
func TestPlainRendezvous(t *testing.T) {
	w := plainWorld(2, incarnate("a", 0, 1), incarnate("a", 1, 1))
	d := plainDaemon(t, "a", 0, w)
	first, err := d.plain.offer(w.Generation)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", first)
	if err != nil {
		t.Fatalf("the trainer cannot bind it: %v", err)
	}
	defer l.Close()
	if again, err := d.plain.offer(w.Generation); again != first || err != nil {
		t.Errorf("the second answer is %s, %v; want %s", again, err, first)
	}
	back := newPlainRun(d)
	d.plain = back
	back.adopt(d.life)
	if again, err := back.offer(w.Generation); again != first || err != nil {
		t.Errorf("after a restart the answer is %s, %v; want %s", again, err, first)
	}
	if _, err := back.offer(w.Generation.Next()); !errors.Is(err, phalanx.ErrStaleGeneration) {
		t.Errorf("a generation that was not read: %v", err)
	}
	d.state.World = plainWorld(3, incarnate("a", 0, 1), incarnate("a", 1, 1))
	if next, err := back.offer(d.state.World.Generation); err != nil || next == first {
		t.Errorf("the next generation meets at %s, %v; the port of the one before is taken", next, err)
	}
	if _, err := plainDaemon(t, "a", 1, w).plain.offer(w.Generation); !errors.Is(err, phalanx.ErrStaleGeneration) {
		t.Errorf("rank 1 answers: %v", err)
	}
}

// A record counts for its own life in its own boot alone, and run's note for the trainer of the record alone.
func TestPlainRecord(t *testing.T) {
	dir := t.TempDir()
	p, who := NewPaths(dir, ""), incarnate("a", 1, 4)
	if err := os.MkdirAll(p.Member(1), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newPlainRecord(who, phalanx.Generation{Number: 6})
	r.PID, r.Start = 4711, 99
	if err := r.save(p, 1); err != nil {
		t.Fatal(err)
	}
	got, ok := readPlainRecord(p, 1, who)
	if !ok || got != r {
		t.Errorf("read %+v, want %+v", got, r)
	}
	if _, ok := readPlainRecord(p, 1, incarnate("a", 1, 5)); ok {
		t.Error("the record of another life counts")
	}
	NotePlainExit(dir, 2, 4712, 0)
	if _, ok := readPlainExit(p, 1, r.Token); ok {
		t.Error("the status of another process counts")
	}
	NotePlainExit(dir, 2, 4711, 7)
	if code, ok := readPlainExit(p, 1, r.Token); !ok || code != 7 {
		t.Errorf("the status is %d, %t", code, ok)
	}
	if _, ok := readPlainExit(p, 1, "another start"); ok {
		t.Error("the status of another start counts")
	}
	r.Boot = "another boot"
	if err := r.save(p, 1); err != nil {
		t.Fatal(err)
	}
	if _, ok := readPlainRecord(p, 1, who); ok {
		t.Error("the record of another boot counts: its pid is somebody else's")
	}
}

// What a daemon started and could not write down is found by its token, with what it started itself.
func TestFindByToken(t *testing.T) {
	r := newPlainRecord(incarnate("a", 0, 1), phalanx.Generation{Number: 1})
	c := exec.Command("sh", "-c", "sleep 60 & wait")
	c.Env = append(os.Environ(), "PHALANX_START="+r.Token)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }()
	found := false
	for end := time.Now().Add(10 * time.Second); !found && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, x := range findByToken(r.Token) {
			found = found || x.pid == c.Process.Pid
		}
	}
	if !found {
		t.Error("not found")
		_ = c.Process.Kill()
	}
	for _, x := range findByToken(r.Token) {
		x.kill()
	}
	if left := findByToken(strings.Repeat("0", 32)); len(left) != 0 {
		t.Errorf("another token finds %v", left)
	}
}

// The life of a plain member possesses the seed's state, wherever it sits, until its trainer has failed.
func TestPlainPossession(t *testing.T) {
	l := &life{who: incarnate("a", 0, 1), plain: true}
	if p := l.readTrainer().Possession; !p.Possesses(phalanx.Label{Coordinate: 0}) {
		t.Errorf("possesses %+v", p)
	}
	l.died = &phalanx.Evidence{Kind: phalanx.TrainerExited}
	if p := l.readTrainer().Possession; p.Trainer || p.Holds {
		t.Errorf("the dead possesses %+v", p)
	}
	if err := plainSpec().Validate(); err != nil {
		t.Error(err)
	}
}
