// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// TestDeadTrainersHaveNoPID: a page names the last trainer for as long as it exists; status must not, or an operator's script
// signals whoever has the number by then.
func TestDeadTrainersHaveNoPID(t *testing.T) {
	who := phalanx.Incarnate{Member: "a/1", Incarnation: 2}
	s := &sibling{index: 1, life: 2, daemon: true, trainer: true, identity: wire.Identity{Member: who.Member, Incarnation: 2, DaemonPID: 70, TrainerPID: 71}}
	d := &Daemon{cfg: Config{Host: "a", Index: 0}, state: elastic.NewState(), siblings: make([]*sibling, wire.BellLines/2), roster: newRoster(NewPaths(t.TempDir(), ""), nil, func() Peer { return Peer{} })}
	d.siblings[1] = s
	m := &elastic.Member{Incarnate: who, State: elastic.Active}
	if got := d.memberStatus(m, nil); got.TrainerPID != 71 || got.DaemonPID != 70 {
		t.Fatalf("a living trainer is pid %d, its daemon %d", got.TrainerPID, got.DaemonPID)
	}
	s.trainer = false
	if got := d.memberStatus(m, nil); got.TrainerPID != 0 {
		t.Fatalf("a dead trainer is pid %d", got.TrainerPID)
	}
}

// The status of a life that the log still knows does not show the trainer of the next one.
func TestStatusOfALifeHasItsOwnTrainer(t *testing.T) {
	d := lone(t)
	for _, n := range []phalanx.Incarnation{1, 2} {
		out := MemberStatus{Member: d.me(), Incarnation: n}
		d.ownStatus(&out)
		if mine := n == d.life.who.Incarnation; (out.TrainerPID == d.life.helloPID) != mine || (out.Local != "") != mine {
			t.Errorf("life %d is shown with trainer %d, %q; this daemon's is life %d", n, out.TrainerPID, out.Local, d.life.who.Incarnation)
		}
	}
}
