// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestGroupGrowsAndAgrees(t *testing.T) {
	g := newGroup(t)
	servers := g.start(1)
	first := servers[0]
	if err := first.Bootstrap(); !errors.Is(err, ErrHasState) {
		t.Fatalf("second bootstrap: %v", err)
	}
	for i := range 10 {
		if r := g.propose(first, fmt.Sprint(i)); r.Seq != uint64(i+1) || r.Response != i+1 {
			t.Fatalf("command %d: %+v", i, r)
		}
	}
	second, third := g.open(t.TempDir()), g.open(t.TempDir())
	if second.HasState() {
		t.Fatal("a new server has state")
	}
	g.join(first, second)
	g.join(first, third)
	if !second.HasState() {
		t.Fatal("a server that joined has no state")
	}
	g.propose(first, "last")
	want := func() []Entry {
		first.mu.Lock()
		defer first.mu.Unlock()
		return slices.Clone(first.entries)
	}()
	for _, s := range []*server{second, third} {
		g.eventually("apply", func() bool { return s.Status().Seq == 11 })
		if got := s.machine.all(); !slices.Equal(got, first.machine.all()) {
			t.Fatalf("machine of %s: %v", s.ServerID(), got)
		}
		g.eventually("hear of all entries", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.entries) == 11 })
		s.mu.Lock()
		for i, e := range s.entries {
			if e.Seq != uint64(i+1) || e.Index != want[i].Index || e.Term != want[i].Term {
				t.Fatalf("entry %d of %s: %+v, leader has %+v", i, s.ServerID(), e, want[i])
			}
		}
		s.mu.Unlock()
	}
	status := first.Status()
	if !status.Leads || !status.Voter || len(status.Voters) != 3 || len(status.Peers) != 2 || status.State != "leader" {
		t.Fatalf("status: %+v", status)
	}
	if err := first.VerifyLeader(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, ok := first.PeerProgress(second.ServerID())
	if !ok || p.Match == 0 || p.Contact.IsZero() {
		t.Fatalf("progress: %+v %v", p, ok)
	}
}

func TestProposeOnFollowerNamesLeader(t *testing.T) {
	g := newGroup(t)
	servers := g.start(2)
	g.eventually("hear of the leader", func() bool { _, _, ok := servers[1].Leader(); return ok })
	_, err := servers[1].Propose(t.Context(), []byte("x"))
	var not ErrNotLeader
	addr, _ := g.address(servers[0].ServerID())
	if !errors.As(err, &not) || not.LeaderID != servers[0].ServerID() || not.LeaderAddr != addr {
		t.Fatalf("got %v", err)
	}
	if err := servers[1].VerifyLeader(t.Context()); !errors.As(err, &not) {
		t.Fatalf("verify on a follower: %v", err)
	}
	if err := servers[1].AddNonvoter(t.Context(), "x", "y"); !errors.As(err, &not) {
		t.Fatalf("add on a follower: %v", err)
	}
	if err := servers[1].Transfer(t.Context()); !errors.As(err, &not) {
		t.Fatalf("transfer on a follower: %v", err)
	}
}

