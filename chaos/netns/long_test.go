// SPDX-License-Identifier: Apache-2.0

//go:build partitions

package netns_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx/chaos/netns"
	"phalanx/node"
)

var (
	lasts = flag.Duration("lasts", 10*time.Minute, "how long the random sequence of breaks lasts")
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "draws the breaks")
)

// TestLongFlaps: 50 cuts of hosts with two members each.
func TestLongFlaps(t *testing.T) {
	c := newCluster(t, 2, 600, "a", "b", "c", "d")
	c.begin()
	s := c.whole(0)
	c.flap(*seed, 50)
	c.whole(s.Step)
	c.finish()
}

// TestLongPlanes cuts the planes that the short tests leave out.
func TestLongPlanes(t *testing.T) {
	c := newCluster(t, 1, 200, "a", "b", "c")
	c.planes(plane{"control plane", control, false}, plane{"collectives of the leader", []uint8{node.DSCP(node.ProtoData)}, true})
}

// TestLongSequence breaks a network of four hosts in random ways, mends it for a moment and breaks it again. Training goes on
// whenever all hosts hear each other for long enough, and ends as without any of it.
func TestLongSequence(t *testing.T) {
	c := newCluster(t, 1, int(*lasts/floor/2), "a", "b", "c", "d")
	c.begin()
	t.Logf("-seed %d", *seed)
	draw := rand.New(rand.NewPCG(*seed, 1))
	for end, n := time.Now().Add(*lasts), 0; time.Now().Before(end); n++ {
		what, filters := c.drawBreak(draw)
		length := 100*time.Millisecond + time.Duration(draw.Int64N(int64(8*time.Second)))
		t.Logf("%d: %s for %s", n, what, length.Round(time.Millisecond))
		c.filter(filters...)
		time.Sleep(length)
		c.filter()
		if draw.IntN(3) > 0 {
			s := c.within(2*time.Minute, c.hosts[0], "all train again", func(s *node.Status) bool {
				return s.Phase == "finished" || s.Fresh && s.Phase == "running" && len(s.World) == len(c.hosts)
			})
			if s.Phase == "finished" {
				break
			}
		} else {
			time.Sleep(time.Duration(draw.Int64N(int64(2 * time.Second)))) // the next break meets the repair of this one
		}
	}
	c.finish()
}

// drawBreak draws a way to break the network.
func (c *cluster) drawBreak(draw *rand.Rand) (string, []netns.Filter) {
	hosts := slices.Clone(c.hosts)
	draw.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	n := 1 + draw.IntN(len(hosts)-1)
	some, rest := hosts[:n], hosts[n:]
	names := func(hosts []*netns.Host) string {
		var words []string
		for _, h := range hosts {
			words = append(words, h.Name)
		}
		return strings.Join(words, "")
	}
	planes := map[string][]uint8{
		"control": control,
		"votes":   {node.DSCP(node.ProtoPeer)}, "data": {node.DSCP(node.ProtoData)}, "heals": {node.DSCP(node.ProtoAPI)},
	}
	plane := []string{"control", "votes", "data", "heals"}[draw.IntN(4)]
	switch draw.IntN(6) {
	case 0:
		return fmt.Sprintf("%s from %s, both ways", names(some), names(rest)), netns.Split(some, rest)
	case 1:
		return fmt.Sprintf("%s to %s", names(some), names(rest)), []netns.Filter{{From: some, To: rest}}
	case 2:
		return fmt.Sprintf("%s from %s", names(hosts[:1]), names(hosts[1:2])), netns.Split(hosts[:1], hosts[1:2])
	case 3:
		return fmt.Sprintf("%s plane of %s", plane, names(some)), netns.Filter{From: some, DSCP: planes[plane]}.Both()
	case 4:
		percent := 1 + draw.IntN(30)
		return fmt.Sprintf("%d %% of all packets", percent), []netns.Filter{{Percent: percent}}
	default:
		return "everyone from everyone", netns.Split(hosts[:1], hosts[1:2], hosts[2:3], hosts[3:])
	}
}
