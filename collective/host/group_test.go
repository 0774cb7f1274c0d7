// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/kernels"
)

var allTypes = []DType{F32, F64, I64, BF16, F16, U8, I8, I16, I32, Bool, U16, U32, U64}

// number is one element as the reference computes with it: exactly one of the two is used.
type number struct {
	f float64
	i uint64
}

// get and put read and write an element; the reference sums float32 and the 16-bit types in float32.
func get(d DType, b []byte, i int64) number {
	switch d {
	case F32:
		return number{f: float64(f32s(b)[i])}
	case F64:
		return number{f: f64s(b)[i]}
	case BF16, F16:
		return number{f: float64(f32s(wide(d, b[2*i:][:2]))[0])}
	case I64, U64:
		return number{i: kernels.View[uint64](b)[i]}
	case I32:
		return number{i: uint64(kernels.View[int32](b)[i])}
	case U32:
		return number{i: uint64(kernels.View[uint32](b)[i])}
	case I16:
		return number{i: uint64(kernels.View[int16](b)[i])}
	case U16:
		return number{i: uint64(u16s(b)[i])}
	case I8:
		return number{i: uint64(kernels.View[int8](b)[i])}
	case Bool:
		if b[i] != 0 {
			return number{i: 1}
		}
		return number{}
	default:
		return number{i: uint64(b[i])}
	}
}

func put(d DType, b []byte, i int64, v number) {
	switch d {
	case F32:
		f32s(b)[i] = float32(v.f)
	case F64:
		f64s(b)[i] = v.f
	case BF16, F16:
		copy(b[2*i:], narrow(d, kernels.Bytes([]float32{float32(v.f)})))
	case I64, U64:
		kernels.View[uint64](b)[i] = v.i
	case I32, U32:
		kernels.View[uint32](b)[i] = uint32(v.i)
	case I16, U16:
		u16s(b)[i] = uint16(v.i)
	default:
		b[i] = byte(v.i)
	}
}

// combine is the reference for two elements.
func combine(d DType, r Reduction, a, b number) number {
	if d.float() {
		switch r {
		case Product:
			a.f *= b.f
		case Min, Max:
			switch {
			case math.IsNaN(a.f):
			case math.IsNaN(b.f):
				a = b
			case r == Min && b.f < a.f, r == Max && b.f > a.f:
				a = b
			}
		default:
			a.f += b.f
		}
		if d != F64 {
			a.f = float64(float32(a.f))
		}
		return a
	}
	less := a.i < b.i
	if d == I64 || d == I32 || d == I16 || d == I8 {
		less = int64(a.i) < int64(b.i)
	}
	switch r {
	case Sum:
		a.i += b.i
	case Product:
		a.i *= b.i
	case Min:
		if !less {
			a = b
		}
	case Max:
		if less {
			a = b
		}
	case BAnd:
		a.i &= b.i
	case BOr:
		a.i |= b.i
	case BXor:
		a.i ^= b.i
	}
	if d == Bool && a.i != 0 {
		a.i = 1
	}
	wrapped := make([]byte, 8) // as the type holds it
	put(d, wrapped, 0, a)
	return get(d, wrapped, 0)
}

// reduceRef is the reference for a reduction: plain recursion over the members.
func reduceRef(d DType, r Reduction, scale bool, inputs [][]byte, count int64) []byte {
	out := make([]byte, count*d.Size())
	var value func(i int64, n phalanx.Node) number
	tree := phalanx.SlotTree{Slots: len(inputs)}
	value = func(i int64, n phalanx.Node) number {
		if n.Len() == 1 {
			return get(d, inputs[n.First], i)
		}
		l, rr := tree.Children(n)
		return combine(d, r, value(i, l), value(i, rr))
	}
	for i := range count {
		v := value(i, tree.Root())
		if scale {
			if d == F64 {
				v.f *= 1 / float64(len(inputs))
			} else {
				v.f = float64(float32(v.f) * (1 / float32(len(inputs))))
			}
		}
		put(d, out, i, v)
	}
	return out
}

