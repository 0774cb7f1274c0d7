// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"phalanx"
	"phalanx/chaos/netns"
	"phalanx/node"
)

// without breaks the network by filters and waits until the job trains without one of its hosts, as another one says, for long
// enough to see that it stays outside. Then it mends the network and waits until all train together. Everyone else keeps its
// trainer. It returns the host that was left out.
func (c *cluster) without(asked *netns.Host, what string, filters ...netns.Filter) *netns.Host {
	c.t.Helper()
	before := c.whole(0)
	c.filter(filters...)
	broke := time.Now()
	on := c.until(asked, "training goes on without a host: "+what, func(s *node.Status) bool {
		return s.Fresh && s.Phase == "running" && len(s.World) == c.nproc*(len(c.hosts)-1) && s.Step > before.Step+3
	})
	i := slices.IndexFunc(c.hosts, func(h *netns.Host) bool {
		return !slices.ContainsFunc(on.World, func(id phalanx.MemberID) bool { return id.Host() == h.Name })
	})
	off := c.hosts[i]
	c.t.Logf("%s: host %s is left out of generation %d, the others train %.1f s later", what, off.Name, on.Generation, time.Since(broke).Seconds())
	later := c.until(asked, "the others train on", func(s *node.Status) bool { return s.Fresh && s.Step > on.Step+15 })
	if later.Generation != on.Generation {
		c.t.Errorf("%s: generation %d became %d while nothing changed", what, on.Generation, later.Generation)
	}
	c.filter()
	after := c.whole(later.Step)
	c.survived(before, after, c.members(c.others(off)...)...)
	return off
}

// TestP2MinorityOfThree cuts one of three hosts off, first one without the leader and then the leader's. It commits nothing and
// knows that it knows nothing.
func TestP2MinorityOfThree(t *testing.T) {
	c := newCluster(t, 1, 150, "a", "b", "c")
	c.begin()
	c.voters(1, 1, 1)
	for _, leads := range []bool{false, true} {
		s := c.whole(0)
		off := c.host(s.Leader)
		if !leads {
			off = c.others(off)[0]
		}
		rest := c.others(off)
		stale := make(chan bool, 1)
		go func() { // ends with its patience
			for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
				if s, err := c.watch.ask(off); err == nil && !s.Fresh && s.Leader == "" {
					stale <- true
					return
				}
			}
			stale <- false
		}()
		if got := c.without(rest[0], fmt.Sprintf("host %s is cut off, %s leads", off.Name, s.Leader), netns.Split([]*netns.Host{off}, rest)...); got != off {
			t.Errorf("host %s was left out", got.Name)
		}
		if !<-stale {
			t.Errorf("host %s never said that it knows no leader", off.Name)
		}
	}
	c.finish()
}

// TestP2NoMajority cuts three hosts off from each other. Nobody can decide anything; when they hear each other again they go on
// with all trainers.
func TestP2NoMajority(t *testing.T) {
	c := newCluster(t, 1, 100, "a", "b", "c")
	c.begin()
	c.voters(1, 1, 1)
	s := c.whole(10)
	c.filter(netns.Split(c.hosts[:1], c.hosts[1:2], c.hosts[2:])...)
	var newest phalanx.Step
	for _, h := range c.hosts {
		s := c.until(h, "it knows no leader", func(s *node.Status) bool { return !s.Fresh && s.Leader == "" })
		newest = max(newest, s.Step)
	}
	for _, h := range c.hosts {
		if s, err := c.watch.ask(h); err != nil || s.Fresh || s.Step > newest {
			t.Errorf("host %s alone: %+v, %v", h.Name, s, err)
		}
	}
	c.filter()
	after := c.whole(newest)
	c.survived(s, after, c.members(c.hosts...)...)
	c.finish()
}

// TestP2OneWay drops what the leader's host and another one say to each other, in each direction. TCP needs both: the pair is
// broken, and the other one is left out.
func TestP2OneWay(t *testing.T) {
	c := newCluster(t, 1, 200, "a", "b", "c")
	c.begin()
	c.voters(1, 1, 1)
	for _, back := range []bool{false, true} {
		l := c.host(c.whole(0).Leader)
		other := c.others(l)[0]
		from, to := l, other
		if back {
			from, to = to, from
		}
		f := netns.Filter{From: []*netns.Host{from}, To: []*netns.Host{to}}
		if off := c.without(c.others(from, to)[0], fmt.Sprintf("%s to %s, %s leads", from.Name, to.Name, l.Name), f); off != from && off != to {
			t.Errorf("host %s was left out", off.Name)
		}
	}
	c.finish()
}

// TestP2OnePair drops what one host says to another, both with two members, while the leader's hears both. No world can hold both.
func TestP2OnePair(t *testing.T) {
	c := newCluster(t, 2, 100, "a", "b", "c")
	c.begin()
	l := c.host(c.whole(0).Leader)
	rest := c.others(l)
	if off := c.without(l, rest[1].Name+" to "+rest[0].Name, netns.Filter{From: rest[1:], To: rest[:1]}); off == l {
		t.Errorf("the leader's host was left out")
	}
	c.finish()
}

// plane is a kind of connection of one host, told apart by the marks of its packets.
type plane struct {
	what  string
	marks []uint8
	leads bool // the host
}

var control = []uint8{node.DSCP(node.ProtoRaft), node.DSCP(node.ProtoStream), node.DSCP(node.ProtoGossip)}

// TestP2Planes cuts the control plane of the host that leads, then the collectives of another one.
func TestP2Planes(t *testing.T) {
	c := newCluster(t, 1, 200, "a", "b", "c")
	c.planes(plane{"control plane of the leader", control, true}, plane{"collectives", []uint8{node.DSCP(node.ProtoData)}, false})
}

// TestP2Votes cuts the votes of a host.
func TestP2Votes(t *testing.T) {
	c := newCluster(t, 1, 100, "a", "b", "c")
	c.planes(plane{"votes", []uint8{node.DSCP(node.ProtoPeer)}, false})
}

// planes trains while one plane after the other is cut.
func (c *cluster) planes(planes ...plane) {
	t := c.t
	t.Helper()
	c.begin()
	c.voters(1, 1, 1)
	for _, plane := range planes {
		off := c.host(c.whole(0).Leader)
		if !plane.leads {
			off = c.others(off)[0]
		}
		asked := c.others(off)[0]
		if !plane.leads {
			asked = c.host(c.whole(0).Leader)
		}
		if got := c.without(asked, plane.what+" of host "+off.Name, netns.Filter{From: []*netns.Host{off}, DSCP: plane.marks}.Both()...); got != off {
			t.Errorf("%s of host %s was cut and host %s left out", plane.what, off.Name, got.Name)
		}
	}
	c.finish()
}
