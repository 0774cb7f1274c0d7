// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"testing"

	"phalanx"
	"phalanx/collective/host"
	"phalanx/elastic"
)

// A connection for collectives that ends is complained of although nothing here waits for it: the other end may.
func TestABrokenLinkIsToldUnasked(t *testing.T) {
	d := lone(t)
	far := incarnate("far", 0, 1)
	d.state.World.Seats = append(d.state.World.Seats, phalanx.Seat{Incarnate: far, Rank: 1})
	near, other := net.Pipe()
	link := host.NewLink(near, quiet())
	defer link.Close()
	g := d.state.World.Generation
	d.links = usedLinks{g, []host.RemotePeer{{Rank: 1, Link: link}}}
	d.watchLinks()
	if len(d.evidence) > 0 {
		t.Fatalf("a working connection is evidence: %v", d.evidence)
	}
	_ = other.Close()
	<-link.Done()
	d.links.generation = phalanx.Generation{Number: 99}
	d.watchLinks()
	if len(d.evidence) > 0 {
		t.Fatalf("a connection of another generation is evidence: %v", d.evidence)
	}
	d.links.generation = g
	d.watchLinks()
	d.watchLinks()
	if len(d.evidence) != 1 || d.evidence[0].Kind != phalanx.Unreachable || d.evidence[0].About != far || !d.dirty {
		t.Errorf("told %v, dirty %v", d.evidence, d.dirty)
	}
	d.evidence, d.state.Phase = nil, elastic.Finished
	if d.watchLinks(); len(d.evidence) > 0 {
		t.Errorf("the end of the job is evidence: %v", d.evidence)
	}
}
