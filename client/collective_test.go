// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// The buffers after a fold are the tree sums of the cover, bit for bit, for every range of every small tree.
func TestFoldIsTheTreeSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for slots := 1; slots <= 13; slots++ {
		leaves := make([][]float32, slots)
		for i := range leaves {
			leaves[i] = make([]float32, testElements)
			for k := range leaves[i] {
				leaves[i][k] = float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(40)))
			}
		}
		leaves[0][0] = float32(math.Copysign(0, -1))
		tree := phalanx.SlotTree{Slots: slots}
		spec := testSpec()
		spec.Slots, spec.GlobalBatch = slots, slots
		cfg := Config{Spec: spec, GradientElements: testElements}
		for first := range slots {
			for end := first + 1; end <= slots; end++ {
				c := &Client{cfg: cfg, plan: planSegment(cfg)}
				c.m.Segment, c.fold.c = kernels.Bytes(make([]uint64, c.plan.bytes/8)), c
				c.begun = Begin{Step: 1, SlotCount: slots, Slots: phalanx.SlotRange{First: phalanx.Slot(first), End: phalanx.Slot(end)}}
				f := c.Fold()
				for s := first; s < end; s++ {
					if f.complete() {
						t.Fatal("complete too early")
					}
					copy(f.Slot(phalanx.Slot(s)), leaves[s])
					f.Done(phalanx.Slot(s))
				}
				if !f.complete() {
					t.Fatalf("fold of %v is not complete: %v", c.begun.Slots, f.stack)
				}
				for i, n := range tree.Cover(c.begun.Slots) {
					if got, want := bits(c.buffer(i)), bits(treeSum(tree, n, leaves)); !slices.Equal(got, want) {
						t.Fatalf("%d slots, range %v, node %v: got %x, want %x", slots, c.begun.Slots, n, got, want)
					}
				}
			}
		}
	}
}

func treeSum(tree phalanx.SlotTree, n phalanx.Node, leaves [][]float32) []float32 {
	if n.Len() == 1 {
		return leaves[n.First]
	}
	l, r := tree.Children(n)
	sum := make([]float32, testElements)
	kernels.AddF32(sum, treeSum(tree, l, leaves), treeSum(tree, r, leaves))
	return sum
}

func bits(v []float32) []uint32 {
	out := make([]uint32, len(v))
	for i, x := range v {
		out[i] = math.Float32bits(x)
	}
	return out
}

func TestFoldPanicsOnWrongOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		f := r.Fold()
		for name, call := range map[string]func(){
			"skipped slot":    func() { f.Slot(1) },
			"done before":     func() { f.Done(0) },
			"after the range": func() { f.Slot(4) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						r.Errorf("%s: no panic", name)
					}
				}()
				call()
			}()
		}
	})
}

func (r *rig) foldAll() {
	f := r.Fold()
	for s := r.begun.Slots.First; s < r.begun.Slots.End; s++ {
		b := f.Slot(s)
		for i := range b {
			b[i] += float32(s)
		}
		f.Done(s)
	}
}

func TestAllReduce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		r.foldAll()
		c := start(func() ([]float32, error) { return r.AllReduce(r.Context(), true) })
		if c.ended() || r.page.RingHead() != 1 {
			r.Fatalf("ended %v with %v, ring head %d", c.ended(), c.err, r.page.RingHead())
		}
		d := r.page.ReadDescriptor(1)
		if d.Generation != generation(1) || d.Op != wire.OpAllReduce || d.DType != wire.DTypeF32 || d.Count != testElements || d.InNodes != 1 || d.Scale != wire.ScaleMean || d.InOffset != 0 || d.Group != 0 {
			r.Errorf("descriptor %+v", d)
		}
		if sum := kernels.F32s(r.segment[d.InOffset:][:4*d.Count]); sum[0] != 0+1+2+3 {
			r.Errorf("input %v", sum)
		}
		kernels.F32s(r.segment[d.OutOffset:][:4*d.Count])[4] = 3.5
		r.page.CompleteDescriptor(1, wire.StatusOK)
		r.settle()
		if g := must(r, c); len(g) != testElements || g[4] != 3.5 {
			r.Errorf("reduced %v", g)
		}

		counts := []int64{3, -4}
		n := start(func() (struct{}, error) { return struct{}{}, r.AllReduceI64(r.Context(), counts) })
		d = r.page.ReadDescriptor(2)
		if in := kernels.I64s(r.segment[d.InOffset:][:16]); d.DType != wire.DTypeI64 || d.Count != 2 || in[0] != 3 || in[1] != -4 {
			r.Errorf("descriptor %+v, input %v", d, in)
		}
		copy(kernels.I64s(r.segment[d.OutOffset:][:16]), []int64{7, 8})
		r.page.CompleteDescriptor(2, wire.StatusOK)
		r.settle()
		if must(r, n); !slices.Equal(counts, []int64{7, 8}) {
			r.Errorf("counts %v", counts)
		}
		r.wantErr(r.AllReduceI64(r.Context(), make([]int64, DefaultCountElements+1)), ErrIllegal)
	})
}