func TestAssistedFailover(t *testing.T) {
	g := newGroup(t)
	// With these timeouts nobody would be elected before the deadline below without help.
	servers := g.start(3, func(c *Config) { c.Heartbeat, c.Election = 20*time.Second, 20*time.Second })
	g.propose(servers[0], "a")
	for _, s := range servers[1:] {
		g.eventually("apply", func() bool { return s.Status().Seq == 1 })
	}
	servers[0].kill(t)
	began := time.Now()
	for _, s := range servers[1:] {
		s.Hasten()
	}
	leader := g.leader(servers[1:]...)
	if took := time.Since(began); took > 8*time.Second {
		t.Fatalf("took %v", took)
	} else {
		t.Logf("leader after %v", took)
	}
	if r := g.propose(leader, "b"); r.Seq != 2 {
		t.Fatalf("got %+v", r)
	}
	for _, s := range servers[1:] {
		g.eventually("relax", func() bool { return !s.Status().Hastened })
		if got := s.raft.ReloadableConfig().HeartbeatTimeout; got != 20*time.Second {
			t.Fatalf("heartbeat timeout is %v", got)
		}
	}
	select {
	case change := <-leader.LeaderChanges():
		if !change.IsSelf || change.Leader != leader.ServerID() || change.Term != leader.Term() {
			t.Fatalf("got %+v", change)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no change reported")
	}
}

func TestRestartKeepsSeqAndState(t *testing.T) {
	g := newGroup(t)
	dir := t.TempDir()
	s := g.open(dir)
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	g.leads(s)
	for i := range 5 {
		g.propose(s, fmt.Sprint(i))
	}
	id := s.ServerID()
	s.stop(t)
	if _, err := s.Propose(t.Context(), []byte("x")); err == nil {
		t.Fatal("a closed log took a command")
	}
	s = g.open(dir)
	if s.ServerID() != id || !s.HasState() {
		t.Fatalf("id %s, was %s", s.ServerID(), id)
	}
	g.leads(s)
	if r := g.propose(s, "5"); r.Seq != 6 || r.Response != 6 {
		t.Fatalf("got %+v", r)
	}
	if got := s.machine.all(); len(got) != 6 {
		t.Fatalf("got %v", got)
	}
}

func TestSnapshotRestoreAndTail(t *testing.T) {
	g := newGroup(t)
	dir := t.TempDir()
	s := g.open(dir)
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	g.leads(s)
	for i := range 20 {
		g.propose(s, fmt.Sprint(i))
	}
	snapshot, entries, err := s.Tail(15)
	if err != nil || snapshot != nil || len(entries) != 5 || entries[0].Seq != 16 {
		t.Fatalf("tail: %v %v %v", snapshot, entries, err)
	}
	if snapshot, entries, err = s.Tail(20); err != nil || snapshot != nil || entries != nil {
		t.Fatalf("tail of nothing: %v %v %v", snapshot, entries, err)
	}
	if err := s.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	g.propose(s, "20")
	s.stop(t)

	s = g.open(dir)
	g.leads(s)
	if got := s.machine.all(); len(got) != 21 || got[20] != "20" {
		t.Fatalf("got %v", got)
	}
	s.mu.Lock()
	if !slices.Equal(s.restore, []uint64{20}) || len(s.entries) != 1 || s.entries[0].Seq != 21 {
		t.Fatalf("restored %v, applied %v", s.restore, s.entries)
	}
	s.mu.Unlock()
	// Command 3 is older than what is in memory now.
	snapshot, entries, err = s.Tail(3)
	if err != nil || snapshot == nil || snapshot.Seq != 21 || len(entries) != 0 {
		t.Fatalf("tail: %+v %v %v", snapshot, entries, err)
	}
	g.propose(s, "21")
	again, entries, err := s.Tail(3)
	if err != nil || again != snapshot || len(entries) != 1 || entries[0].Seq != 22 {
		t.Fatalf("tail does not use the snapshot before: %+v %v %v", again, entries, err)
	}
	var copied list
	if err := copied.Restore(snapshot.Machine); err != nil || len(copied.commands) != 21 {
		t.Fatalf("copy: %v %v", copied.commands, err)
	}
}

func TestSnapshotReachesNewServer(t *testing.T) {
	g := newGroup(t)
	servers := g.start(1)
	for i := range 10 {
		g.propose(servers[0], fmt.Sprint(i))
	}
	c := servers[0].raft.ReloadableConfig()
	c.TrailingLogs = 1
	if err := servers[0].raft.ReloadConfig(c); err != nil {
		t.Fatal(err)
	}
	if err := servers[0].raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	s := g.open(t.TempDir())
	g.join(servers[0], s)
	g.eventually("restore", func() bool { return len(s.machine.all()) == 10 && s.Status().Seq == 10 })
	if r := g.propose(servers[0], "x"); r.Seq != 11 {
		t.Fatalf("got %+v", r)
	}
	g.eventually("apply", func() bool { return s.Status().Seq == 11 })
}

func TestTransfer(t *testing.T) {
	g := newGroup(t)
	servers := g.start(3)
	g.propose(servers[0], "a")
	g.eventually("transfer", func() bool {
		err := servers[0].Transfer(t.Context())
		if err != nil && !errors.Is(err, ErrNotCaughtUp) {
			t.Fatal(err)
		}
		return err == nil
	})
	leader := g.leader(servers[1:]...)
	if r := g.propose(leader, "b"); r.Seq != 2 {
		t.Fatalf("got %+v", r)
	}
	alone := newGroup(t).start(1)[0]
	if err := alone.Transfer(t.Context()); !errors.Is(err, ErrNotCaughtUp) {
		t.Fatalf("transfer to nobody: %v", err)
	}
}

func TestPromoteWantsCaughtUp(t *testing.T) {
	g := newGroup(t)
	leader := g.start(1)[0]
	if err := leader.Promote(t.Context(), "nobody"); !errors.Is(err, ErrNoServer) {
		t.Fatalf("got %v", err)
	}
	if err := leader.AddNonvoter(t.Context(), "silent", "127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if err := leader.Promote(t.Context(), "silent"); !errors.Is(err, ErrNotCaughtUp) {
		t.Fatalf("got %v", err)
	}
	if err := leader.Remove(t.Context(), "silent"); err != nil {
		t.Fatal(err)
	}
	if err := leader.Remove(t.Context(), "silent"); err != nil {
		t.Fatalf("second remove: %v", err)
	}
	if servers, err := leader.Servers(); err != nil || len(servers) != 1 || !servers[0].Voter {
		t.Fatalf("got %v %v", servers, err)
	}
}

func TestVerifyLeaderWithoutMajority(t *testing.T) {
	g := newGroup(t)
	servers := g.start(3)
	servers[1].kill(t)
	servers[2].kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := servers[0].VerifyLeader(ctx); err == nil {
		t.Fatal("verified without a majority")
	}
	_, err := servers[0].Propose(ctx, []byte("x"))
	var not ErrNotLeader
	if !errors.Is(err, ErrOutcomeUnknown) && !errors.As(err, &not) {
		t.Fatalf("propose without a majority: %v", err)
	}
	g.eventually("step down", func() bool { return !servers[0].IsLeader() })
}

func TestRemovedServerReturns(t *testing.T) {
	g := newGroup(t)
	servers := g.start(3)
	leader, gone := servers[0], servers[2]
	dir, id := gone.dir, gone.ServerID()
	gone.kill(t)
	if err := leader.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	term := leader.Term()
	// With its old log it still believes to be a voter; it must not disturb the others.
	gone = g.open(dir)
	gone.Hasten()
	time.Sleep(4 * leader.cfg.Heartbeat)
	if err := leader.VerifyLeader(t.Context()); err != nil || leader.Term() != term {
		t.Fatalf("term %d, was %d: %v", leader.Term(), term, err)
	}
	gone.stop(t)
	if err := Wipe(dir); err != nil {
		t.Fatal(err)
	}
	gone = g.open(dir)
	if gone.ServerID() == id || gone.HasState() {
		t.Fatalf("id %s", gone.ServerID())
	}
	g.join(leader, gone)
	g.propose(leader, "x")
	g.eventually("apply", func() bool { return gone.Status().Seq == 1 })
}

func TestHalterStopsReplica(t *testing.T) {
	g := newGroup(t)
	s := g.start(1)[0]
	g.propose(s, "a")
	if _, err := s.Propose(t.Context(), []byte("unknown")); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("got %v", err)
	}
	select {
	case err := <-s.Failed():
		t.Log(err)
	case <-time.After(5 * time.Second):
		t.Fatal("no failure reported")
	}
	if _, err := s.Propose(t.Context(), []byte("b")); err == nil {
		t.Fatal("a halted replica took a command")
	}
	if got := s.machine.all(); len(got) != 1 {
		t.Fatalf("got %v", got)
	}
}

