// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"phalanx"
)

// TestAbort: of a group that a member aborts everything ends, on all members, and what else runs goes on: another group of the same
// ranks, and the groups of the step.
func TestAbort(t *testing.T) {
	for _, hosts := range [][]int{{0, 0, 0}, {0, 1, 1}} {
		for _, inline := range []int64{0, 1 << 20} {
			t.Run(fmt.Sprint(hosts, inline), func(t *testing.T) {
				c := groupsOf(t, hosts, 1<<20, Options{Inline: inline})
				defer c.close()
				c.made(t, 1, 0, 1, 2)
				c.made(t, 2, 2, 1, 0)
				op := Op{Seq: 1, ID: 1, Kind: AllReduce, DType: F32, Count: 1000, OutOffset: 65536}
				c.mustAll(t, ranks(3), func(int) Op { return op })
				var done []<-chan error
				for r := range 2 { // rank 2 never enters
					done = append(done, c.post(r, op), c.post(r, op))
				}
				<-c.engines[0].Abort(c.world.Generation, 1)
				for i, d := range done {
					want := phalanx.ErrRevoked
					if i == 2 {
						want = ErrPeer
					} else if i == 3 {
						want = ErrPeer // what is behind it
					}
					wantErr(t, await(t, fmt.Sprint("operation ", i), d), want)
				}
				wantErr(t, await(t, "late", c.post(0, op)), phalanx.ErrRevoked)
				wantErr(t, await(t, "of the one that had not entered", c.post(2, op)), ErrPeer)
				c.mustAll(t, ranks(3), func(int) Op { o := op; o.ID = 2; return o })
				c.mustAll(t, ranks(3), func(int) Op { return Op{Kind: Barrier, Group: GroupWorld} })
				wantErr(t, await(t, "unknown", c.post(0, Op{ID: 7, Kind: Barrier})), ErrInvalid)
				waitLeft(t, c.engines[0].Abort(c.world.Generation, 7))
			})
		}
	}
}

// TestAbortInTheMiddle aborts large operations at any moment: members end, and whoever ends well has the right bits.
func TestAbortInTheMiddle(t *testing.T) {
	if raceEnabled {
		t.Skip("others may read an aborted member's memory: what they read is dropped, but it is a race by design")
	}
	const count = 8 * chunkElements
	rng := rand.New(rand.NewPCG(8, 8))
	for _, hosts := range [][]int{{0, 0, 0}, {0, 1, 1}} {
		c := groupsOf(t, hosts, 2*4*count, Options{})
		interrupted := 0
		for round := range 40 {
			id := uint64(round + 1)
			c.made(t, id, 0, 1, 2)
			in := make([][]byte, 3)
			var done []<-chan error
			for r := range in {
				in[r] = values(rng, F32, 4099)
				for at := int64(0); at < count*4; at += int64(len(in[r])) {
					copy(c.segments[r][at:count*4], in[r])
				}
			}
			want := reduceRef(F32, Sum, false, in, 4099)
			for r := range in {
				done = append(done, c.post(r, Op{Seq: 1, ID: id, Kind: AllReduce, DType: F32, Count: count, OutOffset: 4 * count}))
			}
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
			who := rng.IntN(3)
			waitLeft(t, c.engines[who].Abort(c.world.Generation, id))
			first := await(t, "the one that aborts", done[who])
			if first != nil {
				interrupted++
				for i := range c.segments[who] {
					c.segments[who][i] = 0xff
				}
			}
			for r, d := range done {
				if r == who {
					continue
				}
				if err := await(t, fmt.Sprint("rank ", r), d); err != nil {
					if !errors.Is(err, ErrPeer) && !errors.Is(err, phalanx.ErrRevoked) {
						t.Fatalf("rank %d: %v", r, err)
					}
					continue
				}
				got := c.segments[r][4*count:][:len(want)]
				differ(t, fmt.Sprintf("rank %d in round %d", r, round), got, want)
			}
			for r := range in { // all know that it is dead: its lane is free again
				waitLeft(t, c.engines[r].Abort(c.world.Generation, id))
			}
		}
		if interrupted == 0 {
			t.Error("no operation was interrupted: the test shows nothing")
		}
		c.close()
	}
}

