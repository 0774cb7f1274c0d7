// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// Whatever became of the newest commit object, the job goes on publishing, at the next number and in one chain.
func TestPublishAfterDamage(t *testing.T) {
	for name, c := range map[string]struct{ from, to string }{
		"not JSON":        {"{", "["},
		"another number":  {`"number": 2`, `"number": 6`},
		"another job":     {`"job": "job"`, `"job": "jab"`},
		"an unknown kind": {`"commit"`, `"commyt"`},
		"an unknown key":  {`"branch"`, `"brunch"`},
	} {
		s := mem.New()
		states := series(t, s, 2)
		flip(t, s, 2, c.from, c.to)
		content, err := s.Get(t.Context(), ckpt.CommitKey("job", 2), 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		for n := range uint64(2) { // the second finds the damage in the middle of the chain
			r, err := save(t, s, attempt(3+int(n), 1, 3+n), states[n], 2)
			if err != nil || r.Number != 3+n {
				t.Fatalf("%s: %+v, %v", name, r, err)
			}
			if n == 0 && r.Commit.Predecessor != hex.EncodeToString(sum[:]) {
				t.Errorf("%s: the predecessor is %s", name, r.Commit.Predecessor)
			}
			found, err := ckpt.Latest(t.Context(), s, "job")
			if err != nil || found.Record.Number != 3+n || len(found.Problems) > 0 {
				t.Errorf("%s: found %+v, %v", name, found, err)
			}
		}
		records, problems, err := ckpt.List(t.Context(), s, "job")
		if err != nil || len(records) != 3 || len(problems) != 1 || problems[0].Number != 2 {
			t.Errorf("%s: %v, %v, %v", name, records, problems, err)
		}
		// A leader that lost the answer long ago still finds its attempt beyond the damage.
		if r, err := save(t, s, attempt(1, 1, 1), states[0], 2); err != nil || r.Number != 1 {
			t.Errorf("%s: the first again: %+v, %v", name, r, err)
		}
	}
}

func TestDamageLaterIsReported(t *testing.T) {
	s := mem.New()
	series(t, s, 3)
	flip(t, s, 2, "{", "[")
	found, err := ckpt.Latest(t.Context(), s, "job")
	if err != nil || found.Record.Number != 3 || len(found.Problems) != 1 || found.Problems[0].Number != 2 {
		t.Fatal(found, err)
	}
}

func TestDamageBreaksNoFence(t *testing.T) {
	s := mem.New()
	st := newState(smallLayout(), 1)
	for i, a := range []ckpt.Attempt{attempt(10, 5, 1), attempt(11, 5, 2), attempt(12, 5, 3)} {
		if r, err := save(t, s, a, st, 1); err != nil || r.Number != uint64(i)+1 {
			t.Fatal(r, err)
		}
	}
	flip(t, s, 3, "{", "[")
	flip(t, s, 2, "{", "[")
	for name, a := range map[string]ckpt.Attempt{"older generation": attempt(13, 4, 9), "step of its generation": attempt(10, 5, 9)} {
		var fenced *ckpt.FencedError
		if _, err := save(t, s, a, st, 1); !errors.As(err, &fenced) || fenced.By.Number != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := attempt(12, 5, 3) // the damaged one itself: its data are whole
	r, err := save(t, s, a, st, 1)
	if err != nil || r.Number != 4 || r.Attempt() != a {
		t.Fatal(r, err)
	}
	unknown := strings.Repeat("ab", 32)
	p := publication(attempt(13, 5, 4), 1)
	p.Follows = &unknown
	if _, err := ckpt.Publish(t.Context(), s, p, nil); !errors.Is(err, ckpt.ErrFenced) {
		t.Errorf("another lineage: %v", err)
	}
}

func TestNothingIsPublishedAfterANewerFormat(t *testing.T) {
	s := mem.New()
	states := series(t, s, 2)
	flip(t, s, 2, `"format": 2`, `"format": 3`)
	if _, err := save(t, s, attempt(3, 1, 3), states[0], 1); !errors.Is(err, ckpt.ErrFormat) {
		t.Fatal(err)
	}
}
