// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"phalanx"
)

// TestReadOnlyPeers runs on mapped files as the daemons do, segment and board in one file, those of peers mapped
// read-only: a write to a peer's memory would be the end of the test process.
func TestReadOnlyPeers(t *testing.T) {
	const n, count = 3, 3*chunkElements + 9
	deal := evenDeal(t, 6, n)
	size := (sumBytes(F32, count, 6) + 4095) / 4096 * 4096
	c := newCluster(t, layout{hosts: make([]int, n), deal: deal, slots: 6, bytes: 8})
	defer c.close()
	dir := t.TempDir()
	mapped := func(r, protection int) []byte {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint("seg", r)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(int64(size + BoardBytes)); err != nil {
			t.Fatal(err)
		}
		b, err := syscall.Mmap(int(f.Fd()), 0, size+BoardBytes, protection, syscall.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Munmap(b) })
		return b
	}
	for r := range n {
		own := mapped(r, syscall.PROT_READ|syscall.PROT_WRITE)
		c.segments[r], c.boards[r] = own[:size], own[size:]
	}
	for _, directMax := range []int{1, 16} {
		for r := range n {
			var locals []LocalPeer
			for p := range n {
				if p != r {
					b := mapped(p, syscall.PROT_READ)
					locals = append(locals, LocalPeer{phalanx.Rank(p), b[:size], b[size:], func() { c.engines[p].Wake() }})
				}
			}
			c.engines[r].Close()
			c.engines[r] = New(slog.New(slog.DiscardHandler), Options{DirectMax: directMax})
			if err := c.engines[r].Form(c.world, Self{phalanx.Rank(r), c.segments[r], c.boards[r]}, locals, nil); err != nil {
				t.Fatal(err)
			}
		}
		l := newLeaves(rand.New(rand.NewPCG(4, 4)), F32, 6, count)
		ops := filled(c, l)
		c.mustAll(t, ranks(n), func(r int) Op { return ops[r] })
		for r := range ops {
			differ(t, fmt.Sprint("rank ", r), c.out(r, ops[r]), l.sum(deal, true))
		}
	}
}

// TestTakenBack plays a peer by hand that took part, took its memory back and then looks finished: nothing that is read
// from it afterwards may be believed, also when its board still counts.
func TestTakenBack(t *testing.T) {
	const count = 4 * chunkElements
	c := newCluster(t, layout{hosts: []int{0, 0}, deal: evenDeal(t, 2, 2), slots: 2, bytes: 2 * count * 4})
	defer c.close()
	c.form(t, 0)
	op := Op{Kind: AllReduce, DType: F32, Count: count, InNodes: 1, OutOffset: count * 4}
	peer, stamp := boardOf(c.boards[1], GroupReplicas), stampOf(c.world.Generation, 1)
	done := c.post(0, op)
	peer.post(stamp, op.sig(defaults), &op)
	peer.store(wordReduced, progress(stamp, 1))
	c.engines[0].Wake()
	own := boardOf(c.boards[0], GroupReplicas)
	for start := time.Now(); counted(own.load(wordReduced), stamp) < 2 || own.load(wordSleeping) == 0; {
		if time.Since(start) > patience {
			t.Fatal("rank 0 does not come to wait for the second chunk")
		}
		time.Sleep(time.Millisecond)
	}
	if on := c.engines[0].Waiting(); len(on) != 1 || len(on[0].Ranks) != 1 || on[0].Ranks[0] != 1 || on[0].Kind != AllReduce {
		t.Errorf("waiting %+v, want an all_reduce for rank 1", on)
	}
	peer.clear()
	peer.store(wordReduced, progress(stamp, 2))
	peer.store(wordLeft, stamp)
	c.engines[0].Wake()
	wantErr(t, await(t, "rank 0", done), phalanx.ErrRevoked, "rank 1")
	if own.load(wordPosted) != 0 {
		t.Error("the board still offers the memory of an operation that failed")
	}
}

// TestPeerLies: addresses on another member's board are checked before they are used.
func TestPeerLies(t *testing.T) {
	for name, change := range map[string]func(*Op){
		"in":     func(op *Op) { op.InOffset = 1 << 40 },
		"out":    func(op *Op) { op.OutOffset = 8*400 - 4 },
		"odd":    func(op *Op) { op.InOffset = 2 },
		"signed": func(op *Op) { op.OutOffset = -4 },
	} {
		t.Run(name, func(t *testing.T) {
			o := defaults
			o.OneRoundMax = -1 // nobody reads anybody's segment in one round
			c := newCluster(t, layout{hosts: []int{0, 0}, deal: evenDeal(t, 2, 2), slots: 2, bytes: 8 * 400, options: o})
			defer c.close()
			c.form(t, 0)
			op := Op{Kind: AllReduce, DType: F32, Count: 400, InNodes: 1, OutOffset: 1600}
			lie := op
			change(&lie)
			done := c.post(0, op)
			boardOf(c.boards[1], GroupReplicas).post(stampOf(c.world.Generation, 1), op.sig(o), &lie)
			c.engines[0].Wake()
			wantErr(t, await(t, "rank 0", done), ErrInvalid, "rank 1")
		})
	}
}

// TestMissingSibling: where nobody supplies a sibling, the value that is there passes through unchanged.
func TestMissingSibling(t *testing.T) {
	tree := phalanx.SlotTree{Slots: 5}
	f, err := newFold(tree, []phalanx.Node{{First: 4, End: 5}, {First: 0, End: 1}, {First: 2, End: 4}}, true)
	if err != nil {
		t.Fatal(err)
	}
	in, out := make([][]byte, 3), [][]byte{make([]byte, 8)}
	for i, v := range []float64{1e16, 1, -1e16} {
		in[i] = make([]byte, 8)
		f64s(in[i])[0] = v
	}
	newArithmetic(tree).run(f, F64, in, out, foldMode{final: true})
	x, y := 1.0, -1e16
	if want := x + y + 1e16; f64s(out[0])[0] != want { // (slot 0 + slots 2-3) + slot 4
		t.Errorf("sum is %g, want %g", f64s(out[0])[0], want)
	}
	for name, nodes := range map[string][]phalanx.Node{
		"twice":   {{First: 0, End: 1}, {First: 0, End: 1}},
		"overlap": {{First: 0, End: 4}, {First: 2, End: 4}},
		"no node": {{First: 1, End: 3}},
	} {
		if _, err := newFold(tree, nodes, true); err == nil {
			t.Errorf("%s: folded", name)
		}
	}
}
