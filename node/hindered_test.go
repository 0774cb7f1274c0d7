// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// fullMemory has no room for pages as often as it says.
type fullMemory struct {
	wire.Memory
	refuse int
}

func (m *fullMemory) CreatePage(path string, daemonBell, trainerBell int) (*wire.Page, error) {
	if m.refuse > 0 {
		m.refuse--
		return nil, &wire.SpaceError{Path: path, Needed: wire.PageBytes, Available: 0}
	}
	return m.Memory.CreatePage(path, daemonBell, trainerBell)
}

// fullSystem cannot start a process as often as it says.
type fullSystem struct {
	System
	refuse  int
	started int
	err     error
}

func (s *fullSystem) Start(Command, func(string, int)) (int, uint64, error) {
	if s.refuse > 0 {
		s.refuse--
		return 0, 0, fmt.Errorf("start trainer: %w", s.err)
	}
	s.started++
	pid, start := selfProcess()
	return pid, start, nil
}

func (s *fullSystem) Kill(int, uint64) {} // what it "started" is this test

// evicted is a daemon whose member the log has just removed.
func evicted(t *testing.T, m *fullMemory, s *fullSystem) *Daemon {
	t.Helper()
	d := lone(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	d.ctx, d.cancel = ctx, cancel
	s.System = d.paths.system
	m.Memory = d.paths.memory
	d.paths.memory, d.paths.system = m, s
	if err := os.MkdirAll(d.paths.Member(0), 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.procs, err = d.paths.system.Watch(d.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel(nil)
		d.ends.Wait()
		_ = d.procs.Close()
	})
	d.cfg.Command = []string{"trainer"}
	d.restart = RestartPolicy{Max: 3}
	gone := *d.state
	gone.Seq++
	gone.Members = []elastic.Member{{Incarnate: d.life.who, State: elastic.Gone}}
	gone.World.Generation.Number, gone.World.Seats = 2, nil
	d.adoptState(&gone)
	return d
}

// work runs what is posted to the loop until ok.
func work(t *testing.T, d *Daemon, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		select {
		case f := <-d.posts:
			f()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("waited too long until %s: failed %q, hindered %q", what, d.failed, d.hindered)
		}
	}
}

// Whatever a life or a trainer needs and does not get for a while does not keep the member out: it is tried until it is there.
func TestNoRoomForAWhileDoesNotKeepAMemberOut(t *testing.T) {
	for _, c := range []struct {
		name          string
		pages, starts int
		err           error
	}{
		{"no room for the page", 3, 0, nil},
		{"no room for the output", 0, 5, syscall.ENOSPC}, // more often than trainers may die
		{"no processes", 0, 5, syscall.EAGAIN},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, s := &fullMemory{refuse: c.pages}, &fullSystem{refuse: c.starts, err: c.err}
			d := evicted(t, m, s)
			if c.pages > 0 && (d.hindered == "" || d.failed != "") {
				t.Errorf("hindered %q, failed %q", d.hindered, d.failed)
			}
			work(t, d, "the trainer is started", func() bool { return s.started == 1 })
			if d.failed != "" || d.hindered != "" || d.life.trainer == nil || d.life.who.Incarnation < 2 {
				t.Errorf("failed %q, hindered %q, life %s", d.failed, d.hindered, d.life.who)
			}
		})
	}
}

// The disk of the directory is full: the number of the next life cannot be written.
func TestFullDirectoryPutsTheNextLifeOff(t *testing.T) {
	if !heals(fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})) || heals(os.ErrPermission) || heals(os.ErrNotExist) {
		t.Error("what heals is judged wrongly")
	}
	if hinderedPause(0) > 100*time.Millisecond || hinderedPause(1000) != longestPause {
		t.Errorf("pauses %s to %s", hinderedPause(0), hinderedPause(1000))
	}
}

// What never heals keeps the member out at once, with the reason.
func TestAMissingProgramKeepsAMemberOut(t *testing.T) {
	s := &fullSystem{refuse: 1, err: syscall.ENOENT}
	d := evicted(t, &fullMemory{}, s)
	work(t, d, "it is given up", func() bool { return d.failed != "" })
	if s.started != 0 || !strings.Contains(d.failed, "no such file") {
		t.Errorf("failed %q", d.failed)
	}
}

// The end of the job ends a daemon whose life was fenced out and has no successor.
func TestTheEndEndsAFencedDaemon(t *testing.T) {
	d := evicted(t, &fullMemory{refuse: 1 << 30}, &fullSystem{})
	if d.outcome != nil {
		t.Fatalf("ended already: %+v", d.outcome)
	}
	d.adoptState(done(d.state))
	if d.outcome == nil || !d.outcome.Done || d.outcome.Step != 9 {
		t.Errorf("outcome %+v", d.outcome)
	}
}

// done is the state after the end of the job.
func done(s *elastic.State) *elastic.State {
	end := *s
	end.Seq++
	end.Phase, end.Done = elastic.Finished, &elastic.Done{Step: 9, Digest: phalanx.Digest{1}}
	return &end
}

// A daemon that finds the job done in its own log, before its machine has read anything, ends with the result: also one whose
// page is of the life that was there at the end.
func TestADaemonThatBeginsAfterTheEndEnds(t *testing.T) {
	d := lone(t)
	d.state = done(d.state)
	d.life.machine = elastic.NewMachine(d.life.who, d.state, elastic.Page{})
	d.checkEnd()
	if d.outcome == nil || !d.outcome.Done {
		t.Fatalf("outcome %+v", d.outcome)
	}
	if v, _ := d.life.page.ReadSeat(); v.Action != wire.ActionStop {
		t.Errorf("its trainer is told %v", v.Action)
	}
	d.ends.Wait()
}

// A stop of an earlier run does not end this one.
func TestAnOlderStopEndsNothing(t *testing.T) {
	d := lone(t)
	d.cfg.Started = time.Unix(0, 100)
	d.state.Phase, d.state.Halt = elastic.Halted, &elastic.HaltReason{Kind: elastic.StoppedByOperator, UnixNS: 99}
	d.checkEnd()
	if d.outcome != nil {
		t.Errorf("outcome %+v", d.outcome)
	}
}
