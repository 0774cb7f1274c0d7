// SPDX-License-Identifier: Apache-2.0

package host

import (
	"log/slog"
	"testing"

	"phalanx"
	"phalanx/kernels"
)

// TestSettled: a generation that was neither formed nor revoked has no answer yet. A daemon that takes over finds what its
// trainer has posted in a generation that it has still to form; a stale answer would end it for that member alone.
func TestSettled(t *testing.T) {
	e := New(slog.New(slog.DiscardHandler), Options{})
	defer e.Close()
	gen := phalanx.Generation{Number: 3}
	if e.Settled(gen) {
		t.Fatal("a generation is settled before it was formed")
	}
	world := phalanx.World{Generation: gen, GroupSize: 1, SlotCount: 1, Seats: []phalanx.Seat{{Incarnate: phalanx.Incarnate{Member: "a/0", Incarnation: 1}, Slots: phalanx.SlotRange{End: 1}}}}
	self := Self{Segment: kernels.Bytes(make([]uint64, 16)), Board: kernels.Bytes(make([]uint64, BoardBytes/8))}
	if err := e.Form(world, self, nil, nil); err != nil {
		t.Fatal(err)
	}
	if !e.Settled(gen) || !e.Settled(phalanx.Generation{Number: 2}) || e.Settled(gen.Next()) {
		t.Fatal("formed: it and older ones are settled, newer ones are not")
	}
	<-e.Revoke(gen.Next())
	if !e.Settled(gen.Next()) {
		t.Fatal("a revoked generation is not settled")
	}
}
