// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// holding is a whole staged state in the memory of a host, by the word of a connected member.
type holding struct {
	member phalanx.MemberID
	host   string
	label  phalanx.Label
}

// holdings are what connected members report, in member order.
func (a *arbiter) holdings() []holding {
	var out []holding
	for id, v := range a.members {
		if v.report == nil || !v.local && v.conn == nil {
			continue
		}
		for _, l := range v.report.Slabs {
			if a.d.state.OfLineage(l) && l.Coordinate >= 0 && l.Coordinate < a.d.state.GroupSize() {
				out = append(out, holding{id, id.Host(), l})
			}
		}
	}
	slices.SortStableFunc(out, func(x, y holding) int { return phalanx.CompareMemberIDs(x.member, y.member) })
	return out
}

// stagedLevels are the newest states that are whole on hosts, each coordinate on one at least, and on two. They are named by
// step and generation; a step of 0 is none.
func stagedLevels(have []holding, groupSize int) (local, memory phalanx.Label) {
	for _, h := range have {
		at := phalanx.Label{Step: h.label.Step, Generation: h.label.Generation}
		if at.Step <= local.Step && at.Step <= memory.Step {
			continue
		}
		fewest := -1 // hosts of a coordinate
		for c := range groupSize {
			if n := len(hostsOf(have, at, c)); fewest < 0 || n < fewest {
				fewest = n
			}
		}
		if fewest >= 1 && at.Step > local.Step {
			local = at
		}
		if fewest >= 2 && at.Step > memory.Step {
			memory = at
		}
	}
	return local, memory
}

// hostsOf are the hosts that hold a coordinate of the state of a step, in the order of their members.
func hostsOf(have []holding, at phalanx.Label, coordinate int) []string {
	var hosts []string
	for _, h := range have {
		if h.label.Step == at.Step && h.label.Generation == at.Generation && h.label.Coordinate == coordinate && !slices.Contains(hosts, h.host) {
			hosts = append(hosts, h.host)
		}
	}
	return hosts
}

// localWait is how long a state that is local may be about to be in the memory of two hosts before that it is local is
// recorded: mostly one entry says both.
const localWait = 2 * time.Second

// levels records the level that a staged state has reached, one entry at a time.
func (p *publisher) levels(now time.Time) {
	d := p.d
	a, s := d.lead, d.state
	if a == nil || a.busy || s.Spec == nil || d.plain != nil || now.Before(a.retryAt) || s.World.Generation.IsZero() ||
		s.Phase == elastic.Finished || s.Phase == elastic.Halted && s.Halt.Kind.Ends() {
		return
	}
	have := a.holdings()
	local, memory := stagedLevels(have, s.GroupSize())
	if local.Step > p.local {
		p.local, p.localAt = local.Step, now
	}
	c := elastic.ReachLevel{Reached: elastic.Reached{UnixNS: now.UnixNano()}}
	switch {
	case memory.Step > reachedStep(s.Levels.Memory):
		c.Level, c.Step, c.Generation = elastic.LevelMemory, memory.Step, memory.Generation
	case local.Step > reachedStep(s.Levels.Local) && (hostCount(&s.World) == 1 || now.Sub(p.localAt) > localWait):
		c.Level, c.Step, c.Generation = elastic.LevelLocal, local.Step, local.Generation
	default:
		return
	}
	a.propose(c, "a staged state is in host memory")
}

func reachedStep(r *elastic.Reached) phalanx.Step {
	if r == nil {
		return 0
	}
	return r.Step
}

// hostCount counts the hosts of a world.
func hostCount(w *phalanx.World) int {
	var hosts []string
	for _, seat := range w.Seats {
		if h := seat.Member.Host(); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	return len(hosts)
}
