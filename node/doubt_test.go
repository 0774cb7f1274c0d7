// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"phalanx/elastic"
)

// A host that comes back within the second in which its last word counts is no second host of its name.
func TestAHostThatComesBackAtOnceIsWelcome(t *testing.T) {
	now := time.Now()
	old := Peer{BootID: "one", Server: "s"}
	v := &memberView{id: "h/0", conn: &downstream{}, peer: old, heard: now}
	if why := v.doubted(Peer{BootID: "two", Server: "s"}, now); why != "" {
		t.Errorf("the same directory after a reboot: %q", why)
	}
	if why := v.doubted(old, now); why != "" {
		t.Errorf("a successor in the same boot: %q", why)
	}
	fresh := Peer{BootID: "two", Server: "t"}
	for at := time.Duration(0); at < time.Second; at += 50 * time.Millisecond {
		if why := v.doubted(fresh, now.Add(at)); why != askAgain {
			t.Fatalf("an empty directory, %s after the last word of the old one: %q", at, why)
		}
	}
	if why := v.doubted(fresh, now.Add(time.Second)); why != "" {
		t.Errorf("the old one is silent for a second: %q", why)
	}
}

// Two hosts that are given one name are told so once both have been heard for a while.
func TestTwoHostsOfOneNameAreToldApart(t *testing.T) {
	begun := time.Now()
	v := &memberView{id: "h/0", conn: &downstream{}, peer: Peer{BootID: "one", Server: "s"}}
	for at := time.Duration(0); ; at += 50 * time.Millisecond {
		v.heard = begun.Add(at)
		switch why := v.doubted(Peer{BootID: "two", Server: "t"}, begun.Add(at)); {
		case at < twoOfAName && why != askAgain:
			t.Fatalf("after %s: %q", at, why)
		case at >= twoOfAName && why != livesElsewhere("h/0"):
			t.Fatalf("after %s: %q", at, why)
		}
		if at > twoOfAName {
			return
		}
	}
}

// Containers on one kernel share its boot id: a host is a name and a directory, and all members of it count. None of a second
// directory is taken beside a living member of the first, also not under a member that is not there at the moment.
func TestASecondDirectoryOfANameIsNoPartOfTheHost(t *testing.T) {
	now := time.Now()
	peer := func(index int, home string) Peer {
		return Peer{Incarnate: incarnate("b", index, 1), Host: "b", BootID: "one", Server: "s" + home, Home: home}
	}
	there := &memberView{id: "b/0", conn: &downstream{}, peer: peer(0, "x"), heard: now}
	lost := &memberView{id: "b/1", peer: peer(1, "x"), heard: now.Add(-time.Minute)}
	a := court(there, lost)
	a.d.listener, a.d.roster = listen(t, identity(t, NewJobKey(), "j", "a/0")), newRoster(NewPaths(t.TempDir(), ""), nil, func() Peer { return Peer{} })
	a.d.paths, a.d.home = NewPaths(t.TempDir(), ""), "mine"
	for _, index := range []int{0, 1, 7} {
		if why := a.doubted(peer(index, "x"), now); why != "" {
			t.Errorf("member %d of the same directory: %q", index, why)
		}
		there.rival = time.Time{}
		if why := a.doubted(peer(index, "y"), now); why != askAgain {
			t.Errorf("member %d of another directory: %q", index, why)
		}
		there.heard = now.Add(twoOfAName)
		there.rivalSeen = there.heard.Add(-50 * time.Millisecond)
		if why := a.doubted(peer(index, "y"), there.heard); why != livesElsewhere("b/0") {
			t.Errorf("member %d of another directory, for long: %q", index, why)
		}
		there.heard = now
	}
	if why := a.doubted(Peer{Incarnate: incarnate("a", 5, 1), BootID: "one", Home: "y"}, now); why != livesElsewhere("a/0") {
		t.Errorf("another directory of the leader's own name: %q", why)
	}
	there.conn = nil
	if why := a.doubted(peer(0, "y"), now); why != "" {
		t.Errorf("nobody of the first directory lives: %q", why)
	}
}

// An empty directory begins with the first life again. While the log counts on that life of the directory before, the daemon in
// the new one is not it: it has not promised what that one had.
func TestALifeOfALostDirectoryIsNotTakenOver(t *testing.T) {
	now := time.Now()
	a := court()
	a.d.listener, a.d.roster = listen(t, identity(t, NewJobKey(), "j", "a/0")), newRoster(NewPaths(t.TempDir(), ""), nil, func() Peer { return Peer{} })
	a.d.paths = NewPaths(t.TempDir(), "")
	old := Peer{Incarnate: incarnate("b", 0, 3), Addr: "127.0.0.1:1", Home: "x"}
	a.d.roster.learn([]Peer{old})
	fresh := Peer{Incarnate: incarnate("b", 0, 1), Home: "y"}
	a.d.state.Members = []elastic.Member{{Incarnate: old.Incarnate, State: elastic.Active}}
	if why := a.doubted(fresh, now); why != askAgain {
		t.Errorf("while the life counts: %q", why)
	}
	if why := a.doubted(old, now); why != "" {
		t.Errorf("the directory that has it: %q", why)
	}
	if why := a.doubted(Peer{Incarnate: incarnate("b", 0, 4), Home: "y"}, now); why != "" {
		t.Errorf("a later life: %q", why)
	}
	a.d.state.Members[0].State = elastic.Gone
	if why := a.doubted(fresh, now); why != "" {
		t.Errorf("when the log has removed it: %q", why)
	}
}

// A directory has a name that stays, and two never have the same, copied or not.
func TestHomes(t *testing.T) {
	one := NewPaths(t.TempDir(), "")
	first, err := one.Home()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := one.Home(); again != first || err != nil {
		t.Errorf("%s, then %s, %v", first, again, err)
	}
	two := NewPaths(t.TempDir(), "")
	if err := os.CopyFS(two.Dir, os.DirFS(one.Dir)); err != nil {
		t.Fatal(err)
	}
	if copied, err := two.Home(); copied == first || err != nil {
		t.Errorf("the copy is called %s, %v", copied, err)
	}
	if err := os.WriteFile(filepath.Join(two.Dir, homeFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Home(); err == nil || problemCode(err) != CodeFailed {
		t.Errorf("an empty name: %v", err)
	}
}
