// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"phalanx"
)

// place is a member that may keep a copy: one of the world by rank, then spares by name.
type place struct {
	member phalanx.MemberID
	host   string
}

// copyOrder is a copy of a coordinate that a member is asked to keep.
type copyOrder struct {
	label phalanx.Label
	to    phalanx.MemberID
	from  []phalanx.MemberID
}

// copyPlan says who keeps a copy of what: of each coordinate of the state that is on one host alone, a member of the host that
// comes after that one, in the order of the hosts in the world and around; there the one with the fewest copies. It is a function
// of the world and of who holds what, so the next leader asks for the same.
func copyPlan(have []holding, at phalanx.Label, groupSize int, places []place) []copyOrder {
	var hosts []string
	for _, p := range places {
		if !slices.Contains(hosts, p.host) {
			hosts = append(hosts, p.host)
		}
	}
	load := map[phalanx.MemberID]int{}
	var out []copyOrder
	for c := range groupSize {
		on := hostsOf(have, at, c)
		if len(on) != 1 {
			continue
		}
		x := copyOrder{label: phalanx.Label{}}
		for _, h := range have {
			if h.label.Step == at.Step && h.label.Generation == at.Generation && h.label.Coordinate == c {
				x.label, x.from = h.label, append(x.from, h.member)
			}
		}
		next := nextHost(hosts, on[0])
		for _, p := range places {
			if p.host == next && (x.to == "" || load[p.member] < load[x.to]) {
				x.to = p.member
			}
		}
		if x.to != "" {
			load[x.to]++
			out = append(out, x)
		}
	}
	return out
}

// nextHost is the host after one, around; "" when there is no other.
func nextHost(hosts []string, host string) string {
	i := slices.Index(hosts, host)
	if len(hosts) == 0 || len(hosts) == 1 && i == 0 {
		return ""
	}
	return hosts[(i+1)%len(hosts)]
}

// copies asks for copies of the newest staged state that is not in the memory of two hosts yet.
func (p *publisher) copies(now time.Time) {
	a, s := p.d.lead, p.d.state
	if now.Sub(p.copied) < saveRepeat || s.Spec == nil {
		return
	}
	have := a.holdings()
	local, memory := stagedLevels(have, s.GroupSize())
	if local.Step <= memory.Step {
		return
	}
	p.copied = now
	for _, x := range copyPlan(have, local, s.GroupSize(), a.places()) {
		ask := &CopyAsk{Generation: s.World.Generation, Label: x.label, From: x.from}
		switch v := a.members[x.to]; {
		case v.local:
			p.d.saver.copyAsked(ask)
		case v.conn != nil:
			v.conn.send(&Message{Copy: ask})
		}
	}
}

// places are the connected members that may keep copies: those of the world first, by rank.
func (a *arbiter) places() []place {
	var out []place
	connected := func(id phalanx.MemberID) bool {
		v := a.members[id]
		return v != nil && (v.local || v.conn != nil)
	}
	for _, seat := range a.d.state.World.Seats {
		if connected(seat.Member) {
			out = append(out, place{seat.Member, seat.Member.Host()})
		}
	}
	for _, m := range a.d.state.Members { // by name
		if a.d.state.World.SeatOf(m.Member) == nil && a.d.state.Living(m.Incarnate) && connected(m.Member) {
			out = append(out, place{m.Member, m.Member.Host()})
		}
	}
	return out
}
