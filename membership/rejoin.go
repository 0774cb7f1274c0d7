// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"math/rand/v2"
	"time"
)

// reconcile joins the roster's silent addresses again and again. memberlist's probes, exchanges and gossip all skip the
// dead, so a cut that outlasted its gossip to the dead stays for ever unless somebody joins. One join is not enough: in
// the first exchange each side only learns that it was thought dead and raises its counter, the next one brings the
// raised counter across. Doing it from both sides every round heals within two rounds.
//
// The roster is owned by this goroutine.
func (g *Gossip) reconcile(ctx context.Context, roster []string) {
	defer close(g.ended)
	timer := time.NewTimer(0) // the first round is now
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case roster = <-g.rejoin:
		case <-timer.C:
		}
		g.joinMissing(ctx, roster)
		timer.Reset(jitter(rejoinInterval))
	}
}

// joinMissing joins what is in the roster and not alive, in random order so that a thousand members do not meet at the
// first one, and no longer than one interval.
func (g *Gossip) joinMissing(ctx context.Context, roster []string) {
	until := time.Now().Add(rejoinInterval)
	alive := g.view.addrs()
	self := g.Addr()
	joined := 0
	for _, i := range rand.Perm(len(roster)) {
		addr := roster[i]
		if ctx.Err() != nil || time.Now().After(until) {
			break
		}
		if addr == self || alive[addr] {
			continue
		}
		if _, err := g.list.Join([]string{addr}); err != nil {
			g.log.Debug("gossip join", "addr", addr, "err", err)
			continue
		}
		joined++
		// What the exchange taught saves joins.
		alive = g.view.addrs()
	}
	if joined > 0 {
		g.log.Info("gossip joined", "addresses", joined, "members", len(alive))
	}
}

// jitter spreads d over 0.75 to 1.25 of itself.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }
