// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/membership"
)

// dying is a machine on which one process is being killed and its memory is not unmapped yet.
type dying struct {
	kernel
	pid   int
	code  int
	alive atomic.Bool
}

func (s *dying) Stat(int) (membership.ProcStat, error) {
	return membership.ProcStat{State: 'R', Threads: 3, Start: 7, ExitCode: s.code}, nil
}
func (s *dying) Alive(int, uint64) bool { return s.alive.Load() }
func (s *dying) Kill(int, uint64)       {}

func dyingDaemon(t *testing.T, code int) (*Daemon, *dying) {
	t.Helper()
	s := &dying{pid: 70, code: code}
	s.alive.Store(true)
	who := phalanx.Incarnate{Member: "a/0", Incarnation: 1}
	d := &Daemon{cfg: Config{Host: "a", LocalSize: 1}, log: quiet(), ctx: t.Context(), state: elastic.NewState(), posts: make(chan func(), 16),
		siblings: make([]*sibling, wire.BellLines/2), paths: NewPaths(t.TempDir(), t.TempDir()).in(wire.NewHeapMemory()).on(s)}
	d.peers, d.saver, d.kv = newPeerLinks(d), newSaver(d), newStores(d)
	l, err := newLife(d.paths, 0, who)
	if err != nil {
		t.Fatal(err)
	}
	l.machine = elastic.NewMachine(who, d.state, elastic.Page{})
	l.trainer = &trainerProcess{system: s, pid: s.pid, start: 7, own: true}
	l.helloPID, l.helloStart = s.pid, 7
	d.life, d.starting = l, true // nothing is started here
	return d, s
}

// TestTrainerIsDeadOnceItIsKilled: the kernel has decided on its end; that its memory is still mapped keeps nobody waiting
// except the trainer that comes after it.
func TestTrainerIsDeadOnceItIsKilled(t *testing.T) {
	d, s := dyingDaemon(t, int(syscall.SIGKILL))
	l := d.life
	d.pulseEnded(l, time.Now())
	if l.died == nil || l.died.Kind != phalanx.TrainerExited || l.died.Detail != "killed by signal 9 (killed)" || l.trainer != nil {
		t.Fatalf("died: %+v, trainer %+v", l.died, l.trainer)
	}
	began := *l.died
	d.trainerEnded(l.who, "killed by signal 9 (killed)", 137, time.Now().Add(time.Minute)) // wait tells it too, later
	if *l.died != began {
		t.Fatalf("%+v became %+v", began, *l.died)
	}
	free := make(chan bool, 1)
	go func() { free <- d.awaitEnd(d.before) }()
	select {
	case <-free:
		t.Fatal("the next trainer starts while the last one has its memory")
	case <-time.After(50 * time.Millisecond):
	}
	s.alive.Store(false)
	select {
	case ok := <-free:
		if !ok {
			t.Fatal("not free although the process has ended")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the process was not seen")
	}
}

// TestPulseAloneProvesNothing: a thread may end while its process lives, is stopped, or exits by itself.
func TestPulseAloneProvesNothing(t *testing.T) {
	for _, code := range []int{0, int(syscall.SIGSTOP), 1 << 8} {
		d, _ := dyingDaemon(t, code)
		d.pulseEnded(d.life, time.Now())
		if d.life.died != nil || d.life.trainer == nil {
			t.Errorf("exit code %#x: died: %+v", code, d.life.died)
		}
	}
	d, _ := dyingDaemon(t, int(syscall.SIGKILL))
	d.life.helloStart = 8 // another process has the number by now
	d.pulseEnded(d.life, time.Now())
	if d.life.died != nil {
		t.Errorf("another process's end is taken for the trainer's: %+v", d.life.died)
	}
}
