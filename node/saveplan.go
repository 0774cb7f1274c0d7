// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"phalanx"
	"phalanx/ckpt"
)

// What the leader decides about a save, as functions of what it knows. Times are durations since the step of the save was
// there; publisher.go measures them and carries the decisions out.

const (
	// lateFloor is how much longer than the median a share may take at least before somebody else is asked for it too.
	lateFloor = 2 * time.Second
	// lateFactor bounds it by what the others took: a share is late that takes three times the median.
	lateFactor = 3
	// absentAfter is how long a daemon may be without a connection before its share is given to another one.
	absentAfter = time.Second
	// saveStuck is how long nobody may read a byte of the state for a save, or tell of a share, before it is given up.
	saveStuck = time.Minute
)

// share is what the leader knows of one rank's share of the save under way.
type share struct {
	rank       phalanx.Rank
	coordinate int
	written    bool
	took       time.Duration // until it was stored
	part       ckpt.PartRef
	writers    []shareWriter // who was asked for it, the rank's own member first
}

// shareWriter is a member that was asked for a share.
type shareWriter struct {
	member phalanx.MemberID
	asked  time.Duration
	failed bool
	why    string // "" with failed: it does not have the state
	absent bool   // its daemon has no connection
}

// keeper is a connected member that has the state of the save in a slab.
type keeper struct {
	member     phalanx.MemberID
	coordinate int
}

// takeover is a share that one more member is asked for.
type takeover struct {
	rank phalanx.Rank
	by   phalanx.MemberID
	why  string
}

// late is how long a writer may take from when it was asked, 0 while it cannot be told: at least half of the shares must
// be there to compare with, or the store is slow for everybody and nobody is late.
func late(shares []share) time.Duration {
	var took []time.Duration
	for i := range shares {
		if shares[i].written {
			took = append(took, shares[i].took)
		}
	}
	if len(took) == 0 || 2*len(took) < len(shares) {
		return 0
	}
	slices.Sort(took)
	median := took[(len(took)-1)/2]
	return max(median+lateFloor, lateFactor*median)
}

// takeovers are the shares that somebody else must write too: of each one that is not there, whoever was asked has failed, is
// absent or late. The share goes to a member that has the state and was not asked for it yet: rather one whose own share is
// there, then one that was asked for fewest.
func takeovers(shares []share, keepers []keeper, elapsed time.Duration) []takeover {
	limit := late(shares)
	load := map[phalanx.MemberID]int{}
	for i := range shares {
		for _, w := range shares[i].writers {
			if load[w.member]++; !shares[i].written {
				load[w.member] += len(shares) // still busy
			}
		}
	}
	var out []takeover
	for i := range shares {
		x := &shares[i]
		why, needed := x.needsAnother(limit, elapsed)
		if !needed {
			continue
		}
		best := -1
		for k, c := range keepers {
			if c.coordinate == x.coordinate && !x.askedOf(c.member) && (best < 0 || load[c.member] < load[keepers[best].member]) {
				best = k
			}
		}
		if best >= 0 {
			by := keepers[best].member
			load[by] += 1 + len(shares)
			out = append(out, takeover{x.rank, by, why})
		}
	}
	return out
}

// needsAnother reports whether nobody who was asked for the share will bring it in time, and why.
func (x *share) needsAnother(limit, elapsed time.Duration) (why string, needed bool) {
	if x.written {
		return "", false
	}
	for _, w := range x.writers {
		switch {
		case w.failed && w.why == "":
			why = string(w.member) + " does not have the state"
		case w.failed:
			why = string(w.member) + " failed: " + w.why
		case w.absent:
			why = "no connection to " + string(w.member)
		case limit > 0 && elapsed-w.asked > limit:
			why = string(w.member) + " is late"
		default:
			return "", false
		}
	}
	return why, true
}

func (x *share) askedOf(id phalanx.MemberID) bool {
	return slices.ContainsFunc(x.writers, func(w shareWriter) bool { return w.member == id })
}

// hopeless finds a share that nobody can write any more. Its words are those of the first failure, "" when nobody has the
// state: the step was missed.
func hopeless(shares []share, keepers []keeper) (why string, lost bool) {
	for i := range shares {
		x := &shares[i]
		if x.written || slices.ContainsFunc(x.writers, func(w shareWriter) bool { return !w.failed }) {
			continue
		}
		if slices.ContainsFunc(keepers, func(c keeper) bool { return c.coordinate == x.coordinate && !x.askedOf(c.member) }) {
			continue
		}
		// Somebody with its coordinate may be about to have the state.
		if slices.ContainsFunc(shares, func(o share) bool { return o.coordinate == x.coordinate && o.pending() }) {
			continue
		}
		for _, w := range x.writers {
			if why == "" {
				why = w.why
			}
		}
		return why, true
	}
	return "", false
}

// pending reports whether a share is still to come from the rank's own member.
func (x *share) pending() bool { return !x.written && len(x.writers) > 0 && !x.writers[0].failed }

// saveDue is what the choice of the next step to save rests on.
type saveDue struct {
	at      phalanx.Step // newest step that anybody stands at
	last    phalanx.Step
	durable phalanx.Step // newest published
	newest  phalanx.Step // newest published or given up
	staged  phalanx.Step // newest that is whole in slabs
	flying  phalanx.Step // newest of the saves under way before the one in question, 0 for none
	wanted  phalanx.Step // asked for by a stop, 0 for none
	every   phalanx.Step // interval in steps, 0 for one in time
	elapsed bool         // the interval in time is over
}

// step is the step to save next, 0 for none yet.
func (x saveDue) step() phalanx.Step {
	switch {
	case x.at >= x.last:
		if max(x.durable, x.flying) < x.last {
			return x.last
		}
		return 0
	case x.staged > x.durable && x.staged > x.newest:
		return x.staged // under an earlier leader or generation, or the store failed: nobody has to stage again
	case x.wanted > 0:
		if max(x.durable, x.flying) < x.wanted {
			return min(max(x.wanted, x.at+1), x.last)
		}
		return 0
	case x.every > 0:
		return min((max(x.newest, x.at)/x.every+1)*x.every, x.last)
	case x.elapsed:
		return min(x.at+3, x.last)
	}
	return 0
}

// after is what the choice rests on with one more save under way.
func (x saveDue) after(step phalanx.Step) saveDue {
	x.flying = max(x.flying, step)
	x.newest = max(x.newest, step)
	return x
}

// replaces reports whether a save that was announced gives way to that of another step. One that nobody has begun does when
// an earlier step is due; at the end of the job one of which no share is there, because the last step alone counts then.
func (x saveDue) replaces(announced phalanx.Step, begun bool, written int) bool {
	step := x.step()
	switch {
	case step == 0 || step == announced:
		return false
	case x.at >= x.last:
		return written == 0
	}
	return !begun && step < announced
}

// stagedStep is the newest step of which every coordinate is in a slab, of the lineage and made by one generation, 0 for none.
func stagedStep(slabs []phalanx.Label, groupSize int, ofLineage func(phalanx.Label) bool) phalanx.Step {
	type state struct {
		step       phalanx.Step
		generation phalanx.Generation
	}
	have := map[state][]int{}
	var newest phalanx.Step
	for _, l := range slabs {
		if l.Step <= newest || !ofLineage(l) || l.Coordinate < 0 || l.Coordinate >= groupSize {
			continue
		}
		k := state{l.Step, l.Generation}
		if !slices.Contains(have[k], l.Coordinate) {
			have[k] = append(have[k], l.Coordinate)
		}
		if len(have[k]) == groupSize {
			newest = l.Step
		}
	}
	return newest
}
