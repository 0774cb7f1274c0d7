// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// publishStep publishes the state after a step as one rank that was in the generation would.
func publishStep(t *testing.T, store ckpt.Store, g phalanx.Generation, step phalanx.Step) {
	t.Helper()
	place, err := wire.LayoutSlab(layout())
	if err != nil {
		t.Fatal(err)
	}
	slab, err := wire.NewSlab(make([]byte, place.Total), place)
	if err != nil {
		t.Fatal(err)
	}
	label := phalanx.Label{Step: step, Generation: g}
	slab.WriteHeader(wire.SlabHeader{State: wire.SlabStateFull, LayoutHash: place.Hash, LabelStep: step, LabelGeneration: g})
	plan, err := ckpt.NewPlan(0, layout(), []phalanx.Rank{0}, ckpt.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	attempt := ckpt.Attempt{Job: "job", Step: step, Generation: g, Term: 1, Counter: uint64(step)}
	part, err := ckpt.WriteShard(t.Context(), store, attempt, 0, plan, slabSource{&saver{}, &heldSlab{label: label, slab: slab, layout: layout()}, new(atomic.Int64)})
	if err != nil {
		t.Fatal(err)
	}
	labels := []phalanx.Label{label}
	if _, err := ckpt.Publish(t.Context(), store, ckpt.Publication{Attempt: attempt, Labels: labels, UnixNS: 1, Spec: []byte("{}")}, []ckpt.PartRef{part}); err != nil {
		t.Fatal(err)
	}
}

// A commit object may have been written just before a rewind that its entry lost against. It hides no older checkpoint.
func TestStoreOffersTheLineageOnly(t *testing.T) {
	store := mem.New()
	g := phalanx.Generation{Number: 1}
	publishStep(t, store, g, 4)
	publishStep(t, store, g, 8)
	d := &Daemon{cfg: Config{Job: "job"}, log: quiet(), ctx: t.Context(), store: store}
	s := elastic.NewState()
	s.World.Generation = phalanx.Generation{Number: 2}
	if f := lookIntoStore(d, 1, s); f.Published == nil || f.Published.Step != 8 {
		t.Errorf("before the rewind: %+v", f)
	}
	s.Rewinds = []elastic.RewindRecord{{Generation: s.World.Generation, Branch: 1, Source: 5}}
	if f := lookIntoStore(d, 1, s); f.Published == nil || f.Published.Step != 4 || len(f.Unreadable) != 0 {
		t.Errorf("after it: %+v", f)
	}
}

// A store that cannot be read for a moment is asked again: what it holds is not damaged, and the job does not begin anew.
func TestStoreOutOfReachIsNotDamage(t *testing.T) {
	store := mem.New()
	publishStep(t, store, phalanx.Generation{Number: 1}, 4)
	s := elastic.NewState()
	for _, c := range []struct {
		part  string
		err   error
		known bool
	}{
		{"/commits/", errors.New("input/output error"), false},
		{"/step-", errors.New("input/output error"), false},
		{"/commits/", ckpt.ErrCorrupt, true},
		{"/step-", ckpt.ErrNotFound, true},
	} {
		faulty := mem.NewFaulty(store, func(op mem.Op) mem.Fault {
			if op.Verb == mem.Get && strings.Contains(op.Key, c.part) {
				return mem.Fault{Err: c.err}
			}
			return mem.Fault{}
		})
		d := &Daemon{cfg: Config{Job: "job"}, log: quiet(), ctx: t.Context(), store: faulty}
		if f := lookIntoStore(d, 1, s); f.Known != c.known || f.Published != nil || (len(f.Unreadable) > 0) != c.known {
			t.Errorf("%v at %s: %+v", c.err, c.part, f)
		}
	}
}