// values draws elements of a type; sums of the 16-bit types stay finite often enough.
func values(rng *rand.Rand, d DType, count int64) []byte {
	b := make([]byte, count*d.Size())
	for i := range count {
		if !d.float() {
			put(d, b, i, number{i: rng.Uint64() >> (rng.IntN(8) * 8)})
			if d == Bool {
				b[i] = byte(rng.IntN(4) * rng.IntN(2))
			}
			continue
		}
		v := number{f: rng.NormFloat64()}
		switch rng.IntN(20) {
		case 0:
			v.f = math.Inf(1 - 2*rng.IntN(2))
		case 1:
			v.f = 0
		}
		put(d, b, i, v)
	}
	return b
}

// groupTask is one operation of a group with what every member gives and should get.
type groupTask struct {
	ops  []Op // by member
	in   [][]byte
	want [][]byte
}

// drawTask draws an operation for a group, with memory from `at` on in each segment.
func drawTask(t *rapid.T, rng *rand.Rand, id uint64, group []phalanx.Rank, at int64) groupTask {
	n := len(group)
	kind := rapid.SampledFrom([]Kind{AllReduce, ReduceScatter, AllGather, Broadcast, Barrier, Reduce, Gather, Scatter, AllToAll}).Draw(t, "kind")
	d := rapid.SampledFrom(allTypes).Draw(t, "type")
	root := rapid.IntRange(0, n-1).Draw(t, "root")
	count := rapid.SampledFrom([]int64{0, 1, 5, 64, 1000, 9000, chunkElements + 100}).Draw(t, "count")
	op := Op{Seq: 1, ID: id, Kind: kind, DType: d, Root: group[root], Count: count}
	if op.sums() {
		op.Reduction = rapid.SampledFrom([]Reduction{Sum, Sum, Product, Min, Max, BAnd, BOr, BXor}).Draw(t, "reduction")
		if op.Reduction >= BAnd && d.float() {
			op.Reduction = Max
		}
		op.Scale = op.Reduction == Sum && d.float() && rapid.Bool().Draw(t, "mean")
	}
	if op.parted() && rapid.Bool().Draw(t, "uneven") {
		op.Counts = true
	}
	size := d.Size()
	counts := make([][]int64, n) // [from][to], or the same line on all
	for i := range counts {
		counts[i] = slices.Repeat([]int64{count}, n)
		if op.Counts && (i == 0 || kind == AllToAll) {
			for j := range counts[i] {
				counts[i][j] = int64(rng.IntN(int(min(count, 4000)) + 1))
			}
		} else {
			counts[i] = slices.Clone(counts[0])
		}
	}
	sum := func(v []int64) (s int64) {
		for _, c := range v {
			s += c
		}
		return s
	}
	x := groupTask{ops: make([]Op, n), in: make([][]byte, n), want: make([][]byte, n)}
	for i := range n {
		elements := count
		switch kind {
		case ReduceScatter, AllToAll:
			elements = sum(counts[i])
		case AllGather, Gather:
			elements = counts[i][i]
		case Scatter, Broadcast:
			if i != root {
				elements = 0
			} else if kind == Scatter {
				elements = sum(counts[0])
			}
		case Barrier:
			elements = 0
		default: // count
		}
		x.in[i] = values(rng, d, elements)
	}
	for i := range n {
		var want []byte
		switch kind {
		case AllReduce:
			want = reduceRef(d, op.Reduction, op.Scale, x.in, count)
		case Reduce:
			if i == root {
				want = reduceRef(d, op.Reduction, op.Scale, x.in, count)
			}
		case ReduceScatter:
			all := reduceRef(d, op.Reduction, op.Scale, x.in, sum(counts[0]))
			want = all[sum(counts[0][:i])*size:][:counts[0][i]*size]
		case AllGather, Gather:
			if kind == AllGather || i == root {
				want = slices.Concat(x.in...)
			}
		case Scatter:
			want = x.in[root][sum(counts[0][:i])*size:][:counts[0][i]*size]
		case Broadcast:
			want = x.in[root]
		case AllToAll:
			for j := range n {
				want = append(want, x.in[j][sum(counts[j][:i])*size:][:counts[j][i]*size]...)
			}
		default: // nothing
		}
		x.want[i] = want
		o := op
		o.CountsOffset = at
		o.InOffset = at + round64(int64(16*n))
		o.OutOffset = o.InOffset + round64(int64(len(x.in[i])))
		x.ops[i] = o
	}
	if op.Counts {
		for i := range n {
			line := counts[i]
			if kind == AllToAll {
				for j := range n {
					line = append(slices.Clone(line), counts[j][i])
				}
			}
			x.in[i] = append(slices.Clone(kernels.Bytes(line)), x.in[i]...) // split again by load
		}
	}
	return x
}

