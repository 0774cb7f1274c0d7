// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is a machine: the commands so far.
type list struct {
	mu       sync.Mutex
	commands []string
}

type halted string

func (h halted) Halt() error { return fmt.Errorf("command %q is not known", string(h)) }

func (l *list) Apply(command []byte) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if string(command) == "unknown" {
		return halted(command)
	}
	l.commands = append(l.commands, string(command))
	return len(l.commands)
}

func (l *list) Snapshot() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return json.Marshal(l.commands)
}

func (l *list) Restore(snapshot []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commands = nil
	return json.Unmarshal(snapshot, &l.commands)
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.commands)
}

// tcp is a StreamLayer on loopback.
type tcp struct{ net.Listener }

func (tcp) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// group is a set of servers under test and what they know of each other's addresses.
type group struct {
	t     *testing.T
	mu    sync.Mutex
	addrs map[string]string
}

type server struct {
	*Log
	dir     string
	machine *list
	mu      sync.Mutex
	entries []Entry
	restore []uint64
}

func newGroup(t *testing.T) *group { return &group{t: t, addrs: map[string]string{}} }

func (g *group) address(id string) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	addr, ok := g.addrs[id]
	return addr, ok
}

// open opens a server that is closed at the end of the test.
func (g *group) open(dir string, change ...func(*Config)) *server {
	g.t.Helper()
	s := g.openLeaky(dir, change...)
	g.t.Cleanup(func() { s.stop(g.t) })
	return s
}

func (g *group) openLeaky(dir string, change ...func(*Config)) *server {
	g.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	s := &server{dir: dir, machine: &list{}}
	cfg := Config{
		Dir: dir, JobID: "job", Machine: s.machine, Transport: tcp{listener}, Addresses: g.address, NoSync: true,
		// Longer than the defaults: other tests may starve this process, and then leaders step down.
		Heartbeat: time.Second, Lease: 400 * time.Millisecond, FastHeartbeat: 400 * time.Millisecond,
		OnApply: func(e Entry) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.entries = append(s.entries, e)
		},
		OnRestore: func(seq uint64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.restore = append(s.restore, seq)
		},
		Logger: slog.New(slog.NewTextHandler(g.t.Output(), nil)),
	}
	for _, f := range change {
		f(&cfg)
	}
	if s.Log, err = Open(cfg); err != nil {
		listener.Close()
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.addrs[s.ServerID()] = listener.Addr().String()
	g.mu.Unlock()
	return s
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close %s: %v", s.ServerID(), err)
	}
}

// kill ends a server as a crash would look to the others: its connections go first.
func (s *server) kill(t *testing.T) {
	s.shutdown()
	s.stop(t)
}

// start bootstraps the first of n servers and makes the others voters.
func (g *group) start(n int, change ...func(*Config)) []*server {
	g.t.Helper()
	var servers []*server
	for range n {
		servers = append(servers, g.open(g.t.TempDir(), change...))
	}
	if err := servers[0].Bootstrap(); err != nil {
		g.t.Fatal(err)
	}
	g.leads(servers[0])
	for _, s := range servers[1:] {
		g.join(servers[0], s)
	}
	return servers
}

func (g *group) join(leader, s *server) {
	g.t.Helper()
	addr, _ := g.address(s.ServerID())
	if err := leader.AddNonvoter(g.t.Context(), s.ServerID(), addr); err != nil {
		g.t.Fatal(err)
	}
	g.eventually("catch up", func() bool { return leader.CaughtUp(s.ServerID()) })
	if err := leader.Promote(g.t.Context(), s.ServerID()); err != nil {
		g.t.Fatal(err)
	}
}

func (g *group) leads(s *server) {
	g.t.Helper()
	g.eventually("lead", s.IsLeader)
}

func (g *group) leader(of ...*server) *server {
	g.t.Helper()
	var leader *server
	g.eventually("find a leader", func() bool {
		i := slices.IndexFunc(of, func(s *server) bool { return s.IsLeader() })
		if i >= 0 {
			leader = of[i]
		}
		return i >= 0
	})
	return leader
}

func (g *group) eventually(what string, f func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("did not %s in time", what)
		}
	}
}

func (g *group) propose(s *server, command string) Result {
	g.t.Helper()
	result, err := s.Propose(g.t.Context(), []byte(command))
	if err != nil {
		g.t.Fatal(err)
	}
	return result
}
