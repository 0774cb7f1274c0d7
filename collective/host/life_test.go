// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"phalanx"
)

func waitLeft(t *testing.T, left <-chan struct{}) {
	t.Helper()
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatalf("workers had not left after %s", patience)
	}
}

var mixed = []int{0, 0, 1, 1}

func (c *cluster) next() { c.world.Generation = c.world.Generation.Next() }

func filled(c *cluster, l *leaves) []Op {
	ops := make([]Op, len(c.engines))
	for r := range ops {
		ops[r] = c.place(r, l, AllReduce, true, false)
	}
	return ops
}

// TestRevokeFreesFromAbsentPeer: rank 3 never posts; Revoke ends the others, and the next generation works over the
// same links.
func TestRevokeFreesFromAbsentPeer(t *testing.T) {
	for _, directMax := range []int{1, 16} {
		t.Run(fmt.Sprint("direct up to ", directMax), func(t *testing.T) {
			l := newLeaves(rand.New(rand.NewPCG(3, 3)), F32, 8, 5000)
			c := newCluster(t, layout{hosts: mixed, deal: evenDeal(t, 8, 4), slots: 8, bytes: sumBytes(F32, 5000, 6), options: Options{DirectMax: directMax}})
			defer c.close()
			c.formAll(t)
			for range 3 {
				ops := filled(c, l)
				var done []<-chan error
				for r := range 3 {
					done = append(done, c.post(r, ops[r]), c.post(r, ops[r])) // one runs, one is queued
				}
				for r := range c.engines {
					waitLeft(t, c.engines[r].Revoke(c.world.Generation))
				}
				for _, d := range done {
					wantErr(t, await(t, "revoked", d), phalanx.ErrRevoked)
				}
				wantErr(t, await(t, "late", c.post(0, ops[0])), phalanx.ErrRevoked)
				wantErr(t, c.formErr(0), phalanx.ErrStaleGeneration)
				stale := c.world.Generation
				c.next()
				c.formAll(t)
				c.mustAll(t, ranks(4), func(r int) Op { return ops[r] })
				for r := range ops {
					differ(t, fmt.Sprint("rank ", r), c.out(r, ops[r]), l.sum(evenDeal(t, 8, 4), true))
				}
				late := make(chan error, 1) // 1: done is called once
				c.engines[0].Post(stale, ops[0], func(err error) { late <- err })
				wantErr(t, await(t, "stale", late), phalanx.ErrStaleGeneration)
				for r := range c.engines {
					waitLeft(t, c.engines[r].Revoke(c.world.Generation))
				}
				c.next()
				c.formAll(t)
			}
		})
	}
}

// TestRevokeInTheMiddle poisons every segment as soon as all workers have left, while the trainers would be computing
// again: with the race detector a worker that still touched one would be found, and without it the poison would change.
func TestRevokeInTheMiddle(t *testing.T) {
	const count, rounds = 6 * chunkElements, 12
	for _, directMax := range []int{1, 16} {
		t.Run(fmt.Sprint("direct up to ", directMax), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, uint64(directMax)))
			l := newLeaves(rng, F32, 8, count)
			size := sumBytes(F32, count, 6)
			c := newCluster(t, layout{hosts: mixed, deal: evenDeal(t, 8, 4), slots: 8, bytes: size, options: Options{DirectMax: directMax}})
			defer c.close()
			interrupted := 0
			for round := range rounds {
				c.formAll(t)
				ops := filled(c, l)
				var done []<-chan error
				for r := range c.engines {
					done = append(done, c.post(r, ops[r]))
				}
				// Different moments: from before the first chunk to about the end.
				time.Sleep(time.Duration(rng.IntN(1+round*800)) * time.Microsecond)
				var all sync.WaitGroup
				for _, r := range rng.Perm(4) {
					all.Go(func() { <-c.engines[r].Revoke(c.world.Generation) })
				}
				all.Wait()
				for _, s := range c.segments {
					for i := range s {
						s[i] = 0xa5
					}
				}
				for _, d := range done {
					if err := await(t, "revoked", d); err != nil {
						interrupted++
						wantErr(t, err, phalanx.ErrRevoked)
					}
				}
				for r, s := range c.segments {
					if n := bytes.Count(s, []byte{0xa5}); n != len(s) {
						t.Fatalf("rank %d: %d bytes were written after the workers had left", r, len(s)-n)
					}
				}
				c.next()
			}
			if interrupted == 0 {
				t.Error("no operation was interrupted: the test shows nothing")
			}
		})
	}
}

