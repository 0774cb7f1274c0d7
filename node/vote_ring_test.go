// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// voters are the daemons of one host as far as the ring of votes goes: pages, bells and what they know of each other.
func voters(t *testing.T, n int) []*Daemon {
	t.Helper()
	memory := wire.NewHeapMemory()
	dir := t.TempDir()
	var out []*Daemon
	state := elastic.NewState()
	state.World = phalanx.World{Generation: phalanx.Generation{Number: 1}, GroupSize: 1, SlotCount: n}
	for i := range n {
		d := &Daemon{cfg: Config{Host: "h", Index: i, LocalSize: n}, log: quiet(), state: state, siblings: make([]*sibling, wire.BellLines/2)}
		d.paths = NewPaths(dir, dir).in(memory)
		who := phalanx.Incarnate{Member: d.me(), Incarnation: 1}
		page, err := memory.CreatePage(d.paths.Shared(i, 1, "page"), 2*i, 2*i+1)
		if err != nil {
			t.Fatal(err)
		}
		d.life = &life{who: who, page: page}
		if d.bells, err = memory.Bells(d.paths.Bells()); err != nil {
			t.Fatal(err)
		}
		d.bell = d.bells.Bell(2 * i)
		state.World.Seats = append(state.World.Seats, phalanx.Seat{Incarnate: who, Rank: phalanx.Rank(i), Group: i, Slots: phalanx.SlotRange{First: phalanx.Slot(i), End: phalanx.Slot(i + 1)}})
		out = append(out, d)
	}
	for _, d := range out {
		for j, o := range out {
			if o != d {
				page, err := memory.WatchPage(d.paths.Shared(j, 1, "page"))
				if err != nil {
					t.Fatal(err)
				}
				d.siblings[j] = &sibling{index: j, life: 1, page: page, identity: wire.Identity{Member: o.me(), Incarnation: 1}}
			}
		}
	}
	return out
}

func (d *Daemon) castForTest(v elastic.Vote) {
	d.life.page.WriteVote(wire.Vote{Generation: v.Generation, Step: v.Step, OK: v.OK, Digest: v.Digest})
	d.ringVoters(v)
}

// TestLastVoteRings: while somebody's vote is missing nobody is woken, the last vote wakes all, and one that is not ok at once.
func TestLastVoteRings(t *testing.T) {
	ds := voters(t, 3)
	rung := func() (n [3]uint32) {
		for i, d := range ds {
			n[i] = d.bell.Count()
		}
		return n
	}
	vote := func(step phalanx.Step, ok bool) elastic.Vote {
		return elastic.Vote{Generation: phalanx.Generation{Number: 1}, Step: step, OK: ok}
	}
	for _, c := range []struct {
		who  int
		vote elastic.Vote
		want [3]uint32
	}{
		{1, vote(1, true), [3]uint32{}},
		{0, vote(1, true), [3]uint32{}},
		{2, vote(1, true), [3]uint32{1, 1, 0}},
		{2, vote(2, true), [3]uint32{1, 1, 0}},
		{0, vote(2, false), [3]uint32{1, 2, 1}},
		{1, vote(2, true), [3]uint32{2, 2, 2}},
	} {
		ds[c.who].castForTest(c.vote)
		if got := rung(); got != c.want {
			t.Fatalf("rings %v after vote %+v of %d, want %v", got, c.vote, c.who, c.want)
		}
	}
	ds[0].siblings[1].life = 7 // another life's page: what this one votes is not known here
	ds[0].castForTest(vote(3, true))
	ds[0].siblings[2].life = 7
	ds[0].castForTest(vote(4, true))
	if got := rung(); got != [3]uint32{2, 3, 3} {
		t.Errorf("rings %v, want everybody to be rung once where nothing is known of the others", got)
	}
}

// TestVotesNeedNoTick: daemons that vote again and again, each waiting for all votes before the next step, are never left
// asleep. Nobody here has a tick that would find what a ring should have told.
func TestVotesNeedNoTick(t *testing.T) {
	ds := voters(t, 4)
	const steps = 5000
	var all sync.WaitGroup
	for _, d := range ds {
		all.Go(func() {
			for step := phalanx.Step(1); step <= steps; step++ {
				v := elastic.Vote{Generation: phalanx.Generation{Number: 1}, Step: step, OK: true}
				seen := d.bell.Count()
				d.castForTest(v)
				for d.voteMissing(v) {
					now := d.bell.Hold(seen, 20*time.Second)
					if now == seen {
						t.Errorf("%s was not rung for step %d", d.me(), step)
						return
					}
					seen = now
				}
			}
		})
	}
	all.Wait()
}
