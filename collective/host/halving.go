// SPDX-License-Identifier: Apache-2.0

package host

import (
	"phalanx"
	"phalanx/kernels"
)

// slabElements is how many elements one pass of the halving exchange handles: it bounds the private memory to about three
// times the buffers of a cover.
const slabElements = 4 * chunkElements

// halver is the plan of halving and doubling for one group. Of n members, the largest power of two p take part; the first
// n-p of the others give their inputs to the neighbour before and get the result from it. In round k the members whose
// places differ in bit k exchange halves of what they hold, nearest first, so that the slots behind a value stay
// neighbours and few subtrees describe them. A value is never one number but the sums of the largest subtrees that are
// complete: that is why the bits are those of the tree, and of the direct algorithm.
type halver struct {
	w      *worker
	in     *fold     // joins the inputs of the neighbour's extra member with the own, nil when there is none
	extra  int       // member index of the extra one, or of the neighbour that stands in for us; -1 when none
	stands bool      // we are the extra one
	rounds []halving // empty when stands
	spare  [][]byte  // buffers of slabElements in the largest accumulator
}

// halving is one round.
type halving struct {
	partner int  // member index
	low     bool // we keep the lower half of the elements
	nodes   int  // subtrees that we hold before the round
	theirs  int  // and the partner
	fold    *fold
	last    bool
}

func newHalver(w *worker) (*halver, error) {
	n := len(w.members)
	p := 1
	for p*2 <= n {
		p *= 2
	}
	extras := n - p
	h := &halver{w: w, extra: -1}
	if w.me < 2*extras {
		h.extra, h.stands = w.me^1, w.me%2 == 1
	}
	if h.stands {
		return h, nil
	}
	// place v of p is member at(v); the subtrees of the places [from, from+size).
	at := func(v int) int {
		if v < extras {
			return 2 * v
		}
		return v + extras
	}
	covers := func(from, size int) (nodes []phalanx.Node) {
		for v := from; v < from+size; v++ {
			nodes = append(nodes, w.members[at(v)].cover...)
			if v < extras {
				nodes = append(nodes, w.members[at(v)+1].cover...)
			}
		}
		return nodes
	}
	me := w.me - extras
	if w.me < 2*extras {
		me = w.me / 2
	}
	var err error
	if h.extra >= 0 {
		if h.in, err = newFold(w.tree, covers(me, 1), false); err != nil {
			return nil, err
		}
	}
	held := w.members[w.me].cover
	if h.in != nil {
		held = h.in.results
	}
	for bit := 1; bit < p; bit *= 2 {
		other := me ^ bit
		block, err := newFold(w.tree, covers(other&^(bit-1), bit), false)
		if err != nil {
			return nil, err
		}
		theirs := block.results // in slot order, as the partner's own plan has them
		last := bit*2 == p
		f, err := newFold(w.tree, append(append([]phalanx.Node(nil), held...), theirs...), last)
		if err != nil {
			return nil, err
		}
		h.rounds = append(h.rounds, halving{at(other), me&bit == 0, len(held), len(theirs), f, last})
		held = f.results
	}
	return h, nil
}

// take returns n buffers of the given bytes; give puts them back.
func (h *halver) take(n int, bytes int64) (out [][]byte) {
	for range n {
		var b []byte
		if last := len(h.spare) - 1; last >= 0 {
			b, h.spare = h.spare[last], h.spare[:last]
		} else {
			b = kernels.Bytes(make([]uint64, slabElements))
		}
		out = append(out, b[:bytes])
	}
	return out
}

func (h *halver) give(buffers [][]byte) {
	for _, b := range buffers {
		h.spare = append(h.spare, b[:cap(b)])
	}
}

// halve runs an all-reduce by halving and doubling.
func (w *worker) halve(op *Op) error {
	if w.halver == nil {
		h, err := newHalver(w)
		if err != nil {
			return err
		}
		w.halver = h
	}
	r := &halvingRun{halver: w.halver, op: op, size: op.DType.Size(), wide: op.DType.accumulator().Size()}
	defer r.end()
	if r.extra >= 0 {
		r.fold = r.channel(r.extra, maxAcks-1)
	}
	for k := range r.rounds {
		r.channels = append(r.channels, r.channel(r.rounds[k].partner, k))
	}
	for first := int64(0); first < op.Count; first += slabElements {
		if err := r.slab(first, min(op.Count, first+slabElements)); err != nil {
			return err
		}
	}
	return nil
}

// halvingRun is one operation.
type halvingRun struct {
	*halver
	op         *Op
	size, wide int64 // bytes of an element, as stored and as accumulated
	fold       *channel
	channels   []*channel // by round
	box        outbox
}

func (r *halvingRun) channel(i, index int) *channel {
	return &channel{w: r.w, m: &r.w.members[i], index: index}
}