func TestOpenRefuses(t *testing.T) {
	g := newGroup(t)
	dir := t.TempDir()
	s := g.open(dir)
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	open := func(change func(*Config)) error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		cfg := Config{Dir: dir, JobID: "job", Machine: &list{}, Transport: tcp{listener}}
		change(&cfg)
		l, err := Open(cfg)
		if err == nil {
			l.Close(t.Context())
		}
		return err
	}
	if err := open(func(*Config) {}); !errors.Is(err, ErrLocked) {
		t.Fatalf("locked: %v", err)
	}
	s.stop(t)
	if err := open(func(c *Config) { c.JobID = "other" }); !errors.Is(err, ErrOtherJob) {
		t.Fatalf("other job: %v", err)
	}
	if err := open(func(c *Config) { c.Lease = time.Second }); err == nil {
		t.Fatal("a lease longer than the fast heartbeat was taken")
	}
}

func TestDamagedStoreIsSetAside(t *testing.T) {
	g := newGroup(t)
	dir := t.TempDir()
	s := g.open(dir)
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	id := s.ServerID()
	s.stop(t)
	if err := os.WriteFile(filepath.Join(dir, storeFile), make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	s = g.open(dir)
	if s.ServerID() == id || s.HasState() {
		t.Fatalf("id %s", s.ServerID())
	}
	if err := s.Bootstrap(); !errors.Is(err, ErrHasState) {
		t.Fatalf("bootstrap beside a damaged store: %v", err)
	}
}

// A leader that answered before the call must not count: its round began too early.
func TestAcknowledgedCountsRoundsAfterTheCall(t *testing.T) {
	g := newGroup(t)
	servers := g.start(3)
	leader := servers[0]
	term, now := leader.Term(), time.Now()
	if leader.acknowledged(term, now.Add(time.Hour)) {
		t.Fatal("rounds before the call were counted")
	}
	if leader.acknowledged(term+1, now.Add(-time.Hour)) {
		t.Fatal("rounds of another term were counted")
	}
	g.eventually("be acknowledged", func() bool { return leader.acknowledged(term, now) })
}
