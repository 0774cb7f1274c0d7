// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRosterKeepsTheNewestWords(t *testing.T) {
	self := Peer{Incarnate: incarnate("a", 0, 1), Addr: "127.0.0.1:1", Server: "own"}
	p := NewPaths(t.TempDir(), t.TempDir())
	r := newRoster(p, []string{"127.0.0.1:9", "127.0.0.1:2", self.Addr}, func() Peer { return self })
	first := Peer{Incarnate: incarnate("b", 0, 2), Addr: "127.0.0.1:2", Server: "s2"}
	if !r.learn([]Peer{first}) || r.learn([]Peer{first}) {
		t.Error("news are not told from what is known")
	}
	older := first
	older.Incarnation, older.Addr = 1, "127.0.0.1:3"
	if r.learn([]Peer{older, {Addr: "127.0.0.1:4"}, {Incarnate: incarnate("c", 0, 1)}}) {
		t.Error("older or empty words count")
	}
	if got, ok := r.peer("b/0"); !ok || got != first {
		t.Errorf("knows %+v", got)
	}
	moved := first
	moved.Addr = "127.0.0.1:5" // the same life behind another port
	if !r.learn([]Peer{moved}) {
		t.Error("a new address is no news")
	}
	for server, want := range map[string]string{"own": self.Addr, "s2": moved.Addr, "s9": "", "": ""} {
		if got, ok := r.serverAddr(server); got != want || ok != (want != "") {
			t.Errorf("server %q is at %q, %v; want %q", server, got, ok, want)
		}
	}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	again := newRoster(p, nil, func() Peer { return self })
	if got := again.all(); !slices.Equal(got, []Peer{moved}) {
		t.Errorf("after a restart it knows %+v", got)
	}
	if err := os.WriteFile(filepath.Join(p.Dir, "roster.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := newRoster(p, nil, func() Peer { return self }).all(); len(got) != 0 {
		t.Errorf("a damaged file names %+v", got)
	}
}

// Whoever looks for the leader asks the living of this host first, then those it knows, then the seeds, and never itself.
func TestRosterAddressesInOrder(t *testing.T) {
	self := Peer{Incarnate: incarnate("a", 0, 1), Addr: "127.0.0.1:1"}
	p := NewPaths(t.TempDir(), t.TempDir())
	pid, start := selfProcess()
	for i, f := range []DaemonFile{{PID: pid, Start: start, Addr: self.Addr}, {PID: pid, Start: start, Addr: "127.0.0.1:11"}, {PID: pid, Start: start + 1, Addr: "127.0.0.1:12"}} {
		if err := os.MkdirAll(p.Member(i), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := writeJSON(p.DaemonFile(i), f); err != nil {
			t.Fatal(err)
		}
	}
	r := newRoster(p, []string{"127.0.0.1:9", "127.0.0.1:2", ""}, func() Peer { return self })
	r.learn([]Peer{{Incarnate: incarnate("b", 0, 1), Addr: "127.0.0.1:2"}})
	if got, want := r.addrs(4), []string{"127.0.0.1:11", "127.0.0.1:2", "127.0.0.1:9"}; !slices.Equal(got, want) {
		t.Errorf("asks %v, want %v", got, want)
	}
}
