// SPDX-License-Identifier: Apache-2.0

//go:build planted

package sim

import (
	"testing"

	"phalanx/internal/planted"
)

// The simulation notices what breaks a promise. Each bug is planted alone and must be noticed within some seeds. Most of the
// others need an order of events that random faults rarely meet; elastic/explore visits those.
func TestPlanted(t *testing.T) {
	for _, bug := range []planted.Bug{planted.ResumeApplied, planted.GenerationReused} {
		t.Run(string(bug), func(t *testing.T) {
			remove := planted.Plant(bug)
			reached := int64(0)
			defer func() {
				if reached == 0 {
					t.Error("the planted bug was never reached")
				}
			}()
			for seed := uint64(1); seed <= 60; seed++ {
				r, err := simulate(t, Options{Seed: seed})
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Violations) > 0 {
					t.Logf("seed %d notices: %s", seed, r.Violations[0])
					reached = remove()
					return
				}
			}
			reached = remove()
			t.Error("nobody notices")
		})
	}
}
