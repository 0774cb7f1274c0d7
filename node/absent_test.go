// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"phalanx/ckpt"
	"phalanx/elastic"
)

// TestAbsent: what the log calls published holds the floor up only while the store has it. One that retention replaced by a
// stub, or that somebody removed, would otherwise keep a job from going on with an older one, for ever.
func TestAbsent(t *testing.T) {
	published := []elastic.Published{{Commit: 1}, {Commit: 2}, {Commit: 3}, {Commit: 4}}
	records := []ckpt.Record{{Number: 1, Stub: &ckpt.Stub{}}, {Number: 2, Commit: &ckpt.Commit{}}, {Number: 4, Commit: &ckpt.Commit{}}}
	if got := absent(published, records); !slices.Equal(got, []uint64{1, 3}) {
		t.Fatalf("absent are %v, want the stub 1 and the missing 3", got)
	}
}
