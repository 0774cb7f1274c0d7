// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"phalanx"
	"phalanx/kernels"
)

// TestGatherBroadcastBarrier moves bytes inside and between hosts, also in place.
func TestGatherBroadcastBarrier(t *testing.T) {
	for _, hosts := range [][]int{{0}, {0, 0, 0}, {0, 1}, {0, 1, 0, 1, 2}} {
		n := len(hosts)
		for _, count := range []int64{0, 1, 33, 2*chunkElements + 7} {
			for _, inPlace := range []bool{false, true} {
				name := fmt.Sprintf("%v/%d/%t", hosts, count, inPlace)
				t.Run(name, func(t *testing.T) {
					bytes := round64(count * 2)
					c := newCluster(t, layout{hosts: hosts, deal: evenDeal(t, n, n), slots: n, bytes: int(bytes)*(n+2) + 256})
					defer c.close()
					c.formAll(t)
					c.gather(t, count, inPlace)
					c.broadcast(t, count, n-1, inPlace)
					c.mustAll(t, ranks(n), func(int) Op { return Op{Kind: Barrier, Group: GroupWorld} })
					c.gather(t, count, inPlace)
				})
			}
		}
	}
}

func pattern(r int, n int64) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(r), uint64(n)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func (c *cluster) gather(t *testing.T, count int64, inPlace bool) {
	t.Helper()
	n := len(c.engines)
	out := round64(count*2) + 64
	var want []byte
	op := func(r int) Op {
		op := Op{Kind: AllGather, DType: F16, Count: count, OutOffset: out, Group: GroupWorld}
		if inPlace {
			op.InOffset = out + int64(r)*count*2
		}
		return op
	}
	for r := range n {
		copy(c.segments[r][op(r).InOffset:], pattern(r, count*2))
		want = append(want, pattern(r, count*2)...)
	}
	c.mustAll(t, ranks(n), op)
	for r := range n {
		differ(t, fmt.Sprint("gathered by ", r), c.out(r, op(r)), want)
	}
}

func (c *cluster) broadcast(t *testing.T, count int64, root int, inPlace bool) {
	t.Helper()
	n := len(c.engines)
	op := Op{Kind: Broadcast, DType: BF16, Count: count, Root: phalanx.Rank(root), OutOffset: round64(count*2) + 64}
	if inPlace {
		op.InOffset = op.OutOffset
	}
	for _, s := range c.segments {
		clear(s)
	}
	copy(c.segments[root][op.InOffset:], pattern(99, count*2))
	c.mustAll(t, ranks(n), func(int) Op { return op })
	for r := range n {
		differ(t, fmt.Sprint("broadcast to ", r), c.out(r, op), pattern(99, count*2))
	}
}

// TestGroups: with two ranks to a replica group the sums run among equal coordinates, at the same time as barriers of the
// whole world, where sums are refused.
func TestGroups(t *testing.T) {
	deal := evenDeal(t, 6, 3)
	c := newCluster(t, layout{hosts: []int{0, 0, 1, 1, 0, 1}, deal: deal, slots: 6, groupSize: 2, bytes: sumBytes(F64, 500, 8)})
	defer c.close()
	c.formAll(t)
	sums := []*leaves{newLeaves(rand.New(rand.NewPCG(1, 1)), F64, 6, 500), newLeaves(rand.New(rand.NewPCG(2, 2)), F64, 6, 500)}
	ops := make([]Op, 6)
	var done []<-chan error
	for r := range ops {
		ops[r] = c.place(r, sums[r%2], AllReduce, true, false)
		done = append(done, c.post(r, Op{Kind: Barrier, Group: GroupWorld}), c.post(r, ops[r]))
	}
	for _, d := range done {
		if err := await(t, "groups", d); err != nil {
			t.Fatal(err)
		}
	}
	for r := range ops {
		differ(t, fmt.Sprint("rank ", r), c.out(r, ops[r]), sums[r%2].sum(deal, true))
	}
	for r, err := range c.all(t, ranks(6), func(r int) Op { ops[r].Group = GroupWorld; return ops[r] }) {
		wantErr(t, err, ErrInvalid, "supplied twice")
		_ = r
	}
}