// TestLoneRevoke: one member revokes and its trainer overwrites the inputs while the others still run. They may fail, but
// whoever succeeds has the right bits.
func TestLoneRevoke(t *testing.T) {
	if raceEnabled {
		t.Skip("others may read a revoked member's memory: what they read is dropped, but it is a race by design")
	}
	const count = 8 * chunkElements
	l := newLeaves(rand.New(rand.NewPCG(6, 6)), F32, 8, count)
	want := l.sum(evenDeal(t, 8, 4), true)
	rng := rand.New(rand.NewPCG(7, 7))
	c := newCluster(t, layout{hosts: []int{0, 0, 0, 0}, deal: evenDeal(t, 8, 4), slots: 8, bytes: sumBytes(F32, count, 6)})
	defer c.close()
	for range 12 {
		c.formAll(t)
		ops := filled(c, l)
		done := make([]<-chan error, 4)
		for r := range done {
			done[r] = c.post(r, ops[r])
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		waitLeft(t, c.engines[2].Revoke(c.world.Generation))
		first := await(t, "rank 2", done[2])
		for i := range c.segments[2] {
			c.segments[2][i] = 0xff
		}
		time.Sleep(time.Millisecond)
		for _, r := range []int{0, 1, 3} {
			left := c.engines[r].Revoke(c.world.Generation)
			waitLeft(t, left)
			err := await(t, fmt.Sprint("rank ", r), done[r])
			if err == nil {
				differ(t, fmt.Sprint("rank ", r), c.out(r, ops[r]), want)
			} else {
				wantErr(t, err, phalanx.ErrRevoked)
			}
			if first == nil && err == nil {
				continue
			}
		}
		c.next()
	}
}

// TestMismatch: members that ask for different things get an error that names two ranks, all of them, and nobody hangs.
func TestMismatch(t *testing.T) {
	for name, change := range map[string]func(*Op){
		"kind":  func(op *Op) { op.Kind = ReduceScatter },
		"count": func(op *Op) { op.Count-- },
		"type":  func(op *Op) { op.DType = BF16 },
		"scale": func(op *Op) { op.Scale = false },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeaves(rand.New(rand.NewPCG(3, 3)), F32, 8, 100)
			c := newCluster(t, layout{hosts: mixed, deal: evenDeal(t, 8, 4), slots: 8, bytes: sumBytes(F32, 100, 6)})
			defer c.close()
			c.formAll(t)
			ops := filled(c, l)
			change(&ops[2])
			errs := c.all(t, ranks(4), func(r int) Op { return ops[r] })
			mismatches := 0
			for r, err := range errs {
				if err == nil {
					t.Fatalf("rank %d: no error", r)
				}
				// Whoever hears of another's failure before it compares gets ErrPeer instead.
				if errors.Is(err, ErrMismatch) {
					mismatches++
					wantErr(t, err, ErrMismatch, fmt.Sprint("rank ", r), "rank ")
				} else {
					wantErr(t, err, ErrPeer)
				}
			}
			if mismatches == 0 {
				t.Error("nobody named the mismatch")
			}
			if err := await(t, "next", c.post(0, ops[0])); !errors.Is(err, ErrMismatch) && !errors.Is(err, ErrPeer) {
				t.Errorf("an operation after the failed one: %v", err)
			}
		})
	}
}

