// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// faultyDisk hangs or fails in its writes when told to.
type faultyDisk struct {
	LogStore
	mu   sync.Mutex
	hang chan struct{} // writes wait for its end
	err  error
}

func (d *faultyDisk) wrap(inner LogStore) LogStore {
	d.LogStore = inner
	return d
}

func (d *faultyDisk) set(hang chan struct{}, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hang, d.err = hang, err
}

func (d *faultyDisk) fault() error {
	d.mu.Lock()
	hang, err := d.hang, d.err
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

func (d *faultyDisk) StoreLogs(logs []*raft.Log) error {
	if err := d.fault(); err != nil {
		return err
	}
	return d.LogStore.StoreLogs(logs)
}

func (d *faultyDisk) SetUint64(key []byte, value uint64) error {
	if err := d.fault(); err != nil {
		return err
	}
	return d.LogStore.SetUint64(key, value)
}

func failure(t *testing.T, s *server) error {
	t.Helper()
	select {
	case err := <-s.Failed():
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("no failure reported")
		return nil
	}
}

func TestHungDiskOfLeader(t *testing.T) {
	for name, idle := range map[string]bool{"busy": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t)
			var disk faultyDisk
			leader := g.open(t.TempDir(), func(c *Config) {
				c.wrapStore = disk.wrap
				c.StoreDeadline = 500 * time.Millisecond
				c.canaryInterval = 200 * time.Millisecond
				if !idle {
					c.canaryInterval = time.Hour
				}
			})
			if err := leader.Bootstrap(); err != nil {
				t.Fatal(err)
			}
			g.leads(leader)
			others := []*server{g.open(t.TempDir()), g.open(t.TempDir())}
			for _, s := range others {
				g.join(leader, s)
			}
			g.propose(leader, "a")
			hang := make(chan struct{})
			release := sync.OnceFunc(func() { close(hang) })
			t.Cleanup(release)
			disk.set(hang, nil)
			if !idle {
				if _, err := leader.Propose(t.Context(), []byte("b")); !errors.Is(err, ErrOutcomeUnknown) {
					t.Fatalf("propose on a hung disk: %v", err)
				}
			}
			if err := failure(t, leader); !errors.Is(err, ErrDiskStalled) {
				t.Fatalf("got %v", err)
			}
			next := g.leader(others...)
			g.propose(next, "c")
			if leader.IsLeader() {
				t.Fatal("the server with the hung disk still leads")
			}
			release()
		})
	}
}

// An error of the store while the term is stored makes the library panic; here only the server stops.
func TestFailedDiskOfFollower(t *testing.T) {
	g := newGroup(t)
	servers := g.start(2)
	var disk faultyDisk
	third := g.open(t.TempDir(), func(c *Config) { c.wrapStore = disk.wrap })
	g.join(servers[0], third)
	full := errors.New("no space left on device")
	disk.set(nil, full)
	g.eventually("transfer", func() bool { return servers[0].Transfer(t.Context()) == nil }) // a new term
	if err := failure(t, third); !errors.Is(err, full) || !errors.Is(err, ErrStore) {
		t.Fatalf("got %v", err)
	}
	g.propose(g.leader(servers...), "a")
}

// A disk that takes nothing while the server opens must not make Open wait for itself: the server is told to have failed as
// soon as it wants to write.
func TestOpenOnAFullDisk(t *testing.T) {
	g := newGroup(t)
	dir := t.TempDir()
	s := g.open(dir)
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	g.leads(s)
	s.stop(t)
	full := errors.New("no space left on device")
	stuck := time.AfterFunc(10*time.Second, func() { panic("Open waits for itself") })
	defer stuck.Stop()
	var disk faultyDisk
	disk.set(nil, full)
	s = g.open(dir, func(c *Config) { c.wrapStore = disk.wrap })
	if err := failure(t, s); !errors.Is(err, full) || !errors.Is(err, ErrStore) {
		t.Errorf("failed with %v", err)
	}
}

// Close must come back by its deadline when the disk does not, and leave nothing behind once it does.
func TestCloseWithHungDisk(t *testing.T) {
	g := newGroup(t)
	var disk faultyDisk
	dir := t.TempDir()
	s := g.openLeaky(dir, func(c *Config) {
		c.wrapStore = disk.wrap
		c.StoreDeadline = 300 * time.Millisecond
	})
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	g.leads(s)
	hang := make(chan struct{})
	disk.set(hang, nil)
	if _, err := s.Propose(t.Context(), []byte("a")); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("took %v", took)
	}
	close(hang)
	// The lock of the store is free again once the disk answered.
	g.eventually("open again", func() bool {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(Config{Dir: dir, JobID: "job", Machine: &list{}, Transport: tcp{listener}})
		if err != nil {
			listener.Close()
			return false
		}
		return l.Close(t.Context()) == nil
	})
}

// A write within its deadline passes; one that panics, as bbolt does on damaged pages, poisons the store.
func TestGuardPoisons(t *testing.T) {
	var failed error
	inner := struct {
		raft.LogStore
		raft.StableStore
		closer
	}{raft.NewInmemStore(), raft.NewInmemStore(), closer{}}
	g, err := newGuard(inner, 400*time.Millisecond, func(err error) { failed = err })
	if err != nil {
		t.Fatal(err)
	}
	close(g.opened)
	if err := g.write("write", func() error { time.Sleep(100 * time.Millisecond); return nil }); err != nil || failed != nil {
		t.Fatalf("got %v, failed %v", err, failed)
	}
	if err := g.write("write", func() error { panic("page 7 already freed") }); !errors.Is(err, ErrStore) || failed == nil {
		t.Fatalf("got %v, failed %v", err, failed)
	}
	if err := g.StoreLogs(nil); !errors.Is(err, ErrStore) {
		t.Fatalf("a poisoned store took entries: %v", err)
	}
	unused := make(chan struct{})
	close(unused)
	if err := g.close(t.Context(), unused); err != nil {
		t.Fatal(err)
	}
}

type closer struct{}

func (closer) Close() error { return nil }
