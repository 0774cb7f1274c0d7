// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"phalanx"
	"phalanx/chaos/netns"
)

// flap cuts hosts drawn from a seed off and mends the network again, each for 100 to 400 ms.
func (c *cluster) flap(seed uint64, times int) {
	c.t.Helper()
	c.t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	span := func() time.Duration {
		return 100*time.Millisecond + time.Duration(draw.Int64N(int64(300*time.Millisecond)))
	}
	for range times {
		h := c.hosts[draw.IntN(len(c.hosts))]
		c.filter(netns.Split([]*netns.Host{h}, c.others(h))...)
		time.Sleep(span()) // what is tested is this very time
		c.filter()
		time.Sleep(span())
	}
}

// TestP1Flaps: a network that comes and goes restarts nobody whom the world did not lose first, and each loss is explained.
func TestP1Flaps(t *testing.T) {
	c := newCluster(t, 1, 120, "a", "b", "c")
	c.begin()
	c.voters(1, 1, 1)
	s := c.whole(0)
	c.flap(1, 20)
	c.whole(s.Step)
	c.finish()
}

// TestP1Loss loses packets of all hosts, up to every third.
func TestP1Loss(t *testing.T) {
	c := newCluster(t, 1, 100, "a", "b", "c")
	c.begin()
	c.voters(1, 1, 1)
	var s phalanx.Step
	for _, percent := range []int{1, 3, 10, 30} {
		s = c.whole(s).Step
		c.filter(netns.Filter{Percent: percent})
		time.Sleep(2 * time.Second) // what is tested is this very time
		after, err := c.watch.ask(c.hosts[0])
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d %% are lost: steps %d to %d, generation %d", percent, s, after.Step, after.Generation)
		c.filter()
	}
	c.whole(s)
	c.finish()
}