// TestInvalid: an operation that one member's engine refuses ends on all members.
func TestInvalid(t *testing.T) {
	const count = 100
	for name, change := range map[string]func(*Op){
		"kind":            func(op *Op) { op.Kind = 9 },
		"type":            func(op *Op) { op.DType = 0 },
		"nodes":           func(op *Op) { op.InNodes++ },
		"count":           func(op *Op) { op.Count = 1 << 60 },
		"negative count":  func(op *Op) { op.Count = -1 },
		"offset":          func(op *Op) { op.InOffset = 1 << 62 },
		"negative offset": func(op *Op) { op.OutOffset = -64 },
		"odd offset":      func(op *Op) { op.OutOffset++ },
		"stride":          func(op *Op) { op.InStride = 4 },
		"huge stride":     func(op *Op) { op.InStride = 1 << 62 },
		"overlap":         func(op *Op) { op.OutOffset = op.InOffset + 4 },
		"group":           func(op *Op) { op.Group = 2 },
		"root":            func(op *Op) { op.Kind, op.Root = Broadcast, 77 },
	} {
		t.Run(name, func(t *testing.T) {
			// Five slots on two ranks: a cover of more than one node.
			l := newLeaves(rand.New(rand.NewPCG(3, 3)), F32, 5, count)
			c := newCluster(t, layout{hosts: []int{0, 1}, deal: evenDeal(t, 5, 2), slots: 5, bytes: sumBytes(F32, count, 6)})
			defer c.close()
			c.formAll(t)
			ops := filled(c, l)
			r := 0
			if ops[0].InNodes == 1 {
				r = 1
			}
			change(&ops[r])
			bad := c.post(r, ops[r])
			wantErr(t, await(t, "bad", bad), ErrInvalid)
			if name != "group" {
				wantErr(t, await(t, "good", c.post(1-r, ops[1-r])), ErrPeer)
			}
		})
	}
}

// TestDeadline: without a revoke a wait for a peer ends by itself and names it.
func TestDeadline(t *testing.T) {
	c := newCluster(t, layout{hosts: mixed, deal: evenDeal(t, 4, 4), slots: 4, bytes: 1024, options: Options{Timeout: 20 * time.Millisecond}})
	defer c.close()
	c.formAll(t)
	wantErr(t, await(t, "alone", c.post(0, Op{Kind: Barrier})), ErrDeadline, "[1 2 3]")
}

// TestTrainersHaveTheirOwnClock: in a group that trainers made one waits for another longer than a step may.
func TestTrainersHaveTheirOwnClock(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		for _, inline := range []int64{0, 1 << 20} {
			c := groupsOf(t, hosts, 4096, Options{Inline: inline, Timeout: 20 * time.Millisecond, GroupTimeout: time.Hour})
			c.made(t, 1, 0, 1)
			barrier := c.post(0, Op{Seq: 1, ID: 1, Kind: Barrier})
			message := c.post(0, Op{Seq: 2, ID: 1, Kind: Recv, DType: U8, Count: 16, Peer: 1})
			for range 5 {
				time.Sleep(20 * time.Millisecond)
				c.engines[0].Wake() // as the daemon's tick does
			}
			wantErr(t, await(t, "barrier, late", c.post(1, Op{Seq: 1, ID: 1, Kind: Barrier})), nil)
			wantErr(t, await(t, "send, late", c.post(1, Op{Seq: 2, ID: 1, Kind: Send, DType: U8, Count: 16, Peer: 0})), nil)
			wantErr(t, await(t, "barrier", barrier), nil)
			wantErr(t, await(t, "receive", message), nil)
			c.close()
		}
	}
}

// TestLinkBreaks: the operation that needs a broken link fails and says which rank it led to.
func TestLinkBreaks(t *testing.T) {
	c := newCluster(t, layout{hosts: []int{0, 1}, deal: evenDeal(t, 2, 2), slots: 2, bytes: 1024})
	defer c.close()
	c.formAll(t)
	done := c.post(0, Op{Kind: Barrier})
	_ = c.links[[2]int{1, 0}].Close()
	wantErr(t, await(t, "broken", done), ErrPeer, "rank 1")
	if c.links[[2]int{0, 1}].Err() == nil {
		t.Error("the other end does not know that the link is broken")
	}
}

