// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// cutGather is how long the leader gathers reports of members that do not reach each other before it judges: who is in most
// of them is cut off itself, and the first report may be of one that is not.
const cutGather = time.Second

// pair is two hosts with members that do not reach each other, the lesser first.
type pair [2]string

// judgeCuts blames a member for each pair in the world whose network is broken while the leader hears both: none of them is
// lost, and no step can be made with both.
func (a *arbiter) judgeCuts(f *elastic.Facts, now time.Time) {
	w := &a.d.state.World
	pairs := a.pairs(f)
	if len(pairs) == 0 || a.d.state.Phase == elastic.Halted {
		a.cutAt = time.Time{}
		return
	}
	if a.cutAt.IsZero() {
		a.cutAt = now
	}
	if now.Sub(a.cutAt) < cutGather {
		return
	}
	for _, host := range cover(pairs, w, a.d.cfg.Host) {
		for i := range f.Members {
			m := &f.Members[i]
			if seat := w.SeatOf(m.Member); seat == nil || m.Host != host || seat.Incarnation != m.Incarnation {
				continue
			}
			m.Evidence = append(m.Evidence, phalanx.Evidence{Kind: phalanx.CutOff, About: m.Incarnate, Source: a.d.me(), UnixNS: a.cutAt.UnixNano(),
				Detail: fmt.Sprintf("it and %s do not reach each other, and %s hears both", firstOf(pairs, host), a.d.me())})
		}
	}
}

// hears reports whether a member of the world is not lost.
func (a *arbiter) hears(f *elastic.Facts, id phalanx.MemberID) bool {
	m, seat := f.Fact(id), a.d.state.World.SeatOf(id)
	return m != nil && seat != nil && m.Incarnation == seat.Incarnation && m.Connected && !m.Silent && !m.Dead
}

// pairs are the hosts in the world that do not reach each other.
func (a *arbiter) pairs(f *elastic.Facts) []pair {
	w := &a.d.state.World
	var out []pair
	for i := range f.Members {
		m := &f.Members[i]
		v := a.members[m.Member]
		if v == nil || v.report == nil || v.report.Generation != w.Generation || !a.hears(f, m.Member) {
			continue
		}
		for _, to := range v.report.Cut {
			if a.hears(f, to) && to.Host() != m.Host { // one that is lost is judged as such
				if p := (pair{min(m.Host, to.Host()), max(m.Host, to.Host())}); !slices.Contains(out, p) {
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// cover chooses hosts so that no pair is left without them: first who is in most pairs, then rather not the leader's, then
// who has fewer ranks, then who has the later ones.
func cover(pairs []pair, w *phalanx.World, leader string) []string {
	left := slices.Clone(pairs)
	var out []string
	for len(left) > 0 {
		count := map[string]int{}
		for _, p := range left {
			count[p[0]]++
			count[p[1]]++
		}
		best := ""
		var rank [4]int
		for host, n := range count {
			this := [4]int{n, 0, 0, 0}
			if host != leader {
				this[1] = 1
			}
			for _, s := range w.Seats {
				if s.Member.Host() == host {
					this[2]--
					this[3] = max(this[3], int(s.Rank))
				}
			}
			if best == "" || slices.Compare(this[:], rank[:]) > 0 {
				best, rank = host, this
			}
		}
		out = append(out, best)
		left = slices.DeleteFunc(left, func(p pair) bool { return p[0] == best || p[1] == best })
	}
	slices.Sort(out)
	return out
}

// firstOf is the first host that the given one is in a pair with.
func firstOf(pairs []pair, host string) string {
	var others []string
	for _, p := range pairs {
		switch host {
		case p[0]:
			others = append(others, p[1])
		case p[1]:
			others = append(others, p[0])
		}
	}
	return "host " + slices.Min(others)
}

// apart reports whether a member outside of the world would not be reached in it, or has not said yet that it would. Nobody
// reaches who is lost, and who is to take its place need not.
func (a *arbiter) apart(f *elastic.Facts, v *memberView) bool {
	w := &a.d.state.World
	other := slices.ContainsFunc(w.Seats, func(s phalanx.Seat) bool { return s.Member.Host() != v.id.Host() })
	if !other || v.report == nil || a.d.plain != nil || w.SeatOf(v.id) != nil {
		return false
	}
	return v.report.Generation != w.Generation || slices.ContainsFunc(v.report.Cut, func(to phalanx.MemberID) bool { return a.hears(f, to) })
}
