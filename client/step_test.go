// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"phalanx"
	"phalanx/client/wire"
)

var digest1 = phalanx.Digest{1, 11}

func TestHealthyStep(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := r.begin()
		if w, _ := r.page.ReadBegin(); c.ended() || !w.Waiting || w.Step != 1 || w.TrainerStart != testStart {
			r.Fatalf("begin without a seat: ended %v, page %+v", c.ended(), w)
		}
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		b := must(r, c)
		if w, _ := r.page.ReadBegin(); w.Waiting || w.SeatSequence != 1 {
			r.Errorf("after begin the page says %+v", w)
		}
		if b.Step != 1 || b.Generation != generation(1) || b.Slots.Len() != 4 || b.World != 2 || b.Healed || !slices.Equal(r.coordinates, []int{0}) {
			r.Fatalf("begun %+v, coordinates %v", b, r.coordinates)
		}
		r.Working(1, 2)
		if w, _ := r.page.ReadWork(); !w.On || w.Slot != 2 || w.Step != 1 {
			r.Errorf("work %+v", w)
		}
		rings := r.daemon.Count()
		v := r.vote(true, digest1)
		if g, _ := r.page.ReadGradient(); v.ended() || g.Step != 1 || g.Digest != digest1 || g.Generation != generation(1) {
			r.Fatalf("vote ended %v, gradient %+v", v.ended(), g)
		}
		if q, _ := r.page.ReadVoteRequest(); !q.OK || q.Step != 1 || r.daemon.Count() == rings {
			r.Errorf("vote request %+v, daemon rung %v", q, r.daemon.Count() != rings)
		}
		if w, _ := r.page.ReadWork(); w.On {
			r.Error("a slot is in work during the vote")
		}
		r.commit(1, 1)
		if !must(r, v) {
			r.Fatal("not committed")
		}
		r.beforeApply = func() {
			if !r.torn() {
				r.Error("the optimizer runs and the page does not say applying")
			}
		}
		if err := r.Apply(); err != nil {
			r.Fatal(err)
		}
		if want := (phalanx.Label{Step: 1, Generation: generation(1), Digest: digest1}); r.label() != want || r.torn() || r.w[0] != 2 {
			r.Errorf("label %v, torn %v, w %v", r.label(), r.torn(), r.w)
		}
		if b := must(r, r.begin()); b.Step != 2 {
			r.Errorf("next begin gives step %d", b.Step)
		}
		if g, _ := r.page.ReadGradient(); g.Step != 0 {
			r.Errorf("gradient %+v is kept after it was applied and the next step begun", g)
		}
	})
}

func TestIllegalCalls(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, err := r.Vote(r.Context(), Vote{})
		r.wantErr(err, ErrIllegal)
		r.wantErr(r.Apply(), ErrIllegal)
		r.wantErr(r.Barrier(r.Context()), ErrIllegal)
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		r.wantErr(r.Apply(), ErrIllegal)
		_, err = r.AllReduce(r.Context(), true)
		r.wantErr(err, ErrIllegal) // nothing was folded
		r.page.WriteCommit(wire.Commit{Generation: generation(1), Step: 1})
		r.wantErr(r.Apply(), ErrIllegal) // no gradient is held
		if len(r.applied) != 0 {
			r.Errorf("applied %v", r.applied)
		}
	})
}

// A generation ends before the step is decided: the same step is begun again in the next.
func TestRepeat(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		v := r.vote(false, phalanx.Digest{})
		if g, _ := r.page.ReadGradient(); g.Step != 0 {
			r.Errorf("a vote that is not ok left gradient %+v", g)
		}
		r.seat(wire.ActionPark, 2, phalanx.Label{})
		if must(r, v) {
			r.Fatal("committed")
		}
		c := r.begin()
		if c.ended() {
			r.Fatal("begin returned while parked")
		}
		if w, _ := r.page.ReadBegin(); w.SeatSequence != 2 || !w.Waiting {
			r.Errorf("parked, the page says %+v", w)
		}
		r.seat(wire.ActionRun, 2, phalanx.Label{})
		if b := must(r, c); b.Step != 1 || b.Generation != generation(2) {
			r.Errorf("begun %+v", b)
		}
		r.seat(wire.ActionRun, 3, phalanx.Label{}) // while it computes
		v = r.vote(true, digest1)
		if must(r, v) {
			r.Error("a vote in an ended generation was committed")
		}
	})
}

