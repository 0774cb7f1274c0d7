// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"testing"

	"phalanx"
)

// TestResume holds the rule of the resume step against small sets of answers. The floor is 4, made in generation 1; the
// present generation is 2, with groups of one unless the case says otherwise.
func TestResume(t *testing.T) {
	g := phalanx.Generation{Number: 2}
	d, e := phalanx.Digest{1, 1}, phalanx.Digest{2, 2}
	floor := func(c int) phalanx.Label {
		return phalanx.Label{Step: 4, Generation: phalanx.Generation{Number: 1}, Digest: d, Coordinate: c}
	}
	ids := []phalanx.MemberID{"a/0", "b/0", "c/0", "d/0"}
	type answer struct {
		who     int
		voted   phalanx.Step
		notOK   bool
		digest  phalanx.Digest // of the vote; d when zero
		applied phalanx.Step   // label made in g; the floor when zero
		dead    bool
		torn    bool
		refused phalanx.Step
		unread  bool
		old     bool // the vote is of an older generation
	}
	for name, c := range map[string]struct {
		group   int
		answers []answer
		want    phalanx.Step
		newest  phalanx.Step
		unknown []int // coordinates of which the digest is not known
		fails   bool
	}{
		"nobody answered":                        {fails: true},
		"a stranger answered":                    {answers: []answer{{who: 3}}, fails: true},
		"nobody voted":                           {answers: []answer{{who: 0}, {who: 1}}, want: 4, newest: 4},
		"a vote of an older generation":          {answers: []answer{{who: 0, voted: 6, old: true}}, want: 4, newest: 4},
		"sealed unread, with a vote on the page": {answers: []answer{{who: 0, voted: 6, unread: true}}, want: 4, newest: 4},
		"one of two voted":                       {answers: []answer{{who: 0, voted: 5}, {who: 1}}, want: 4, newest: 5},
		"all that answered voted":                {answers: []answer{{who: 0, voted: 5}, {who: 1, voted: 5}}, want: 5, newest: 5},
		"the only answer voted":                  {answers: []answer{{who: 0, voted: 5}}, want: 5, newest: 5},
		"the only answer voted, trainer dead":    {answers: []answer{{who: 0, voted: 5, dead: true}}, want: 5, newest: 5},
		"one applied it":                         {answers: []answer{{who: 0, voted: 5, applied: 5}, {who: 1, voted: 5}}, want: 5, newest: 5},
		"voted not ok":                           {answers: []answer{{who: 0, voted: 5, notOK: true}}, want: 4, newest: 5},
		"voted not ok beyond what it applied":    {answers: []answer{{who: 0, voted: 7, notOK: true, applied: 6}}, want: 6, newest: 7},
		"the same, trainer dead":                 {answers: []answer{{who: 0, voted: 7, notOK: true, dead: true}}, want: 6, newest: 7, unknown: []int{0}},
		"the same, another voted for it":         {answers: []answer{{who: 0, voted: 7, notOK: true, dead: true}, {who: 1, voted: 6}}, want: 6, newest: 7},
		"one is a step behind":                   {answers: []answer{{who: 0, voted: 7, applied: 6}, {who: 1, voted: 6}}, want: 6, newest: 7},
		"unequal digests":                        {answers: []answer{{who: 0, voted: 5}, {who: 1, voted: 5, digest: e}}, want: 4, newest: 5},
		"a refusal was heard":                    {answers: []answer{{who: 0, voted: 5, refused: 5}}, want: 4, newest: 5},
		"a refusal of an earlier step is past":   {answers: []answer{{who: 0, voted: 6, refused: 5}}, want: 6, newest: 6},
		"a torn trainer has applied nothing":     {answers: []answer{{who: 0, voted: 5, applied: 5, torn: true}, {who: 1}}, want: 4, newest: 5},
		"groups: both coordinates voted":         {group: 2, answers: []answer{{who: 0, voted: 5}, {who: 1, voted: 5, digest: e}}, want: 5, newest: 5},
		"groups: one coordinate answered":        {group: 2, answers: []answer{{who: 0, voted: 5}}, want: 5, newest: 5, unknown: []int{1}},
		"groups: one coordinate did not vote":    {group: 2, answers: []answer{{who: 0, voted: 5}, {who: 1}}, want: 4, newest: 5},
	} {
		group := max(1, c.group)
		s := &State{Spec: &phalanx.JobSpec{GroupSize: group}, World: phalanx.World{Generation: g, GroupSize: group}, Floor: Floor{Step: 4}}
		for i := range group {
			s.Floor.Labels = append(s.Floor.Labels, floor(i))
		}
		for r := range 2 {
			s.World.Seats = append(s.World.Seats, phalanx.Seat{Incarnate: who(ids[r], 1), Rank: phalanx.Rank(r), Group: r / group, Coordinate: r % group})
		}
		var answers []Answer
		for _, x := range c.answers {
			coordinate := x.who % group
			a := Answer{Incarnate: who(ids[x.who], 1), Generation: g, Refused: x.refused, Unread: x.unread}
			a.Possession = Possession{Trainer: !x.dead, Holds: !x.dead && !x.torn, Label: floor(coordinate)}
			if x.applied > 0 {
				a.Possession.Label = phalanx.Label{Step: x.applied, Generation: g, Digest: d, Coordinate: coordinate}
			}
			if x.voted > 0 {
				a.Vote = &Vote{Generation: g, Step: x.voted, OK: !x.notOK, Digest: d}
				if !x.digest.IsZero() {
					a.Vote.Digest = x.digest
				}
				if x.old {
					a.Vote.Generation = phalanx.Generation{Number: 1}
				}
			}
			answers = append(answers, a)
		}
		got, newest, why, err := ResumeStep(s, answers)
		if c.fails {
			if err == nil {
				t.Errorf("%s: resume at %d", name, got.Step)
			}
			continue
		}
		if err != nil || got.Step != c.want || newest != c.newest || why == "" || len(got.Labels) != group {
			t.Errorf("%s: resume at %d of %d (%s), want %d of %d; %v", name, got.Step, newest, why, c.want, c.newest, err)
			continue
		}
		for i, l := range got.Labels {
			unknown := len(c.unknown) > 0 && c.unknown[0] == i
			if l.Step != c.want || l.Coordinate != i || l.Digest.IsZero() != unknown || c.want > 4 && l.Generation != g {
				t.Errorf("%s: label %s", name, l)
			}
		}
	}
}

