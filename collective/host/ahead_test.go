// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"phalanx"
	"phalanx/kernels"
)

// trio is rank 0 of three on one host. The test itself plays the other two on their boards.
type trio struct {
	engine *Engine
	world  phalanx.World
	boards [3][]byte
	rings  [3]chan struct{} // 16: of the ranks whose daemon was rung; more are not told
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	x := &trio{engine: New(slog.New(slog.DiscardHandler), Options{})}
	t.Cleanup(x.engine.Close)
	x.world = phalanx.World{Generation: phalanx.Generation{Number: 1}, GroupSize: 1, SlotCount: 3}
	var locals []LocalPeer
	segment := kernels.Bytes(make([]uint64, 8))
	for r := range 3 {
		x.boards[r] = kernels.Bytes(make([]uint64, BoardBytes/8))
		x.rings[r] = make(chan struct{}, 16)
		x.world.Seats = append(x.world.Seats, phalanx.Seat{
			Incarnate: phalanx.Incarnate{Member: phalanx.NewMemberID("h", r), Incarnation: 1},
			Rank:      phalanx.Rank(r), Group: r, Slots: phalanx.SlotRange{First: phalanx.Slot(r), End: phalanx.Slot(r + 1)},
		})
		if r == 0 {
			continue
		}
		locals = append(locals, LocalPeer{phalanx.Rank(r), segment, x.boards[r], func() {
			select {
			case x.rings[r] <- struct{}{}:
			default:
			}
		}})
	}
	if err := x.engine.Form(x.world, Self{0, segment, x.boards[0]}, locals, nil); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *trio) barrier() <-chan error {
	done := make(chan error, 1) // 1: done is called once
	x.engine.Post(x.world.Generation, Op{Seq: 1, Kind: Barrier, Group: GroupWorld}, func(err error) { done <- err })
	return done
}

// enter plays a rank that enters the barrier with a number.
func (x *trio) enter(rank int, seq uint32) {
	op := &Op{Seq: uint64(seq), Kind: Barrier, Group: GroupWorld}
	boardOf(x.boards[rank], GroupWorld).post(stampOf(x.world.Generation, seq), op.sig(defaults), op)
}

// goAhead plays a rank that was let through the barrier and is about to post what comes next: it has taken its word back.
func (x *trio) goAhead(rank int) {
	boardOf(x.boards[rank], GroupWorld).store(wordPosted, 0)
}

func (x *trio) untilWaits(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); len(x.engine.Waiting()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the barrier does not wait")
		}
	}
}

// TestBarrierIsLeftByOthersFirst: a rank that looks while another one is between the barrier and the next operation is let
// through too. Nobody would ring it again.
func TestBarrierIsLeftByOthersFirst(t *testing.T) {
	x := newTrio(t)
	x.enter(1, 1)
	done := x.barrier()
	x.untilWaits(t)
	x.enter(2, 1)
	x.goAhead(2)
	x.engine.Wake()
	if err := await(t, "barrier", done); err != nil {
		t.Error(err)
	}
}

// TestLastToEnterRings: the last one to enter wakes whoever sleeps, also when a third has gone ahead already.
func TestLastToEnterRings(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		t.Run(fmt.Sprint("ahead ", ahead), func(t *testing.T) {
			x := newTrio(t)
			for r := 1; r < 3; r++ {
				x.enter(r, 1)
			}
			boardOf(x.boards[1], GroupWorld).store(wordSleeping, 1)
			if ahead {
				x.goAhead(2)
			}
			if err := await(t, "barrier", x.barrier()); err != nil {
				t.Error(err)
			}
			select {
			case <-x.rings[1]:
			default:
				t.Error("a sleeping rank was not rung by the last one to enter")
			}
		})
	}
}