// TestLanesAreUsedAgain: a member may make any number of groups, one after the other, and not more than MaxGroups at a time.
func TestLanesAreUsedAgain(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		c := groupsOf(t, hosts, 4096, Options{})
		gen := c.world.Generation
		for round := range 3 {
			for i := range MaxGroups {
				c.made(t, uint64(round*1000+i+1), 0, 1)
			}
			if err := c.engines[0].Make(gen, 999999, []phalanx.Rank{0}); !errors.Is(err, ErrFull) {
				t.Fatalf("one too many: %v", err)
			}
			last := uint64(round*1000 + MaxGroups)
			c.mustAll(t, ranks(2), func(int) Op { return Op{Seq: 1, ID: last, Kind: Barrier} })
			for i := range MaxGroups {
				id := uint64(round*1000 + i + 1)
				waitLeft(t, c.engines[0].Abort(gen, id))
				if err := c.engines[0].Make(gen, 888888, []phalanx.Rank{0}); i == 0 && !errors.Is(err, ErrFull) {
					t.Fatalf("rank 1 does not know yet that its group is dead, and a lane is used again: %v", err)
				}
				waitLeft(t, c.engines[1].Abort(gen, id))
				if i == 0 {
					eventually(t, "the lane is free", func() bool { return c.engines[0].Make(gen, 888888, []phalanx.Rank{0}) == nil })
					waitLeft(t, c.engines[0].Abort(gen, 888888))
				}
			}
			eventually(t, "all lanes are free", func() bool {
				for _, e := range c.engines {
					for _, w := range e.current.Load().made.all() {
						if !w.forgotten() {
							return false
						}
					}
				}
				return true
			})
		}
		c.close()
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %s", what, patience)
		}
	}
}

// TestMake refuses what is no group.
func TestMake(t *testing.T) {
	c := groupsOf(t, []int{0, 0, 0}, 4096, Options{})
	defer c.close()
	gen := c.world.Generation
	c.made(t, 1, 0, 1)
	c.made(t, 1, 0, 1)
	for name, ranks := range map[string][]phalanx.Rank{
		"other ranks": {0, 2}, "another order": {1, 0}, "without the own": {1, 2}, "twice": {0, 1, 1}, "beyond the world": {0, 3}, "negative": {0, -1}, "none": {},
	} {
		id := uint64(1)
		if name != "other ranks" && name != "another order" {
			id = 2
		}
		if err := c.engines[0].Make(gen, id, ranks); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.engines[0].Make(gen.Next(), 3, []phalanx.Rank{0}); !errors.Is(err, phalanx.ErrStaleGeneration) {
		t.Errorf("another generation: %v", err)
	}
	// Members that give a group different ranks do not get past its first operation.
	if err := c.engines[0].Make(gen, 4, []phalanx.Rank{0, 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.engines[1].Make(gen, 4, []phalanx.Rank{1, 0}); err != nil {
		t.Fatal(err)
	}
	a, b := c.post(0, Op{ID: 4, Kind: Barrier}), c.post(1, Op{ID: 4, Kind: Barrier})
	for _, d := range []<-chan error{a, b} {
		if err := await(t, "different ranks", d); !errors.Is(err, ErrMismatch) && !errors.Is(err, ErrPeer) {
			t.Errorf("different ranks: %v", err)
		}
	}
	<-c.engines[0].Revoke(gen)
	if err := c.engines[0].Make(gen, 5, []phalanx.Rank{0}); !errors.Is(err, phalanx.ErrStaleGeneration) {
		t.Errorf("after a revoke: %v", err)
	}
}

// TestMadeMismatch: members that ask for different things hear of it, all of them, and the group is dead.
func TestMadeMismatch(t *testing.T) {
	counts := func(c *cluster, r int, n ...int64) { copy(i64s(c.segments[r][2048:2048+8*int64(len(n))]), n) }
	base := Op{Seq: 1, ID: 1, Kind: AllReduce, DType: F32, Count: 4, OutOffset: 1024, CountsOffset: 2048}
	for name, change := range map[string]func(c *cluster, ops []Op){
		"kind":      func(_ *cluster, ops []Op) { ops[1].Kind = Broadcast },
		"type":      func(_ *cluster, ops []Op) { ops[1].DType = I32 },
		"count":     func(_ *cluster, ops []Op) { ops[1].Count = 3 },
		"reduction": func(_ *cluster, ops []Op) { ops[1].Reduction = Max },
		"mean":      func(_ *cluster, ops []Op) { ops[1].Scale = true },
		"root": func(_ *cluster, ops []Op) {
			ops[0].Kind, ops[1].Kind, ops[1].Root = Gather, Gather, 1
		},
		"parts": func(c *cluster, ops []Op) {
			for i := range ops {
				ops[i].Kind, ops[i].Counts = AllGather, true
				counts(c, i, 2, 3+int64(i))
			}
		},
		"all to all": func(c *cluster, ops []Op) {
			for i := range ops {
				ops[i].Kind, ops[i].Counts = AllToAll, true
			}
			counts(c, 0, 1, 2, 1, 3)
			counts(c, 1, 3, 1, 1, 1) // takes 1 of the 2 that rank 0 sends
		},
	} {
		for _, hosts := range [][]int{{0, 0}, {0, 1}} {
			t.Run(fmt.Sprint(name, hosts), func(t *testing.T) {
				c := groupsOf(t, hosts, 4096, Options{})
				defer c.close()
				c.made(t, 1, 0, 1)
				ops := []Op{base, base}
				change(c, ops)
				mismatches := 0
				for r, err := range c.all(t, ranks(2), func(r int) Op { return ops[r] }) {
					switch {
					case errors.Is(err, ErrMismatch):
						mismatches++
					case !errors.Is(err, ErrPeer):
						t.Errorf("rank %d: %v", r, err)
					}
				}
				if mismatches == 0 {
					t.Error("nobody named the mismatch")
				}
				if err := await(t, "next", c.post(0, base)); err == nil {
					t.Error("the group lives on")
				}
			})
		}
	}
}

// awaken is await for a cluster in which an engine was replaced: the others still ring the one before it, so all look again now and
// then, as daemons do.
func (c *cluster) awaken(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case err := <-done:
			return err
		case <-time.After(time.Millisecond):
			for _, e := range c.engines {
				e.Wake()
			}
		}
	}
	t.Fatalf("%s: nothing after %s", what, patience)
	return nil
}

// savedBoard and restoreBoard undo what Close does to a board and a kill does not, while others look at it.
func savedBoard(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = atomic.LoadUint64(&u64s(b)[i])
	}
	return out
}

