// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"

	"phalanx"
)

// spoilers are members that spoil the same step again: once, a step is repeated and nobody is blamed, because what failed was
// most likely passing. Twice in a row without any progress the member that did it leaves, or the step would be repeated for
// ever. blamed are those outvoted now.
func spoilers(s *State, evidence, blamed []phalanx.Evidence, answers []Answer) []phalanx.Evidence {
	n := len(s.Transitions)
	progress := slices.ContainsFunc(answers, func(a Answer) bool {
		v := a.vote(s.World.Generation)
		return v != nil && v.Step > s.Floor.Step+1
	})
	if n == 0 || progress || s.Transitions[n-1].Generation != s.World.Generation {
		return nil
	}
	before := s.Transitions[n-1].Evidence
	var out []phalanx.Evidence
	for _, e := range evidence {
		if e.Kind != phalanx.VotedNotOK {
			continue
		}
		again := slices.ContainsFunc(before, func(b phalanx.Evidence) bool { return b.Kind == e.Kind && b.About == e.About })
		if again && !slices.ContainsFunc(out, func(o phalanx.Evidence) bool { return o.About == e.About }) {
			out = append(out, e)
		}
	}
	if slices.ContainsFunc(before, unequal) {
		out = append(out, blamed...)
	}
	return out
}

func unequal(e phalanx.Evidence) bool { return e.Kind == phalanx.DigestsUnequal }

// outvoted blames for unequal digests the members whose newest vote differs from that of a strict majority of the answers of
// their coordinate. Without a majority nobody is blamed: whoever hears two votes cannot say which one is wrong.
func outvoted(s *State, f *Facts, evidence []phalanx.Evidence, answers []Answer) []phalanx.Evidence {
	if !slices.ContainsFunc(evidence, unequal) {
		return nil
	}
	g := s.World.Generation
	var out []phalanx.Evidence
	for i := range answers {
		mine, seat := answers[i].vote(g), s.World.SeatOf(answers[i].Member)
		if mine == nil || !mine.OK || seat == nil {
			continue
		}
		total := 0
		count := map[phalanx.Digest]int{}
		for j := range answers {
			v, o := answers[j].vote(g), s.World.SeatOf(answers[j].Member)
			if v != nil && v.OK && v.Step == mine.Step && o != nil && o.Coordinate == seat.Coordinate {
				total++
				count[v.Digest]++
			}
		}
		most := 0
		for _, n := range count { // the largest count alone is used: order does not matter
			most = max(most, n)
		}
		if 2*most > total && count[mine.Digest] < most {
			out = append(out, phalanx.Evidence{Kind: phalanx.DigestsUnequal, About: answers[i].Incarnate, Source: f.Leader, UnixNS: f.UnixNS,
				Step: mine.Step, Detail: fmt.Sprintf("%d of %d have another digest", most, total)})
		}
	}
	return out
}
