// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"cmp"
	"fmt"
	"slices"
)

// ChangeKind is what one change of the configuration does.
type ChangeKind string

// The changes of one server.
const (
	Add     ChangeKind = "add"     // as a non-voter
	Promote ChangeKind = "promote" // non-voter to voter
	Demote  ChangeKind = "demote"  // voter to non-voter
	Remove  ChangeKind = "remove"  // out of the configuration
)

// Change is one change of the configuration.
type Change struct {
	Kind ChangeKind
	ID   string
	Addr string // of an Add
	Why  string
}

func (c Change) String() string { return fmt.Sprintf("%s %s: %s", c.Kind, c.ID, c.Why) }

// Candidate is a daemon that has a Raft server, as the planner sees it.
type Candidate struct {
	ID       string // server id
	Addr     string
	Host     string
	Domain   string // failure domain (rack, switch, zone); "" means that only the host is known
	Alive    bool   // false: known to be gone; its server is removed
	CaughtUp bool   // see Log.CaughtUp; only such a non-voter is promoted
}

const (
	maxVoters      = 5 // seven are not faster to fail over, and cost two more acknowledgements
	maxStandbys    = 4 // beyond this, those not wanted are removed
	standbysOfFew  = 2 // wanted beside up to three voters
	standbysOfMany = 4 // wanted beside five
	fewVoters      = 3
	hostsForMany   = 5 // hosts from which on there are five voters
)

// PlanVoters returns the changes that bring the configuration closer to what it should be, in order. They are to be made one
// at a time, and planned anew after each: the later ones may not be due any more. The result is nil when all is well.
//
// Voters: on one host the largest odd number up to three; on two hosts three, as two and one; on three or four hosts three;
// beyond, five. Fewer, and odd, when fewer servers are alive and caught up. They are spread over failure domains first,
// then over hosts; the leader stays one, and among equals those that are voters stay, then the order of candidates counts.
// Beside them two standbys, four beside five voters.
//
// The dead are removed before anybody is promoted, promotions come before demotions, and no step leaves the living voters
// without a majority if they had one. A server without a candidate is left as it is: a leader that has just learned who
// there is would otherwise remove the others.
func PlanVoters(candidates []Candidate, servers []Server, leader string) []Change {
	p := newPlan(candidates, servers, leader)
	final := p.spread(p.living, nil, p.voterCount(p.living))
	eligible := slices.DeleteFunc(slices.Clone(p.living), func(c *planned) bool { return !c.voter && !(c.server && c.CaughtUp) })
	voters := p.spread(eligible, nil, p.voterCount(eligible))
	standbys := standbysOfFew
	if len(final) > fewVoters {
		standbys = standbysOfMany
	}
	wanted := p.spread(p.living, final, len(final)+standbys)

	var changes []Change
	add := func(kind ChangeKind, c *planned, why string) {
		change := Change{Kind: kind, ID: c.ID, Why: why}
		if kind == Add {
			change.Addr = c.Addr
		}
		changes = append(changes, change)
	}
	for _, c := range p.dead {
		if c.voter {
			add(Remove, c, "voter is dead")
		}
	}
	for _, c := range p.dead {
		if c.server && !c.voter {
			add(Remove, c, "standby is dead")
		}
	}
	for _, c := range wanted {
		if !c.server {
			add(Add, c, fmt.Sprintf("%d voters and %d standbys are wanted", len(final), standbys))
		}
	}
	for _, c := range voters {
		if !c.voter {
			add(Promote, c, fmt.Sprintf("%d voters are wanted, and it has caught up", len(voters)))
		}
	}
	for _, c := range p.living {
		if c.voter && !c.unknown && c.ID != leader && !slices.Contains(voters, c) {
			add(Demote, c, fmt.Sprintf("%d voters elsewhere are enough", len(voters)))
		}
	}
	surplus := -maxStandbys
	for _, c := range p.living {
		if c.server && !c.voter {
			surplus++
		}
	}
	for _, c := range slices.Backward(p.living) {
		if surplus > 0 && c.server && !c.voter && !c.unknown && !slices.Contains(wanted, c) && !slices.Contains(voters, c) {
			add(Remove, c, fmt.Sprintf("more than %d standbys", maxStandbys))
			surplus--
		}
	}
	return changes
}

// planned is a candidate together with its place in the configuration.
type planned struct {
	Candidate
	server  bool // in the configuration
	voter   bool
	unknown bool // in the configuration, without a candidate
	order   int
}

type plan struct {
	living []*planned
	dead   []*planned
	leader string
}

func newPlan(candidates []Candidate, servers []Server, leader string) plan {
	p := plan{leader: leader}
	byID := map[string]*planned{}
	for i, c := range candidates {
		if byID[c.ID] != nil || c.ID == "" {
			continue
		}
		c.Alive = c.Alive || c.ID == leader // it is asking
		byID[c.ID] = &planned{Candidate: c, order: i}
	}
	for _, s := range servers {
		c := byID[s.ID]
		if c == nil {
			c = &planned{Candidate: Candidate{ID: s.ID, Addr: s.Addr, Alive: true}, unknown: true, order: len(candidates)}
			c.Host = "server:" + s.ID // on a host of its own: nothing is known of it
			byID[s.ID] = c
			p.living = append(p.living, c)
		}
		c.server, c.voter = true, s.Voter
	}
	for _, c := range candidates {
		known := byID[c.ID]
		if known == nil || slices.Contains(p.living, known) || slices.Contains(p.dead, known) {
			continue
		}
		if known.Alive {
			p.living = append(p.living, known)
		} else if known.server {
			p.dead = append(p.dead, known)
		}
	}
	return p
}

// voterCount is how many of these should vote.
func (p plan) voterCount(of []*planned) int {
	hosts := map[string]bool{}
	n := 0
	for _, c := range of {
		if c.unknown && !c.voter {
			continue
		}
		hosts[c.Host] = true
		n++
	}
	want := fewVoters
	if len(hosts) >= hostsForMany {
		want = maxVoters
	}
	if n < want {
		want = n - (n+1)%2 // the largest odd number; -1 of none
	}
	return max(want, 0)
}

// spread extends chosen to count, each time by the one whose domain, then host, has the fewest chosen yet.
func (p plan) spread(from, chosen []*planned, count int) []*planned {
	chosen = slices.Clone(chosen)
	domains, hosts := map[string]int{}, map[string]int{}
	for _, c := range chosen {
		domains[c.domain()]++
		hosts[c.Host]++
	}
	for len(chosen) < count {
		var best *planned
		for _, c := range from {
			if slices.Contains(chosen, c) || c.unknown && !c.voter {
				continue
			}
			if best == nil || cmp.Or(
				falseFirst(c.ID != p.leader, best.ID != p.leader),
				// An unknown voter stays one whatever is planned, so it is counted before others are chosen.
				falseFirst(!c.unknown, !best.unknown),
				cmp.Compare(domains[c.domain()], domains[best.domain()]),
				cmp.Compare(hosts[c.Host], hosts[best.Host]),
				falseFirst(!c.voter, !best.voter),
				falseFirst(!c.server, !best.server),
				cmp.Compare(c.order, best.order),
			) < 0 {
				best = c
			}
		}
		if best == nil {
			break
		}
		chosen = append(chosen, best)
		domains[best.domain()]++
		hosts[best.Host]++
	}
	return chosen
}

// domain is the failure domain; a host without one is a domain of its own.
func (c *planned) domain() string {
	if c.Domain == "" {
		return "host:" + c.Host
	}
	return "domain:" + c.Domain
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}
