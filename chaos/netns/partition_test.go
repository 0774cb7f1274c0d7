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

// trains waits until a world of the members of these hosts trains beyond a step, as one of the hosts says.
func (c *cluster) trains(beyond phalanx.Step, hosts ...*netns.Host) *node.Status {
	c.t.Helper()
	want := c.members(hosts...)
	return c.until(hosts[0], fmt.Sprintf("%v train beyond step %d", want, beyond), func(s *node.Status) bool {
		return s.Fresh && s.Phase == "running" && sameMembers(s.World, want) && s.Step > beyond
	})
}

func sameMembers(a, b []phalanx.MemberID) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, phalanx.CompareMemberIDs)
	slices.SortFunc(b, phalanx.CompareMemberIDs)
	return slices.Equal(a, b)
}

// TestP2MinorityOfThree cuts one of three hosts off, first one without the leader and then the leader's.
func TestP2MinorityOfThree(t *testing.T) {
	c := newCluster(t, 1, 200, "a", "b", "c")
	before := c.begin()
	c.voters(1, 1, 1)
	for _, leads := range []bool{false, true} {
		s := c.whole(before.Step)
		leader := c.host(s.Leader)
		off := leader
		if !leads {
			off = c.others(leader)[0]
		}
		rest := c.others(off)
		t.Logf("step %d: host %s is cut off, %s leads", s.Step, off.Name, s.Leader)
		cut := time.Now()
		c.filter(netns.Split([]*netns.Host{off}, rest)...)
		on := c.trains(s.Step+3, rest...)
		t.Logf("the others train %.1f s later", time.Since(cut).Seconds())
		c.survived(s, on, c.members(rest...)...)
		c.until(off, "the minority knows no leader", func(s *node.Status) bool { return !s.Fresh })
		c.trains(on.Step+10, rest...)
		c.filter()
		before = c.whole(on.Step + 10)
		c.survived(s, before, c.members(rest...)...)
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
	for _, h := range c.hosts {
		c.until(h, "it knows no leader", func(s *node.Status) bool { return !s.Fresh && s.Leader == "" })
	}
	c.filter()
	after := c.whole(s.Step + 5)
	c.survived(s, after, c.members(c.hosts...)...)
	c.finish()
}
