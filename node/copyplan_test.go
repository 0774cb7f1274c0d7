// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	"phalanx"
	"phalanx/elastic"
)

func TestCopyPlan(t *testing.T) {
	g := phalanx.Generation{Number: 1}
	at := phalanx.Label{Step: 5, Generation: g}
	hold := func(id phalanx.MemberID, c int) holding {
		return holding{id, id.Host(), phalanx.Label{Step: 5, Generation: g, Coordinate: c}}
	}
	places := func(ids ...phalanx.MemberID) []place {
		var out []place
		for _, id := range ids {
			out = append(out, place{id, id.Host()})
		}
		return out
	}
	for name, c := range map[string]struct {
		group  int
		have   []holding
		places []place
		want   string
	}{
		"one host":               {1, []holding{hold("a/0", 0)}, places("a/0", "a/1"), ""},
		"two hosts have it":      {1, []holding{hold("a/0", 0), hold("b/0", 0)}, places("a/0", "b/0"), ""},
		"a spare on another":     {1, []holding{hold("a/0", 0), hold("a/1", 0)}, places("a/0", "a/1", "b/0"), "0 of [a/0 a/1] to b/0"},
		"a ring":                 {3, []holding{hold("a/0", 0), hold("b/0", 1), hold("c/0", 2)}, places("a/0", "b/0", "c/0"), "0 of [a/0] to b/0; 1 of [b/0] to c/0; 2 of [c/0] to a/0"},
		"dealt on the next host": {2, []holding{hold("a/0", 0), hold("a/1", 1)}, places("a/0", "a/1", "b/0", "b/1", "c/0"), "0 of [a/0] to b/0; 1 of [a/1] to b/1"},
		"only what is missing":   {2, []holding{hold("a/0", 0), hold("b/0", 1), hold("a/0", 1)}, places("a/0", "b/0"), "0 of [a/0] to b/0"},
		"its host is gone":       {1, []holding{hold("z/0", 0)}, places("a/0", "b/0"), "0 of [z/0] to a/0"},
	} {
		var words []string
		for _, x := range copyPlan(c.have, at, c.group, c.places) {
			words = append(words, fmt.Sprintf("%d of %v to %s", x.label.Coordinate, x.from, x.to))
		}
		if got := strings.Join(words, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestCopiesGoWhenNewerIsSafe(t *testing.T) {
	g := phalanx.Generation{Number: 1}
	l := phalanx.Label{Step: 5, Generation: g}
	at := func(step phalanx.Step) *elastic.Reached { return &elastic.Reached{Step: step, Generation: g} }
	published := func(step phalanx.Step) []elastic.Published {
		return []elastic.Published{{Step: step, Labels: []phalanx.Label{{Step: step, Generation: g}}}}
	}
	for name, c := range map[string]struct {
		state elastic.State
		want  bool
	}{
		"fresh":                        {elastic.State{}, true},
		"itself in two memories":       {elastic.State{Levels: elastic.ReachedLevels{Memory: at(5)}}, true},
		"a newer one on one host":      {elastic.State{Levels: elastic.ReachedLevels{Local: at(6), Memory: at(5)}}, true},
		"a newer one in two memories":  {elastic.State{Levels: elastic.ReachedLevels{Memory: at(6)}}, false},
		"itself durable: it is nearer": {elastic.State{Published: published(5)}, true},
		"a newer one durable":          {elastic.State{Published: published(6)}, false},
		"abandoned":                    {elastic.State{Rewinds: []elastic.RewindRecord{{Generation: phalanx.Generation{Number: 2}, Source: 4}}}, false},
	} {
		if got := useful(&c.state, l); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
