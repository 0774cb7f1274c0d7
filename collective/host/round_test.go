// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"phalanx"
)

// rounds is a cluster of three on one host of which rank 0 has an engine; the test plays the others on their boards.
type rounds struct {
	*cluster
	l *leaves
}

func newRounds(t *testing.T) *rounds {
	const count = 1000
	x := &rounds{
		newCluster(t, layout{hosts: []int{0, 0, 0}, deal: evenDeal(t, 11, 3), slots: 11, bytes: sumBytes(F32, count, 8)}),
		newLeaves(rand.New(rand.NewPCG(8, 8)), F32, 11, count),
	}
	t.Cleanup(x.close)
	x.form(t, 0)
	return x
}

// play makes a worker of a rank, as its daemon would have it in an operation, without running it.
func (x *rounds) play(t *testing.T, rank int, seq uint32) *worker {
	t.Helper()
	var locals []LocalPeer
	for p := range x.engines {
		if p != rank {
			locals = append(locals, LocalPeer{phalanx.Rank(p), x.segments[p], x.boards[p], x.engines[p].Wake})
		}
	}
	f, err := newFormation(x.engines[rank], x.world, Self{phalanx.Rank(rank), x.segments[rank], x.boards[rank]}, locals, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := f.workers[GroupReplicas]
	w.seq, w.stamp = seq, stampOf(x.world.Generation, seq)
	return w
}

// enter plays a rank that enters the sum with a number.
func (x *rounds) enter(t *testing.T, rank int, seq uint32) {
	t.Helper()
	w, op := x.play(t, rank, seq), x.op(rank)
	if !w.oneRound(&op) {
		t.Fatal("the operation does not take one round")
	}
	w.shape = op.stepShape(len(w.members), w.me, -1)
	w.offer(&op)
	w.enter(&op)
}

func (x *rounds) op(rank int) Op { return x.place(rank, x.l, AllReduce, true, false) }

func (x *rounds) right(t *testing.T, done <-chan error) {
	t.Helper()
	if err := await(t, "sum", done); err != nil {
		t.Fatal(err)
	}
	differ(t, "sum", x.out(0, x.op(0)), x.l.sum(evenDeal(t, 11, 3), true))
}

// TestRoundIsLeftByOthersFirst: the others are in the next operation already, or have failed in it. Their inputs to this one
// are there still, and their segments belong to their trainers again.
func TestRoundIsLeftByOthersFirst(t *testing.T) {
	for _, failed := range []bool{false, true} {
		t.Run(fmt.Sprint("failed ", failed), func(t *testing.T) {
			x := newRounds(t)
			for r := 1; r < 3; r++ {
				x.enter(t, r, 1)
				for i := range x.segments[r] {
					x.segments[r][i] = 0xff
				}
				w := x.play(t, r, 2)
				op := Op{Seq: 8, Kind: Barrier}
				w.enter(&op)
				if failed {
					w.giveUp()
				}
			}
			x.right(t, x.post(0, x.op(0)))
		})
	}
}

// TestRoundChecksSlots: inputs that changed while they were read are not believed.
func TestRoundChecksSlots(t *testing.T) {
	x := newRounds(t)
	x.enter(t, 1, 1)
	x.enter(t, 2, 1)
	words, _ := boardOf(x.boards[2], GroupReplicas).roundSlot(1)
	boardOf(x.boards[2], GroupReplicas).store(words+roundStamp, 0)
	wantErr(t, await(t, "sum", x.post(0, x.op(0))), phalanx.ErrRevoked, "rank 2")
}

// TestRoundMismatch: a member that asks for a larger sum is in another algorithm, and is found out all the same.
func TestRoundMismatch(t *testing.T) {
	x := newRounds(t)
	x.enter(t, 1, 1)
	op := Op{Kind: AllReduce, DType: F32, Count: 1 << 20}
	boardOf(x.boards[2], GroupReplicas).post(stampOf(x.world.Generation, 1), op.sig(defaults), &op)
	wantErr(t, await(t, "sum", x.post(0, x.op(0))), ErrMismatch, "rank 0", "rank 2")
}

// TestRoundGoesOn: a daemon is killed in a sum, before and after its inputs are offered, before and after it has entered, and
// when everything is summed but not told. Its successor ends the sum, while the others may be one operation ahead.
func TestRoundGoesOn(t *testing.T) {
	for _, at := range []string{"before", "offered", "entered", "summed"} {
		for _, ahead := range []bool{false, true} {
			if ahead && (at == "before" || at == "offered") {
				continue // nobody goes ahead of a member that has not entered
			}
			t.Run(fmt.Sprint(at, ", others ahead ", ahead), func(t *testing.T) {
				x := newRounds(t)
				first := x.post(0, x.op(0))
				x.enter(t, 1, 1)
				x.enter(t, 2, 1)
				x.right(t, first)
				x.engines[0].Close() // it clears the board, which a kill does not; the words are put back below
				op := x.op(0)
				op.Seq++
				w := x.play(t, 0, 1)
				w.board.store(wordEntered, w.stamp)
				w.board.store(wordPosted, w.stamp)
				w = x.play(t, 0, 2)
				if at != "before" {
					w.shape = op.stepShape(len(w.members), w.me, -1)
					w.offer(&op)
				}
				for r := 1; r < 3; r++ {
					x.enter(t, r, 2)
				}
				if at == "entered" || at == "summed" {
					w.enter(&op)
				}
				if at == "summed" {
					if err := w.takeRound(&op, -1); err != nil {
						t.Fatal(err)
					}
				}
				if ahead {
					for r := 1; r < 3; r++ {
						x.enter(t, r, 3)
					}
				}
				if at != "summed" {
					clear(x.out(0, op)) // what was there is the sum of the first operation
				}
				x.engines[0] = New(slog.New(slog.DiscardHandler), Options{})
				x.form(t, 0)
				x.right(t, x.post(0, op))
			})
		}
	}
}

// TestKilledWhilePosting: whatever the instruction at which a daemon is killed, its successor gives the operation the number
// that the others know it by.
func TestKilledWhilePosting(t *testing.T) {
	gen := phalanx.Generation{Number: 3}
	for _, kind := range []Kind{Barrier, AllReduce} {
		for last := uint32(1); last < 4; last++ {
			op := Op{Seq: 100 + uint64(last), Kind: kind}
			stores := posting(stampOf(gen, last), op.sig(defaults), &op)
			for cut := range len(stores) + 1 {
				w := &worker{board: boardOf(make([]byte, BoardBytes), 0)}
				for seq := uint32(1); seq < last; seq++ {
					before := Op{Seq: 100 + uint64(seq), Kind: kind}
					w.board.post(stampOf(gen, seq), before.sig(defaults), &before)
					if kind != Barrier {
						w.board.store(wordLeft, stampOf(gen, seq))
					}
				}
				for _, s := range stores[:cut] {
					w.board.store(s.word, s.value)
				}
				w.adopted = w.board.adopted(gen)
				w.resume(&op)
				if w.seq+1 != last {
					t.Errorf("%s %d, killed after %d stores: the successor calls it %d", kind, last, cut, w.seq+1)
				}
			}
		}
	}
}
