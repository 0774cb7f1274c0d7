// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"phalanx/chaos/netns"
	"phalanx/node"
)

// TestP1WrongKeyHasNoEffect: a host with another key tries to join again and again, first while nobody answers it, and the job
// does not notice.
func TestP1WrongKeyHasNoEffect(t *testing.T) {
	c := newClusterBeside(t, 1, 120, 2, "a", "b", "x")
	stranger := c.net.Hosts[2]
	runs := []*run{c.start(c.hosts[0]), c.start(c.hosts[1])}
	before := c.whole(5)
	wrong := c.newKey("another")
	for i := range 6 {
		if i == 0 {
			c.filter(netns.Split([]*netns.Host{stranger}, c.hosts)...)
		}
		r := c.run(stranger, "--key-file", wrong, "--bind", stranger.Addr.String(), "--join", c.address())
		if i == 0 {
			time.Sleep(3 * time.Second) // beyond its first look: it goes on trying
			select {
			case <-r.ended:
				t.Fatalf("it ended where nobody answered: %s", content(r.errs))
			default:
			}
			c.filter()
		}
		if code := c.end(r, 20*time.Second); code != node.CodeAuth || !strings.Contains(content(r.errs), "another job key") {
			t.Errorf("a wrong key ended with code %d: %s", code, content(r.errs))
		}
	}
	after := c.whole(before.Step)
	c.survived(before, after, c.members(c.hosts...)...)
	if after.Generation != before.Generation || fmt.Sprint(after.World) != fmt.Sprint(before.World) || len(after.Members) != len(before.Members) {
		t.Errorf("generation %d of %v with %d members became %d of %v with %d", before.Generation, before.World, len(before.Members), after.Generation, after.World, len(after.Members))
	}
	c.finish(runs...)
}