func TestPossesses(t *testing.T) {
	g := phalanx.Generation{Number: 3}
	at := func(step phalanx.Step) phalanx.Label {
		return phalanx.Label{Step: step, Generation: g, Digest: phalanx.Digest{uint64(step), 1}}
	}
	gradient := func(step phalanx.Step) Gradient { return Gradient{g, step, phalanx.Digest{uint64(step), 1}, 0} }
	seed := phalanx.Label{}
	fresh := phalanx.Label{Coordinate: AnyCoordinate}
	for name, c := range map[string]struct {
		p    Possession
		l    phalanx.Label
		want bool
	}{
		"the label":                       {Possession{Trainer: true, Holds: true, Label: at(5), Applying: 5}, at(5), true},
		"no trainer":                      {Possession{Holds: true, Label: at(5)}, at(5), false},
		"healing":                         {Possession{Trainer: true, Label: at(5)}, at(5), false},
		"another digest":                  {Possession{Trainer: true, Holds: true, Label: phalanx.Label{Step: 5, Generation: g}}, at(5), false},
		"another coordinate":              {Possession{Trainer: true, Holds: true, Label: phalanx.Label{Step: 5, Generation: g, Digest: at(5).Digest, Coordinate: 1}}, at(5), false},
		"below with the gradient":         {Possession{Trainer: true, Holds: true, Label: at(4), Gradient: gradient(5)}, at(5), true},
		"below with another gradient":     {Possession{Trainer: true, Holds: true, Label: at(4), Gradient: gradient(4)}, at(5), false},
		"two below with the gradient":     {Possession{Trainer: true, Holds: true, Label: at(3), Gradient: gradient(5)}, at(5), false},
		"the optimizer makes it now":      {Possession{Trainer: true, Holds: true, Label: at(4), Gradient: gradient(5), Applying: 5}, at(5), true},
		"the optimizer leaves it now":     {Possession{Trainer: true, Holds: true, Label: at(4), Gradient: gradient(5), Applying: 5}, at(4), false},
		"the seed's state, fresh":         {Possession{Trainer: true, Holds: true, Label: fresh}, seed, true},
		"the seed's state, fresh, other":  {Possession{Trainer: true, Holds: true, Label: fresh}, phalanx.Label{Coordinate: 3}, true},
		"fresh with the first gradient":   {Possession{Trainer: true, Holds: true, Label: fresh, Gradient: gradient(1)}, at(1), true},
		"fresh is nothing but the seed's": {Possession{Trainer: true, Holds: true, Label: fresh}, at(1), false},
	} {
		if got := c.p.Possesses(c.l); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
