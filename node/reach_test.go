// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"phalanx"
)

// The leader hears of a peer when every attempt has failed for some time, and no more when one goes well.
func TestReachTellsWhatFailsForLong(t *testing.T) {
	r, now := newReach(), time.Now()
	r.failed("b/0", ProtoPeer, now)
	r.failed("b/0", ProtoPeer, now.Add(time.Second)) // the next attempt: it has failed since the first
	r.failed("c/0", ProtoData, now.Add(time.Second))
	if got := r.cut(now.Add(cutAfter - 1)); got != nil {
		t.Errorf("cut off from %v before the time", got)
	}
	if got := r.cut(now.Add(cutAfter)); !slices.Equal(got, []phalanx.MemberID{"b/0"}) {
		t.Errorf("cut off from %v", got)
	}
	r.reached("b/0", ProtoData) // that says nothing of votes
	r.reached("c/0", ProtoData)
	if got := r.cut(now.Add(time.Hour)); !slices.Equal(got, []phalanx.MemberID{"b/0"}) {
		t.Errorf("cut off from %v", got)
	}
	w := wide("a/0 b/0")
	r.failed("b/0", ProtoData, now)
	r.keep(&w, true)
	r.reached("b/0", ProtoPeer)
	if got := r.cut(now.Add(time.Hour)); got != nil {
		t.Errorf("cut off from %v: collectives connect anew in each world", got)
	}
	r.failed("b/0", ProtoPeer, now)
	w = wide("a/0 c/0")
	r.keep(&w, true)
	if got := r.cut(now.Add(time.Hour)); got != nil {
		t.Errorf("cut off from %v, which is not in the world", got)
	}
}

// Outside of the world a host is away until a look at it went well, again after one that did not, and when nobody looks.
func TestReachLooksAtEachHostOfTheWorld(t *testing.T) {
	r, now := newReach(), time.Now()
	w := wide("a/0 a/1 b/0 c/0")
	away := func(at time.Time, want ...phalanx.MemberID) {
		t.Helper()
		if got := r.apart(&w, "c", at); !slices.Equal(got, want) {
			t.Errorf("away are %v, want %v", got, want)
		}
	}
	due := func(at time.Time, want ...phalanx.MemberID) {
		t.Helper()
		if got := r.due(&w, "c", at); !slices.Equal(got, want) {
			t.Errorf("due are %v, want %v", got, want)
		}
	}
	away(now, "a/0", "b/0")
	due(now, "a/0", "b/0")
	due(now.Add(time.Hour)) // under way
	if !r.tried("a/0", true, now) || r.tried("b/0", false, now) {
		t.Error("a change is one from what was known")
	}
	away(now, "b/0")
	due(now.Add(trialAgain - 1))
	due(now.Add(trialAgain), "b/0")
	r.tried("b/0", true, now.Add(trialAgain))
	away(now.Add(trialAgain))
	due(now.Add(trialEvery), "a/0")
	if !r.tried("a/0", false, now.Add(trialEvery)) {
		t.Error("a host that is away now is a change")
	}
	away(now.Add(trialEvery), "a/0")
	away(now.Add(3*trialEvery), "a/0", "b/0")
	r.keep(&w, true) // it has been in the world since
	away(now.Add(trialEvery), "a/0", "b/0")
}

// Bytes come back, marked as what they try the way for; a daemon that takes them and says nothing is not reached.
func TestTry(t *testing.T) {
	k := NewJobKey()
	server, client := listen(t, identity(t, k, "job", "h/0")), listen(t, identity(t, k, "job", "h/1"))
	d := &Daemon{ctx: t.Context()}
	ended := make(chan struct{})
	go func() { defer close(ended); d.answerTrials(server.Of(ProtoTryData)) }()
	if err := client.try(brief(t), server.Addr().String(), ProtoTryData); err != nil {
		t.Error(err)
	}
	go func() {
		c, err := server.Of(ProtoTryPeer).Accept()
		if err == nil {
			_, _ = io.CopyN(io.Discard, c, trialBytes)
			c.Close()
		}
	}()
	if err := client.try(brief(t), server.Addr().String(), ProtoTryPeer); !errors.Is(err, io.EOF) {
		t.Errorf("silence ends with %v", err)
	}
	server.Close()
	<-ended
	d.ends.Wait()
}

// One attempt to form tells of every host that it does not reach.
func TestAFormationTellsOfAllThatItDoesNotReach(t *testing.T) {
	d := lone(t)
	d.cfg.Host = "a"
	d.roster = newRoster(d.paths, nil, d.self)
	d.listener = listen(t, identity(t, NewJobKey(), "job", "a/0"))
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close() // the kernel takes the connection, and nobody answers
	w := wide("a/0 b/0 c/0")
	for _, seat := range w.Seats[1:] {
		d.roster.learn([]Peer{{Incarnate: seat.Incarnate, Host: seat.Member.Host(), Addr: deaf.Addr().String()}})
	}
	if links, err := d.peers.dataLinks(t.Context(), &w, 0); err == nil {
		t.Errorf("%d links", len(links))
	}
	if got := d.peers.reach.cut(time.Now()); !slices.Equal(got, []phalanx.MemberID{"b/0", "c/0"}) {
		t.Errorf("cut off from %v", got)
	}
}
