// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// A link for votes lasts as long as its member is in the world with this one: hosts come and go for weeks.
func TestVoteLinksEndWithTheirMembers(t *testing.T) {
	d := lone(t)
	d.roster = newRoster(d.paths, nil, d.self)
	t.Cleanup(d.ends.Wait)
	here, there, gone := d.life.who, incarnate("b", 0, 1), incarnate("c", 0, 1)
	world := func(n uint64, who ...phalanx.Incarnate) *phalanx.World {
		w := &phalanx.World{Generation: phalanx.Generation{Number: n}}
		for r, i := range who {
			w.Seats = append(w.Seats, phalanx.Seat{Incarnate: i, Rank: phalanx.Rank(r)})
		}
		return w
	}
	d.state.World = *world(1, here, there, gone)
	d.peers.sendVote(here, elastic.Vote{Generation: d.state.World.Generation, Step: 1})
	kept, dropped := d.peers.votes[there.Member], d.peers.votes[gone.Member]
	d.peers.heard[gone.Member] = peerVote{gone, elastic.Vote{Generation: phalanx.Generation{Number: 1}}}
	d.peers.heard[there.Member] = peerVote{there, elastic.Vote{Generation: phalanx.Generation{Number: 2}}}
	d.peers.keep(world(2, here, there))
	if len(d.peers.votes) != 1 || kept.ctx.Err() != nil || dropped.ctx.Err() == nil {
		t.Errorf("links %v", d.peers.votes)
	}
	if _, early := d.peers.heard[there.Member]; !early || len(d.peers.heard) != 1 {
		t.Errorf("heard %v", d.peers.heard)
	}
	d.peers.keep(world(3, there))
	if len(d.peers.votes) != 0 || kept.ctx.Err() == nil {
		t.Errorf("links %v of a member outside of the world", d.peers.votes)
	}
}

// A daemon that takes a link for votes and ends it at once, as one does that is about to end, is not asked all the time.
func TestVoteLinksThatEndAtOnceAreNotHammered(t *testing.T) {
	d := lone(t)
	k := NewJobKey()
	d.roster = newRoster(d.paths, nil, d.self)
	t.Cleanup(d.ends.Wait)
	d.listener = listen(t, identity(t, k, "job", d.life.who.Member))
	there := incarnate("b", 0, 1)
	other := listen(t, identity(t, k, "job", there.Member))
	d.roster.learn([]Peer{{Incarnate: there, Addr: other.Addr().String()}})
	taken := make(chan int, 1) // 1: the count comes once
	go func() {
		n := 0
		for {
			c, err := other.Of(ProtoPeer).Accept()
			if err != nil {
				taken <- n
				return
			}
			c.Close()
			n++
		}
	}()
	l := d.peers.voteLink(there.Member)
	time.Sleep(500 * time.Millisecond)
	l.drop()
	other.Close()
	if n := <-taken; n < 1 || n > 11 {
		t.Errorf("%d connections within half a second, one each 50 ms at most", n)
	}
}

// A formation that waits for the connection of a member that is gone must not keep the next generation waiting.
func TestAGivenUpFormationWaitsForNobody(t *testing.T) {
	d := lone(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.form = &forming{d.state.World.Generation, cancel}
	ended := make(chan error, 1)
	go func() {
		_, err := d.peers.dataLink(ctx, incarnate("b", 0, 1), false)
		ended <- err
	}()
	began := time.Now()
	d.execute(elastic.Abort{Generation: d.state.World.Generation})
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	d.ends.Wait()
}