func TestExtraCollectives(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		must(r, r.begin())
		data := kernels.Bytes([]int64{1, 2})
		b := start(func() (struct{}, error) {
			return struct{}{}, r.Broadcast(r.Context(), 1, wire.DTypeI64, data)
		})
		d := r.page.ReadDescriptor(1)
		if d.Op != wire.OpBroadcast || d.Root != 1 || d.Count != 2 || d.Group != GroupWorld {
			r.Errorf("descriptor %+v", d)
		}
		copy(kernels.I64s(r.segment[d.OutOffset:][:16]), []int64{5, 6})
		r.page.CompleteDescriptor(1, wire.StatusOK)
		r.settle()
		if must(r, b); !slices.Equal(kernels.I64s(data), []int64{5, 6}) {
			r.Errorf("broadcast %v", data)
		}
		g := start(func() ([]byte, error) { return r.AllGather(r.Context(), wire.DTypeI64, data) })
		d = r.page.ReadDescriptor(2)
		copy(kernels.I64s(r.segment[d.OutOffset:][:32]), []int64{1, 2, 3, 4})
		r.page.CompleteDescriptor(2, wire.StatusOK)
		r.settle()
		if got := must(r, g); !slices.Equal(kernels.I64s(got), []int64{1, 2, 3, 4}) {
			r.Errorf("gathered %v", got)
		}
		_, err := r.AllGather(r.Context(), wire.DTypeF32, make([]byte, 256))
		r.wantErr(err, ErrIllegal)
		r.wantErr(r.Broadcast(r.Context(), 0, wire.DTypeF64, make([]byte, 12)), ErrIllegal)
		r.foldAll()
		s := start(func() ([]float32, error) { return r.ReduceScatter(r.Context(), false) })
		r.page.CompleteDescriptor(3, wire.StatusOK)
		r.settle()
		if got := must(r, s); len(got) != 3 {
			r.Errorf("shard of rank 0 of 2 has %d of %d elements", len(got), testElements)
		}
	})
}

func TestCollectiveEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		act  func(r *rig)
		want error
	}{
		{"revoked", func(r *rig) { r.page.CompleteDescriptor(1, wire.StatusRevoked) }, phalanx.ErrRevoked},
		{"failed", func(r *rig) { r.page.CompleteDescriptor(1, wire.StatusFailed) }, ErrCollective},
		{"newer generation, completed in time", func(r *rig) {
			r.seat(wire.ActionPark, 2, phalanx.Label{})
			time.Sleep(RevokeGrace / 2)
			r.page.CompleteDescriptor(1, wire.StatusRevoked)
		}, phalanx.ErrRevoked},
		{"newer generation, never completed", func(r *rig) {
			r.seat(wire.ActionPark, 2, phalanx.Label{})
			time.Sleep(2 * RevokeGrace)
		}, phalanx.ErrRevoked},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.seat(wire.ActionRun, 1, phalanx.Label{})
				must(r, r.begin())
				b := start(func() (struct{}, error) { return struct{}{}, r.Barrier(r.Context()) })
				if b.ended() {
					r.Fatal(fmt.Sprint("ended before: ", b.err))
				}
				c.act(r)
				r.settle()
				synctest.Wait()
				if !b.ended() {
					r.Fatal("the collective has not ended")
				}
				r.wantErr(b.err, c.want)
				// The next generation begins the same step, with sequences that go on.
				r.seat(wire.ActionRun, 3, phalanx.Label{})
				if got := must(r, r.begin()); got.Step != 1 || got.Generation != generation(3) {
					r.Errorf("begun %+v", got)
				}
			})
		})
	}
}
