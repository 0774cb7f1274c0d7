// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"
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
