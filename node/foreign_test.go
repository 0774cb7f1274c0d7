// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
)

// Who is in the way of a publication: an earlier leader of the same job, or another run.
func TestWhoIsInTheWay(t *testing.T) {
	g := phalanx.Generation{Number: 4}
	label := phalanx.Label{Step: 30, Generation: g, Digest: phalanx.Digest{1}}
	s := &elastic.State{World: phalanx.World{Generation: g}}
	pub := ckpt.Publication{Attempt: ckpt.Attempt{Job: "j", Step: 30, Generation: g, Term: 7, Counter: 2}, Labels: []phalanx.Label{label}}
	by := func(step phalanx.Step, number uint64, digest uint64) error {
		l := phalanx.Label{Step: step, Generation: phalanx.Generation{Number: number}, Digest: phalanx.Digest{digest}}
		a := ckpt.Attempt{Job: "j", Step: step, Generation: l.Generation, Term: 6, Counter: 1}
		return &ckpt.FencedError{Attempt: pub.Attempt, By: ckpt.Record{Number: 9, Commit: &ckpt.Commit{Number: 9, Job: "j", Attempt: a.Name(), Step: step,
			Generation: l.Generation, States: []ckpt.StoredState{{Label: l}}}}}
	}
	for _, c := range []struct {
		what          string
		err           error
		ours, foreign bool
	}{
		{"nothing", nil, false, false},
		{"a store out of reach", errors.New("timeout"), false, false},
		{"an earlier leader's of this very state", by(30, 4, 1), true, false},
		{"another state of this step", by(30, 4, 2), false, true},
		{"an older step, that the log does not know", by(25, 4, 9), false, false},
		{"a step that nobody here has come to", by(90, 4, 9), false, true},
		{"a later generation", by(20, 5, 9), false, true},
	} {
		if _, same := ours(pub, c.err); same != c.ours {
			t.Errorf("%s: ours is %v", c.what, same)
		}
		if words := foreign(s, 31, pub, c.err); (words != "") != c.foreign {
			t.Errorf("%s: %q", c.what, words)
		}
	}
}