func restoreBoard(b []byte, words []uint64) {
	for i, v := range words {
		if at := &u64s(b)[i]; atomic.LoadUint64(at) != v {
			atomic.StoreUint64(at, v)
		}
	}
}

// TestGroupsOutliveTheirDaemon: a daemon that takes over goes on with the groups of the one before it, in the middle of an operation and
// between two; messages alone end, because nobody knows how many there were.
func TestGroupsOutliveTheirDaemon(t *testing.T) {
	for _, size := range []int64{4, 9 << 10, 4 * chunkElements} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := groupsOf(t, []int{0, 0, 0}, int(12*size+4096), Options{})
			defer c.close()
			c.made(t, 1, 2, 0, 1)
			op := func(r int, seq uint64) Op {
				return Op{Seq: seq, ID: 1, Kind: AllGather, DType: U8, Count: size, OutOffset: round64(size)}
			}
			check := func() {
				for r := range 3 {
					for i, from := range []int{2, 0, 1} {
						differ(t, fmt.Sprintf("part of %d at %d", from, r), c.segments[r][round64(size)+int64(i)*size:][:size], pattern(from, size))
					}
				}
			}
			for r := range 3 {
				copy(c.segments[r], pattern(r, size))
			}
			c.mustAll(t, ranks(3), func(r int) Op { return op(r, 1) })
			check()
			for seq := uint64(2); seq < 6; seq++ {
				// Rank 0 has entered when it is killed, or has not begun, and the others wait for it or come later.
				var before []<-chan error
				if seq%2 == 0 {
					before = append(before, c.post(1, op(1, seq)))
				}
				if seq > 3 {
					_ = c.post(0, op(0, seq)) // the trainer hears nothing: its daemon is gone
					eventually(t, "rank 0 has entered", func() bool { return laneOf(c.boards[0], 0).load(wordEntered) != 0 })
				}
				words := savedBoard(c.boards[0])
				c.engines[0].Close() // it clears the board, which a kill does not
				restoreBoard(c.boards[0], words)
				c.engines[0] = New(slog.New(slog.DiscardHandler), Options{})
				c.form(t, 0)
				if err := c.engines[0].Make(c.world.Generation, 1, []phalanx.Rank{2, 0, 1}); err != nil {
					t.Fatalf("made again: %v", err)
				}
				for r := range 3 {
					if r != 1 || seq%2 != 0 {
						before = append(before, c.post(r, op(r, seq)))
					}
				}
				for _, d := range before {
					if err := c.awaken(t, "after the kill", d); err != nil {
						t.Fatal(err)
					}
				}
				check()
				for r := range 3 {
					clear(c.segments[r][round64(size):])
				}
			}
			message := c.post(1, Op{Seq: 7, ID: 1, Kind: Recv, DType: U8, Count: 1, Peer: 0})
			if err := await(t, "sent", c.post(2, Op{Seq: 7, ID: 1, Kind: Send, DType: U8, Count: 1, Peer: 2})); err == nil {
				t.Fatal("a message to oneself")
			}
			sent := c.post(0, Op{Seq: 7, ID: 1, Kind: Send, DType: U8, Count: 1, Peer: 1})
			for _, d := range []<-chan error{message, sent} {
				if err := c.awaken(t, "message", d); err != nil {
					t.Fatal(err)
				}
			}
			message = c.post(1, Op{Seq: 8, ID: 1, Kind: Recv, DType: U8, Count: 1, Peer: 0})
			words := savedBoard(c.boards[0])
			c.engines[0].Close()
			restoreBoard(c.boards[0], words)
			c.engines[0] = New(slog.New(slog.DiscardHandler), Options{})
			c.form(t, 0)
			c.engines[1].Wake()
			wantErr(t, c.awaken(t, "a message of before", message), ErrPeer)
			wantErr(t, await(t, "a message of now", c.post(0, Op{Seq: 8, ID: 1, Kind: Send, DType: U8, Count: 1, Peer: 1})), phalanx.ErrRevoked)
		})
	}
}
