// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"phalanx"
	"phalanx/consensus"
	"phalanx/elastic"
)

// Any number of hosts comes and goes under names of their own: those that matter stay, and the newest of the others.
func TestRosterForgets(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	r := newRoster(p, nil, func() Peer { return Peer{} })
	peer := func(i int) Peer {
		return Peer{Incarnate: incarnate(fmt.Sprintf("h%d", i), 0, 1), Addr: fmt.Sprintf("127.0.0.1:%d", 1000+i), Server: fmt.Sprint("s", i)}
	}
	for i := range 50 {
		r.learn([]Peer{peer(i)})
	}
	moved := peer(3)
	moved.Addr = "127.0.0.1:9" // news of one that was known
	r.learn([]Peer{moved, peer(4)})
	keep := func(p Peer) bool { return p.Member == "h0/0" || p.Server == "s7" }
	if !r.forget(5, keep) || r.forget(5, keep) {
		t.Error("forgetting is not told from doing nothing")
	}
	var left []phalanx.MemberID
	for _, p := range r.all() {
		left = append(left, p.Member)
	}
	if want := []phalanx.MemberID{"h0/0", "h3/0", "h46/0", "h47/0", "h48/0", "h49/0", "h7/0"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
	if len(r.news) != len(r.peers) {
		t.Errorf("%d ages of %d peers", len(r.news), len(r.peers))
	}
}

// The leader forgets views of members that are gone and silent, and none that the log or a connection may need.
func TestArbiterForgets(t *testing.T) {
	now := time.Now()
	a := court()
	d := a.d
	d.state.World.Seats = []phalanx.Seat{{Incarnate: incarnate("seated", 0, 1)}}
	for i := range 20 {
		id := phalanx.NewMemberID(fmt.Sprintf("h%d", i), 0)
		a.members[id] = &memberView{id: id, lost: now.Add(time.Duration(i) * time.Second)}
	}
	a.members["seated/0"] = &memberView{id: "seated/0"}
	a.members["connected/0"] = &memberView{id: "connected/0", conn: &downstream{}}
	a.members["living/0"] = &memberView{id: "living/0"}
	a.forget(4, func(id phalanx.MemberID) bool { return id == "living/0" })
	for _, id := range []phalanx.MemberID{"a/0", "seated/0", "connected/0", "living/0", "h16/0", "h17/0", "h18/0", "h19/0"} {
		if a.members[id] == nil {
			t.Errorf("the view of %s is lost", id)
		}
	}
	if len(a.members) != 8 {
		t.Errorf("%d views are left", len(a.members))
	}
}

func TestPruneLogs(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	who := func(n phalanx.Incarnation) phalanx.Incarnate { return incarnate("h.0", 1, n) }
	if err := pruneLogs(p, who(13), 4); err != nil {
		t.Errorf("nothing written yet: %v", err)
	}
	dir := filepath.Join(p.Dir, "log")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	others := []string{"daemon.h.0.1.log", "h.0.11.1.log", "h.1.1.log", "h.0.1.x.log", "h.0.1.01.log", "h.0.1.1", "h.0.1.0.log"}
	var want []string
	for n := range phalanx.Incarnation(12) {
		for _, end := range []string{"", ".1"} {
			name := filepath.Base(p.TrainerLog(who(n+1))) + end
			others = append(others, name)
			if n+1 > 9 {
				want = append(want, name)
			}
		}
	}
	want = append(want, others[:7]...)
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (list []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	all := names()
	if err := pruneLogs(p, who(13), 0); err != nil || !slices.Equal(names(), all) {
		t.Errorf("told to keep all it left %v, %v", names(), err)
	}
	if err := pruneLogs(p, who(13), 4); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if err := pruneLogs(p, who(12), 3); err != nil { // the newest has a file already
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("left are %v\nwant     %v", got, want)
	}
}

// The daemon applies the bounds by itself, with what its log knows.
func TestDaemonForgets(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	d := &Daemon{paths: p, log: quiet(), state: elastic.NewState(), roster: newRoster(p, nil, func() Peer { return Peer{} })}
	for i := range strangers + 20 {
		d.roster.learn([]Peer{{Incarnate: incarnate(fmt.Sprintf("h%d", i), 0, 1), Addr: "127.0.0.1:1", Server: fmt.Sprint("s", i)}})
	}
	d.state.Members = []elastic.Member{{Incarnate: incarnate("h0", 0, 1), State: elastic.Active}, {Incarnate: incarnate("h1", 0, 1), State: elastic.Gone}}
	d.forgetBut([]consensus.Server{{ID: "s2"}})
	if n := len(d.roster.all()); n != strangers+2 {
		t.Errorf("%d are known", n)
	}
	for id, want := range map[phalanx.MemberID]bool{"h0/0": true, "h1/0": false, "h2/0": true, "h3/0": false} {
		if _, kept := d.roster.peer(id); kept != want {
			t.Errorf("%s is kept: %v", id, kept)
		}
	}
	if again := newRoster(p, nil, func() Peer { return Peer{} }); len(again.all()) != strangers+2 {
		t.Errorf("%d are known after a restart", len(again.all()))
	}
}
