// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"phalanx"
)

// TestCompletionFreesMemory: the moment a member's operation is done, its trainer may overwrite inputs and result; the
// others still get what they should.
func TestCompletionFreesMemory(t *testing.T) {
	const count = 5*chunkElements + 3
	hosts := []int{0, 0, 0, 1}
	deal := evenDeal(t, 8, 4)
	for _, directMax := range []int{1, 16} {
		l := newLeaves(rand.New(rand.NewPCG(3, 3)), F32, 8, count)
		c := newCluster(t, layout{hosts: hosts, deal: deal, slots: 8, bytes: 6 * sumBytes(F32, count, 6), options: Options{DirectMax: directMax}})
		defer c.close()
		c.formAll(t)
		for _, kind := range []Kind{AllReduce, ReduceScatter, AllGather, Broadcast} {
			t.Run(fmt.Sprint(kind, "/direct up to ", directMax), func(t *testing.T) {
				sum := l.sum(deal, false)
				var gathered []byte
				ops := make([]Op, 4)
				for r := range ops {
					ops[r] = c.place(r, l, kind, false, false)
					ops[r].Root = 2
					gathered = append(gathered, c.segments[r][ops[r].InOffset:][:count*4]...)
				}
				results := make([][]byte, 4)
				done := make([]chan error, 4)
				for _, r := range rand.Perm(4) {
					done[r] = make(chan error, 1) // 1: done is called once
					c.engines[r].Post(c.world.Generation, ops[r], func(err error) {
						results[r] = bytes.Clone(c.out(r, ops[r]))
						for i := range c.segments[r] {
							c.segments[r][i] = 0xee
						}
						done[r] <- err
					})
				}
				for r, d := range done {
					if err := await(t, fmt.Sprint("rank ", r), d); err != nil {
						t.Fatal(err)
					}
					want := sum
					switch kind {
					case ReduceScatter:
						first, end := Shard(count, 4, r)
						want = sum[first*4 : end*4]
					case AllGather:
						want = gathered
					case Broadcast:
						want = gathered[2*count*4 : 3*count*4]
					default: // the sum
					}
					differ(t, fmt.Sprint("rank ", r), results[r], want)
				}
			})
		}
	}
}

// TestLateBells: members ring only those that sleep, and the rings come late, through a goroutine; no wake-up is lost.
func TestLateBells(t *testing.T) {
	l := newLeaves(rand.New(rand.NewPCG(4, 4)), F64, 6, 40000)
	deal := evenDeal(t, 6, 3)
	c := newCluster(t, layout{hosts: []int{0, 0, 0}, deal: deal, slots: 6, bytes: sumBytes(F64, 40000, 6)})
	rings := make(chan int, 1<<16) // more than a run rings, so that Ring never blocks
	defer func() {
		c.close()
		close(rings)
	}()
	go func() {
		for r := range rings {
			c.engines[r].Wake()
		}
	}()
	for r := range c.engines {
		var locals []LocalPeer
		for p := range c.engines {
			if p != r {
				locals = append(locals, LocalPeer{phalanx.Rank(p), c.segments[p], c.boards[p], func() { rings <- p }})
			}
		}
		if err := c.engines[r].Form(c.world, Self{phalanx.Rank(r), c.segments[r], c.boards[r]}, locals, nil); err != nil {
			t.Fatal(err)
		}
	}
	ops, want := filled(c, l), l.sum(deal, true)
	for range 200 {
		clear(c.out(1, ops[1]))
		c.mustAll(t, rand.Perm(3), func(r int) Op { return ops[r] })
		differ(t, "rank 1", c.out(1, ops[1]), want)
	}
}
