// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt"
)

// TestStoreTrouble: a store that fails for long is told of, by its newest words, until anything comes through.
func TestStoreTrouble(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	var s storeTrouble
	s.observe(at(0), errors.New("busy"))
	s.observe(at(1), errors.New("slow"))
	if got := s.says(at(60)); got != "" {
		t.Errorf("of tries within a second it says %q", got)
	}
	s.observe(at(3), errors.New("expired"))
	s.observe(at(5), fmt.Errorf("given up: %w", context.Canceled))
	if got := s.says(at(6.5)); got != "6s: expired" {
		t.Errorf("after 6.5 s it says %q", got)
	}
	for _, answer := range []error{nil, ckpt.ErrExists, ckpt.ErrNotFound} {
		s.observe(at(4), errors.New("busy"))
		s.observe(at(7), errors.New("busy"))
		s.observe(at(8), answer)
		if got := s.says(at(60)); got != "" {
			t.Errorf("after %v it says %q", answer, got)
		}
	}
}

func TestStoreNotes(t *testing.T) {
	for _, c := range []struct {
		says map[phalanx.MemberID]string
		want []string
	}{
		{map[phalanx.MemberID]string{"a/0": "", "a/1": ""}, nil},
		{map[phalanx.MemberID]string{"a/0": "", "a/1": "3s: busy"}, []string{"the store has carried out nothing for a/1 for 3s: busy"}},
		{map[phalanx.MemberID]string{"b/0": "9s: gone", "a/1": "3s: busy", "b/1": "4s: x"}, []string{"the store has carried out nothing for a/1 and 2 more for 3s: busy"}},
	} {
		if got := storeNotes(c.says); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %q, want %q", c.says, got, c.want)
		}
	}
}