// A vote is final: with the same generation's seat Begin goes on only by the commit.
func TestVoteIsFinal(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		ctx, cancel := context.WithCancelCause(r.Context())
		v := start(func() (bool, error) { return r.Vote(ctx, Vote{OK: true, Digest: digest1}) })
		stopped := errors.New("stopped")
		cancel(stopped)
		synctest.Wait()
		r.wantErr(v.err, stopped)
		_, err := r.Vote(r.Context(), Vote{OK: true})
		r.wantErr(err, ErrIllegal)
		c := r.begin()
		if c.ended() {
			r.Fatal("begin gives a step that was voted for")
		}
		r.commit(1, 1)
		if b := must(r, c); b.Step != 2 || !slices.Equal(r.applied, []phalanx.Step{1}) {
			r.Errorf("begun step %d, applied %v", b.Step, r.applied)
		}
	})
}

// Until it is applied, nothing overwrites a gradient that was voted for.
func TestVotedGradientStays(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		r.foldAll()
		v := r.vote(true, digest1)
		r.commit(1, 1)
		must(r, v)
		_, err := r.AllReduce(r.Context(), true)
		r.wantErr(err, ErrIllegal)
		if r.page.RingHead() != 0 {
			r.Error("a descriptor was posted")
		}
	})
}

func TestImpossibleSeat(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := r.seat(wire.ActionPark, 1, phalanx.Label{})
		s.Action = wire.ActionRun
		for name, change := range map[string]func(*wire.Seat){
			"other slot count": func(s *wire.Seat) { s.SlotCount = 1 << 20 },
			"beyond the slots": func(s *wire.Seat) { s.SlotEnd = testSlots + 1 },
			"no slots":         func(s *wire.Seat) { s.SlotEnd = 0 },
			"negative slot":    func(s *wire.Seat) { s.SlotFirst = -1 },
			"empty world":      func(s *wire.Seat) { s.World = 0 },
		} {
			bad := s
			change(&bad)
			r.give(bad)
			if _, err := r.Begin(r.Context()); !errors.Is(err, ErrSeat) {
				r.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestRollForward(t *testing.T) {
	floor := phalanx.Label{Step: 1, Generation: generation(1), Digest: digest1}
	for name, inVote := range map[string]bool{"in Vote": true, "in Begin": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.seat(wire.ActionRun, 1, phalanx.Label{})
				must(r, r.begin())
				v := r.vote(true, digest1)
				var c *call[Begin]
				if !inVote {
					r.seat(wire.ActionPark, 2, floor)
					if must(r, v) {
						r.Fatal("committed by a park")
					}
					c = r.begin()
				}
				r.page.WriteCommit(wire.Commit{Generation: generation(1), Step: 1})
				r.seat(wire.ActionRun, 2, floor)
				if inVote {
					if !must(r, v) {
						r.Fatal("the vote does not see the commit")
					}
					c = r.begin() // Apply was forgotten: Begin is the same operation
				}
				if b := must(r, c); b.Step != 2 || b.Generation != generation(2) || b.Healed {
					r.Errorf("begun %+v", b)
				}
				r.settle()
				if !slices.Equal(r.applied, []phalanx.Step{1}) || r.label() != floor {
					r.Errorf("applied %v, label %v", r.applied, r.label())
				}
			})
		})
	}
}

// A commit that was not carried out is void once a seat of another branch was read.
func TestNoRollForwardAfterRewind(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		v := r.vote(true, digest1)
		r.page.WriteCommit(wire.Commit{Generation: generation(1), Step: 1})
		rewound := wire.Seat{Generation: generation(2), Branch: 1, Action: wire.ActionRun, World: 1, GroupSize: 1, SlotEnd: 8, SlotCount: 8, LastStep: testLast}
		r.give(rewound)
		if must(r, v) {
			r.Fatal("committed on another branch")
		}
		if b := must(r, r.begin()); b.Step != 1 || len(r.applied) != 0 {
			r.Errorf("begun step %d, applied %v", b.Step, r.applied)
		}
	})
}

// A branch that begins with the step whose gradient is held is joined by rolling forward.
func TestRollForwardToTheFloorOfARewind(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		v := r.vote(true, digest1)
		r.page.WriteCommit(wire.Commit{Generation: generation(1), Step: 1})
		r.give(wire.Seat{Generation: generation(2), Branch: 1, Action: wire.ActionPark, World: 1, GroupSize: 1, SlotEnd: 8, SlotCount: 8, LastStep: testLast,
			ResumeStep: 1, ResumeGeneration: generation(1), ResumeDigest: digest1})
		if !must(r, v) {
			r.Fatal("the floor was not taken for a commit")
		}
		if err := r.Apply(); err != nil || len(r.applied) != 1 {
			r.Errorf("%v, applied %v", err, r.applied)
		}
	})
}

