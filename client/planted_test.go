// SPDX-License-Identifier: Apache-2.0

//go:build planted

package client

import (
	"slices"
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/internal/planted"
)

// find fails unless a bug that is planted is reached and noticed, and nothing is noticed without it.
func find(t *testing.T, bug planted.Bug, wrong func(r *rig) string) {
	t.Helper()
	inBubble(t, func(r *rig) {
		if what := wrong(r); what != "" {
			t.Errorf("without the bug: %s", what)
		}
	})
	remove := planted.Plant(bug)
	what := ""
	inBubble(t, func(r *rig) { what = wrong(r) })
	if n := remove(); n == 0 {
		t.Errorf("%s was not reached", bug)
	}
	if what == "" {
		t.Errorf("%s was not noticed", bug)
	}
}

// TestPlantedAppliedTwice: a commit is carried out once.
func TestPlantedAppliedTwice(t *testing.T) {
	find(t, planted.AppliedTwice, func(r *rig) string {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		r.step(1, digest1)
		if !slices.Equal(r.applied, []phalanx.Step{1}) {
			return "a step was applied twice"
		}
		return ""
	})
}

// TestPlantedHealInsideApply: a donor gives nothing away while its optimizer changes the state.
func TestPlantedHealInsideApply(t *testing.T) {
	find(t, planted.HealInsideApply, func(r *rig) string {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		what := ""
		r.beforeApply = func() {
			r.page.WriteServe(0, wire.Serve{Generation: generation(1), Sequence: 1, Kind: wire.ServeKindRead, Tensor: 0, Length: 20, SegmentOffset: r.healOffset})
			r.own.Ring()
			time.Sleep(time.Second) // of the bubble: everybody else has looked by then
			if _, status := wire.ParseAnswer(r.page.Served(0)); status == wire.StatusOK && r.torn() {
				what = "a state that is being changed was served"
			}
		}
		r.step(1, digest1)
		return what
	})
}
