// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"time"

	"phalanx"
	"phalanx/consensus"
	"phalanx/elastic"
)

// keepVoters brings Raft's configuration closer to what the living daemons allow, one change at a time.
func (a *arbiter) keepVoters(now time.Time) {
	if a.voters || now.Before(a.votersAt) {
		return
	}
	d := a.d
	servers, err := d.raft.Servers()
	if err != nil {
		return
	}
	var candidates []consensus.Candidate
	for _, v := range a.members {
		if v.peer.Server == "" || v.peer.Watcher {
			continue
		}
		// A daemon that has just died is probably being started again: its server keeps its place for a while.
		alive := v.local || v.conn != nil || now.Sub(v.lost) < 30*time.Second
		if m := d.state.Member(v.id); m != nil && m.Drained && m.State == elastic.Gone && !v.local {
			alive = false // it ends and does not come back: the others need a majority without it
		}
		candidates = append(candidates, consensus.Candidate{ID: v.peer.Server, Addr: v.peer.Addr, Host: v.peer.Host, Alive: alive,
			CaughtUp: v.local || v.conn != nil && d.raft.CaughtUp(v.peer.Server)})
	}
	slices.SortFunc(candidates, func(x, y consensus.Candidate) int {
		px, _ := d.roster.byServer(x.ID)
		py, _ := d.roster.byServer(y.ID)
		return phalanx.CompareMemberIDs(px.Member, py.Member)
	})
	changes := consensus.PlanVoters(candidates, servers, d.raft.ServerID())
	if len(changes) == 0 {
		a.votersAt = now.Add(200 * time.Millisecond)
		return
	}
	change := changes[0]
	a.voters = true
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 3*time.Second)
		err := d.raft.Perform(ctx, change)
		cancel()
		d.post(func() {
			if d.lead != a {
				return
			}
			a.voters, a.votersAt = false, time.Now().Add(20*time.Millisecond)
			if err != nil {
				d.log.Debug("voters not changed", "change", change.String(), "error", err)
				a.votersAt = time.Now().Add(200 * time.Millisecond)
			} else {
				d.log.Info("voters changed", "change", change.String())
			}
		})
	})
}