// TestBigExchanges: halving over more elements than a slab and messages than a mailbox, and a group above the limit of the
// direct algorithm with the default options.
func TestBigExchanges(t *testing.T) {
	for _, d := range []DType{F32, I64, BF16} {
		checkSum(t, []int{0, 0, 1, 0, 1}, d, slabElements+3*chunkElements+77, 7, Options{DirectMax: 1}, AllReduce, d == I64)
	}
	many := make([]int, 21)
	for i := range many {
		many[i] = i / 4
	}
	checkSum(t, many, F32, 10007, 32, Options{}, AllReduce, false)
}

// TestNegativeZero: a sum of -0 stays -0, which adding a 0 for a missing sibling would change, at odd slot counts too.
func TestNegativeZero(t *testing.T) {
	for slots := 1; slots <= 7; slots++ {
		for n := 1; n <= slots; n++ {
			for _, directMax := range []int{1, 16} {
				l := newLeaves(rand.New(rand.NewPCG(1, 1)), F32, slots, 3)
				for _, v := range l.values {
					for i := range f32s(v) {
						f32s(v)[i] = float32(math.Copysign(0, -1))
					}
				}
				c := newCluster(t, layout{hosts: make([]int, n), deal: evenDeal(t, slots, n), slots: slots, bytes: sumBytes(F32, 3, 8), options: Options{DirectMax: directMax}})
				c.formAll(t)
				ops := filled(c, l)
				c.mustAll(t, ranks(n), func(r int) Op { return ops[r] })
				for r := range ops {
					differ(t, fmt.Sprint("rank ", r), c.out(r, ops[r]), l.values[0])
				}
				c.close()
			}
		}
	}
}

// TestFixedBits holds the bits of one deterministic run for all types. Builds for every GOAMD64 level and the plain Go
// kernels must give them: a compiler that fuses a multiplication and an addition would not.
func TestFixedBits(t *testing.T) {
	const want = "ce88bf7ba90c947f75d3e8e6fbbae1c3"
	for _, path := range []kernels.Path{kernels.Best, kernels.Generic} {
		restore := kernels.Force(path)
		h := sha256.New()
		for _, d := range []DType{F32, F64, I64, BF16, F16} {
			l := &leaves{d: d, slots: 11, count: 4099}
			for s := range l.slots {
				l.values = append(l.values, fixed(d, s, l.count))
			}
			c := newCluster(t, layout{hosts: []int{0, 0, 1}, deal: evenDeal(t, 11, 3), slots: 11, bytes: sumBytes(d, l.count, 8)})
			c.formAll(t)
			ops := filled(c, l)
			c.mustAll(t, ranks(3), func(r int) Op { return ops[r] })
			for r := range ops {
				if !bytes.Equal(c.out(r, ops[r]), c.out(0, ops[0])) {
					t.Errorf("type %d: rank %d has other bits than rank 0", d, r)
				}
			}
			h.Write(c.out(0, ops[0]))
			c.close()
		}
		restore()
		if got := hex.EncodeToString(h.Sum(nil)[:16]); got != want {
			t.Errorf("path %d: bits are %s, want %s", path, got, want)
		}
	}
}

// fixed makes values from integers only, so that no library function can change them.
func fixed(d DType, slot, count int) []byte {
	b := make([]byte, int64(count)*d.Size())
	for i := range count {
		z := mix(uint64(slot)<<32 | uint64(i))
		f := math.Float32frombits(uint32(z)&0x807fffff | uint32(0x70+z>>40%32)<<23)
		switch d {
		case F32:
			f32s(b)[i] = f
		case F64:
			f64s(b)[i] = math.Float64frombits(z&0x800fffffffffffff | (0x3f0+z>>32%32)<<52)
		case I64:
			i64s(b)[i] = int64(z)
		case BF16:
			kernels.BF16FromF32(u16s(b)[i:i+1], []float32{f})
		case F16:
			kernels.F16FromF32(u16s(b)[i:i+1], []float32{f})
		default: // the step sums no others
		}
	}
	return b
}

// FuzzHeader: what comes from outside is refused or read; what is read is written the same.
func FuzzHeader(f *testing.F) {
	var b [headBytes]byte
	h := header{typ: frameData, group: 1, node: 3, gen: phalanx.Generation{Epoch: 2, Number: 9}, source: 4, seq: 5, stream: 1, chunk: 6, word: 7, payload: 8}
	h.encode(b[:])
	f.Add(b[:])
	f.Add([]byte("PHXF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		var again [headBytes]byte
		h.encode(again[:])
		if got, err := parseHeader(again[:]); err != nil || got != h || !bytes.Equal(again[:], b[:headBytes]) {
			t.Fatalf("header %+v reads back as %+v, %v", h, got, err)
		}
	})
}