func TestTornApply(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		v := r.vote(true, digest1)
		r.commit(1, 1)
		must(r, v)
		r.applyErr = errors.New("out of memory")
		err := r.Apply()
		r.wantErr(err, ErrTorn)
		r.wantErr(err, r.applyErr)
		if !r.torn() {
			r.Error("the page does not say torn")
		}
		_, err = r.Begin(r.Context())
		r.wantErr(err, ErrTorn)
		r.wantErr(r.Finish(r.Context(), phalanx.Digest{}), ErrTorn)
		if _, ok := r.Applied(); ok || len(r.applied) != 1 {
			r.Errorf("possesses %v, applied %v", ok, r.applied)
		}
	})
}

// A state that is not the seat's floor waits for a heal: below, above, of another gradient, of another coordinate.
func TestSeatThatDoesNotFit(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		r.step(1, digest1)
		at1 := r.label()
		c := r.begin()
		must(r, c)
		r.seat(wire.ActionRun, 2, phalanx.Label{Step: 2, Generation: generation(1), Digest: digest1})
		c = r.begin()
		other := at1
		other.Digest = phalanx.Digest{7, 7}
		r.seat(wire.ActionRun, 3, other)
		r.seat(wire.ActionRun, 4, phalanx.Label{})
		s := r.seat(wire.ActionPark, 5, at1)
		s.Action, s.Coordinate = wire.ActionRun, 1
		r.give(s)
		if c.ended() {
			r.Fatalf("a seat that does not fit was taken: %+v, %v", c.value, c.err)
		}
		s.Coordinate = 0
		r.give(s)
		if b := must(r, c); b.Step != 2 {
			r.Errorf("begun %+v", b)
		}
	})
}

func TestEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionFenced, 1, phalanx.Label{})
		_, err := r.Begin(r.Context())
		r.wantErr(err, ErrFenced)
		r.seat(wire.ActionStop, 2, phalanx.Label{})
		_, err = r.Begin(r.Context())
		r.wantErr(err, ErrPreempted)
		r.Preempt()
		if r.page.Preempt() != 1 {
			r.Error("the preempt word is not set")
		}
		c := start(func() (Begin, error) { r.page.WriteSeat(wire.Seat{}); return r.Begin(r.Context()) })
		time.Sleep(10 * OrphanAfter)
		if c.ended() {
			r.Fatalf("begin beside a living daemon ended: %v", c.err)
		}
		r.daemonAlive.Store(false)
		time.Sleep(OrphanAfter - 5*time.Second)
		if c.ended() {
			r.Fatal("orphaned too early")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.wantErr(c.err, ErrOrphaned)
	})
}

func TestFinish(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		for range testLast {
			r.step(1, digest1)
		}
		_, err := r.Begin(r.Context())
		r.wantErr(err, ErrDone)
		finish := func() *call[struct{}] {
			return start(func() (struct{}, error) { return struct{}{}, r.Finish(r.Context(), phalanx.Digest{5, 5}) })
		}
		f := finish()
		if d, _ := r.page.ReadDone(); f.ended() || d.Step != testLast || d.Digest != (phalanx.Digest{5, 5}) {
			r.Fatalf("finish ended %v, done %+v", f.ended(), d)
		}
		rewind := r.seat(wire.ActionHeal, 2, phalanx.Label{})
		r.wantErr(f.err, ErrRepeat)
		if d, _ := r.page.ReadDone(); d.Step != 0 {
			r.Errorf("after a rewind the page says done %+v", d)
		}
		rewind.Action, rewind.Generation = wire.ActionPark, generation(3)
		r.give(rewind)
		f = finish()
		r.page.WriteSave(wire.Save{Step: testLast, Sequence: 1})
		r.settle()
		if s, _ := r.page.ReadStaged(); !s.OK || s.Step != testLast || f.ended() {
			r.Fatalf("staged %+v, finish ended %v", s, f.ended())
		}
		time.Sleep(FinishGrace + 2*time.Second)
		synctest.Wait()
		must(r, f)
		f = finish()
		r.seat(wire.ActionStop, 3, phalanx.Label{})
		must(r, f)
		_, err = r.Begin(r.Context())
		r.wantErr(err, ErrDone)
	})
}