// TestStaleFrames: frames of other generations and nonsense ranks change nothing.
func TestStaleFrames(t *testing.T) {
	a, b := net.Pipe()
	link := NewLink(a, slog.New(slog.DiscardHandler))
	far := NewLink(b, slog.New(slog.DiscardHandler))
	defer link.Close()
	defer far.Close()
	c := newCluster(t, layout{hosts: []int{0, 1}, deal: evenDeal(t, 2, 2), slots: 2, bytes: 8})
	defer c.close()
	world := c.world
	world.Generation.Number = 5
	e := New(slog.New(slog.DiscardHandler), Options{})
	defer e.Close()
	self := Self{Rank: 0, Segment: make([]byte, 64), Board: make([]byte, BoardBytes)}
	if err := e.Form(world, self, nil, []RemotePeer{{1, link}}); err != nil {
		t.Fatal(err)
	}
	sig := (&Op{Kind: Barrier}).sig(defaults)
	post := func(gen phalanx.Generation, seq uint32) {
		far.send(&frame{header: header{typ: framePost, gen: gen, source: 1, seq: seq, word: sig}})
	}
	fail := func(gen phalanx.Generation) {
		far.send(&frame{header: header{typ: frameFail, gen: gen, source: 1, seq: 1}})
	}
	older, newer := phalanx.Generation{Number: 4}, phalanx.Generation{Epoch: 1, Number: 2}
	fail(older)
	post(older, 1)
	f := newData(header{typ: frameData, gen: older, source: 1, seq: 1}, 1000)
	far.send(f)
	fail(newer)
	done := make(chan error, 1) // 1: done is called once
	e.Post(world.Generation, Op{Kind: Barrier}, func(err error) { done <- err })
	select {
	case err := <-done:
		t.Fatalf("the barrier ended by a frame of another generation: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	post(world.Generation, 1)
	if err := await(t, "barrier", done); err != nil {
		t.Fatal(err)
	}
	// What came early for the newer generation is delivered when that is formed.
	world.Generation = newer
	if err := e.Form(world, self, nil, []RemotePeer{{1, link}}); err != nil {
		t.Fatal(err)
	}
	e.Post(newer, Op{Kind: Barrier}, func(err error) { done <- err })
	wantErr(t, await(t, "failed early", done), ErrPeer)
}

// TestFormRefuses what does not make a world.
func TestFormRefuses(t *testing.T) {
	c := newCluster(t, layout{hosts: []int{0, 0}, deal: evenDeal(t, 2, 2), slots: 2, bytes: 64})
	defer c.close()
	self := Self{0, c.segments[0], c.boards[0]}
	peer := LocalPeer{1, c.segments[1], c.boards[1], func() {}}
	e := c.engines[0]
	for name, err := range map[string]error{
		"nobody":      e.Form(c.world, self, nil, nil),
		"twice":       e.Form(c.world, self, []LocalPeer{peer, peer}, nil),
		"no link":     e.Form(c.world, self, nil, []RemotePeer{{Rank: 1}}),
		"strange":     e.Form(c.world, Self{7, self.Segment, self.Board}, []LocalPeer{peer}, nil),
		"short board": e.Form(c.world, Self{0, self.Segment, self.Board[:100]}, []LocalPeer{peer}, nil),
		"misaligned":  e.Form(c.world, Self{0, self.Segment[1:], self.Board}, []LocalPeer{peer}, nil),
	} {
		if err == nil {
			t.Errorf("%s: formed", name)
		}
	}
	if err := e.Form(c.world, self, []LocalPeer{peer}, nil); err != nil {
		t.Error(err)
	}
	wantErr(t, e.Form(c.world, self, []LocalPeer{peer}, nil), phalanx.ErrStaleGeneration)
	<-e.Revoke(phalanx.Generation{Number: 9}) // a newer one than is formed
	c.world.Generation.Number = 9
	wantErr(t, e.Form(c.world, self, []LocalPeer{peer}, nil), phalanx.ErrStaleGeneration)
}
