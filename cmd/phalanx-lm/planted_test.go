// SPDX-License-Identifier: Apache-2.0

//go:build planted

package main

import (
	"bytes"
	"strings"
	"testing"

	"phalanx/internal/planted"
)

// TestPlantedSlotsMerged: the digest of the parameters shows that two slots were computed in one pass, although their sum is
// the same in exact numbers.
func TestPlantedSlotsMerged(t *testing.T) {
	final := func() string {
		var stdout, stderr bytes.Buffer
		if code := run(small("--alone", "--steps", "8"), &stdout, &stderr); code != exitDone {
			t.Fatalf("exit %d: %s", code, &stderr)
		}
		out := stdout.String()
		return out[strings.Index(out, "final "):]
	}
	want := final()
	if again := final(); again != want {
		t.Fatalf("without the bug: %q, then %q", want, again)
	}
	remove := planted.Plant(planted.SlotsMerged)
	got := final()
	if n := remove(); n == 0 {
		t.Error("slots-merged was not reached")
	}
	if got == want {
		t.Errorf("slots-merged was not noticed: %q", got)
	}
}