func (r *halvingRun) end() {
	for _, c := range append(r.channels, r.fold) {
		if c != nil {
			dropAll(&c.waiting)
		}
	}
}

// slab reduces the elements [first, end).
func (r *halvingRun) slab(first, end int64) error {
	held, own := r.inputs(first, end)
	// What is held is given back to the spares as soon as it was summed; the segment's own buffers are not ours to give.
	if r.stands {
		err := r.fold.exchange(&r.box, held, nil)
		if own {
			r.give(held)
		}
		if err != nil {
			return err
		}
		return r.fold.exchange(&r.box, nil, [][]byte{r.result(first, end)})
	}
	if r.in != nil {
		extra := len(r.w.members[r.extra].cover)
		got := r.take(extra, (end-first)*r.wide)
		if err := r.fold.exchange(&r.box, nil, got); err != nil {
			return err
		}
		// Registers are in member order: the neighbour's are ours first, then the extra one's.
		joined, joinedOwn := r.join(r.in, held, got, nil)
		if own {
			r.give(held)
		}
		held, own = joined, joinedOwn
	}
	at := first
	lo, hi := first, end
	var ranges [][2]int64 // what was held before each round
	for k := range r.rounds {
		ranges = append(ranges, [2]int64{lo, hi})
		round := &r.rounds[k]
		mid := lo + (hi-lo+31)/32*16
		mid = min(mid, hi)
		keep, part := [2]int64{lo, mid}, [2]int64{mid, hi}
		if !round.low {
			keep, part = part, keep
		}
		give, mine := make([][]byte, len(held)), make([][]byte, len(held))
		for i, b := range held {
			give[i] = b[(part[0]-at)*r.wide : (part[1]-at)*r.wide]
			mine[i] = b[(keep[0]-at)*r.wide : (keep[1]-at)*r.wide]
		}
		got := r.take(round.theirs, (keep[1]-keep[0])*r.wide)
		if err := r.channels[k].exchange(&r.box, give, got); err != nil {
			return err
		}
		var final []byte
		if round.last {
			final = r.result(keep[0], keep[1])
		}
		next, nextOwn := r.join(round.fold, mine, got, final)
		if own {
			r.give(held)
		}
		held, own = next, nextOwn
		lo, hi, at = keep[0], keep[1], keep[0]
	}
	return r.double(first, end, lo, hi, ranges)
}

// double spreads the finished range [lo, hi) back in the reverse order of rounds, and to the extra member.
func (r *halvingRun) double(first, end, lo, hi int64, ranges [][2]int64) error {
	for k := len(r.rounds) - 1; k >= 0; k-- {
		theirs := [2]int64{ranges[k][0], lo}
		if r.rounds[k].low {
			theirs = [2]int64{hi, ranges[k][1]}
		}
		if err := r.channels[k].exchange(&r.box, [][]byte{r.result(lo, hi)}, [][]byte{r.result(theirs[0], theirs[1])}); err != nil {
			return err
		}
		lo, hi = ranges[k][0], ranges[k][1]
	}
	if r.extra < 0 {
		return nil
	}
	return r.fold.exchange(&r.box, [][]byte{r.result(first, end)}, nil)
}

// inputs returns the own buffers of a slab in accumulator type: views of the segment, or widened copies (own).
func (r *halvingRun) inputs(first, end int64) (buffers [][]byte, own bool) {
	for k := range r.w.members[r.w.me].cover {
		at := r.op.InOffset + int64(k)*r.op.InStride
		b := r.w.f.self.Segment[at+first*r.size : at+end*r.size]
		if r.size != r.wide {
			to := r.take(1, (end-first)*r.wide)[0]
			if r.op.DType == BF16 {
				kernels.F32FromBF16(f32s(to), u16s(b))
			} else {
				kernels.F32FromF16(f32s(to), u16s(b))
			}
			b, own = to, true
		}
		buffers = append(buffers, b)
	}
	return buffers, own
}

// join sums held and got by a fold, and gives got back. The result goes to final when that is given.
func (r *halvingRun) join(f *fold, held, got [][]byte, final []byte) ([][]byte, bool) {
	in := append(append([][]byte(nil), held...), got...)
	mode := foldMode{partial: true}
	if final != nil {
		mode.final, mode.scale = true, r.op.Scale
		r.w.arith.run(f, r.op.DType, in, [][]byte{final}, mode)
		r.give(got)
		return nil, false
	}
	out := r.take(len(f.results), int64(len(in[0])))
	r.w.arith.run(f, r.op.DType, in, out, mode)
	r.give(got)
	return out, true
}

func (r *halvingRun) result(first, end int64) []byte {
	return r.w.f.self.Segment[r.op.OutOffset+first*r.size : r.op.OutOffset+end*r.size]
}