// load puts a member's input where its operation says.
func (x *groupTask) load(segment []byte, i int) {
	op, in := x.ops[i], x.in[i]
	if op.Counts {
		n := len(x.ops)
		if op.Kind == AllToAll {
			n *= 2
		}
		copy(segment[op.CountsOffset:], in[:8*n])
		in = in[8*n:]
	}
	copy(segment[op.InOffset:], in)
}

// TestMadeGroups: groups of any ranks over any hosts, each with a row of operations of any kind, all at the same time and in any order of
// arrival, give what the reference does.
func TestMadeGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		hosts, inline := make([]int, n), make([]int64, n)
		most := rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "last host")
		for i := range hosts {
			hosts[i] = rapid.IntRange(0, most).Draw(t, "host")
			inline[i] = rapid.SampledFrom([]int64{0, 64, 1 << 20}).Draw(t, "inline up to")
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		const room = 4 << 20
		made, rows := rapid.IntRange(1, 3).Draw(t, "groups"), rapid.IntRange(1, 4).Draw(t, "operations")
		c := newCluster(t, layout{
			hosts: hosts, deal: evenDeal(t, n, n), slots: n, bytes: made * rows * room, inline: inline, pipe: rapid.Bool().Draw(t, "pipe"),
			groups: MaxGroups, options: Options{OneRoundMax: rapid.SampledFrom([]int{-1, 0}).Draw(t, "one round up to")},
		})
		defer c.close()
		c.formAll(t)
		type line struct {
			group []phalanx.Rank
			tasks []groupTask
		}
		var lines []line
		for g := range made {
			all := make([]phalanx.Rank, n)
			for i := range all {
				all[i] = phalanx.Rank(i)
			}
			l := line{group: rapid.Permutation(all).Draw(t, "order")[:rapid.IntRange(1, n).Draw(t, "members")]}
			for k := range rows {
				l.tasks = append(l.tasks, drawTask(t, rng, uint64(g+1)<<33, l.group, int64(g*rows+k)*room))
			}
			lines = append(lines, l)
		}
		done := make(chan string, made*rows*n)
		waits := 0
		for _, r := range rng.Perm(n) {
			for g, l := range lines {
				at := slices.Index(l.group, phalanx.Rank(r))
				if at < 0 {
					continue
				}
				id := uint64(g+1) << 33
				if err := c.engines[r].Make(c.world.Generation, id, l.group); err != nil {
					t.Fatalf("%v", err)
				}
				for k := range l.tasks {
					l.tasks[k].load(c.segments[r], at)
					op := l.tasks[k].ops[at]
					op.Seq = uint64(g*rows + k + 1)
					waits++
					c.engines[r].Post(c.world.Generation, op, func(err error) {
						if err != nil {
							done <- fmt.Sprintf("rank %d, group %v: %v", r, l.group, err)
							return
						}
						done <- ""
					})
				}
			}
		}
		for range waits {
			select {
			case why := <-done:
				if why != "" {
					t.Fatalf("%s", why)
				}
			case <-time.After(patience):
				t.Fatalf("nothing after %s", patience)
			}
		}
		for _, l := range lines {
			for k, x := range l.tasks {
				for at, r := range l.group {
					op := x.ops[at]
					differ(t, fmt.Sprintf("rank %d as %d of %v, operation %d, %s of %d, type %d, reduction %d, mean %t, counts %t", r, at, l.group, k, op.Kind, op.Count, op.DType, op.Reduction, op.Scale, op.Counts),
						c.segments[r][op.OutOffset:][:len(x.want[at])], x.want[at])
				}
			}
		}
	})
}
