// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"slices"

	"phalanx/kernels"
)

// shape is what an operation of a group that was made means for one of its members: which parts its buffers have. Everything
// is in elements. The memory that the numbers of parts come from may change at any time, so they are read once.
type shape struct {
	// send and recv are where the parts begin that go to the members, and that come from them, and where the last one ends. Only
	// AllToAll has two different ones.
	send, recv []int64
	in, out    int64 // sizes of the buffers
	largest    int64 // the largest input that any member has, when all can tell; otherwise maxInt
}

const untold = int64(1) << 62

// parts returns where parts begin.
func parts(counts []int64) []int64 {
	at := make([]int64, len(counts)+1)
	for i, c := range counts {
		at[i+1] = at[i] + c
	}
	return at
}

// shapeOf reads what member me of n has to do, or says what is wrong. segment is that member's memory: where its numbers of
// parts are read, and where its buffers have to lie.
func (op *Op) shapeOf(segment []byte, n, me, root int) (*shape, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s %d: "+format+": %w", append(append([]any{op.Kind, op.Seq}, args...), ErrInvalid)...)
	}
	size, room := op.DType.Size(), int64(len(segment))
	counted := op.Counts && op.parted()
	switch {
	case op.Kind < AllReduce || op.Kind > AllToAll:
		return nil, bad("unknown kind")
	case op.Kind == Barrier:
		return &shape{}, nil
	case size == 0:
		return nil, bad("unknown element type %d", op.DType)
	case op.rooted() && root < 0:
		return nil, bad("root %d is not in the group", op.Root)
	case op.sums() && !op.reduces():
		return nil, bad("reduction %d, mean %t is not for element type %d", op.Reduction, op.Scale, op.DType)
	case op.Count < 0 || !counted && op.Count > room/size:
		return nil, bad("%d elements of %d bytes in a segment of %d bytes", op.Count, size, room)
	}
	s := &shape{}
	if op.parted() {
		sent, received, err := op.countsOf(segment, n)
		if err != nil {
			return nil, bad("%v", err)
		}
		s.send, s.recv = parts(sent), parts(received)
	}
	whole := func(at []int64) int64 { return at[n] }
	own := func(at []int64) int64 { return at[me+1] - at[me] }
	switch op.Kind {
	case AllReduce:
		s.in, s.out, s.largest = op.Count, op.Count, op.Count
	case Reduce:
		s.in, s.largest = op.Count, op.Count
		if me == root {
			s.out = op.Count
		}
	case Broadcast:
		s.out, s.largest = op.Count, op.Count
		if me == root {
			s.in = op.Count
		}
	case ReduceScatter:
		s.in, s.out, s.largest = whole(s.send), own(s.send), whole(s.send)
	case AllGather, Gather:
		s.in = own(s.send)
		if op.Kind == AllGather || me == root {
			s.out = whole(s.send)
		}
		for i := range n {
			s.largest = max(s.largest, s.send[i+1]-s.send[i])
		}
	case Scatter:
		s.out, s.largest = own(s.send), whole(s.send)
		if me == root {
			s.in = whole(s.send)
		}
	case AllToAll:
		s.in, s.out, s.largest = whole(s.send), whole(s.recv), whole(s.send)
		if op.Counts {
			s.largest = untold
		}
	default: // a barrier was dealt with
	}
	if err := fits(room, size, op.InOffset, 0, 1, s.in*size); s.in > 0 && err != nil {
		return nil, bad("input: %v", err)
	}
	if err := fits(room, size, op.OutOffset, 0, 1, s.out*size); s.out > 0 && err != nil {
		return nil, bad("output: %v", err)
	}
	if !s.apart(op, me, root) {
		return nil, bad("output at %d overlaps the input at %d", op.OutOffset, op.InOffset)
	}
	return s, nil
}

// apart allows a result to lie exactly where the own part of the input does, as Op.checkOverlap.
func (s *shape) apart(op *Op, me, root int) bool {
	size := op.DType.Size()
	in, out := s.in*size, s.out*size
	if in == 0 || out == 0 || op.OutOffset+out <= op.InOffset || op.InOffset+in <= op.OutOffset {
		return true
	}
	switch op.Kind {
	case AllReduce, Reduce, Broadcast:
		return op.OutOffset == op.InOffset
	case ReduceScatter, Scatter:
		return op.OutOffset == op.InOffset+s.send[me]*size
	case AllGather, Gather:
		return op.InOffset == op.OutOffset+s.send[me]*size
	default:
		return false
	}
}

// rooted reports whether the kind has a root.
func (op *Op) rooted() bool {
	return op.Kind == Broadcast || op.Kind == Reduce || op.Kind == Gather || op.Kind == Scatter
}

// parted reports whether a buffer of the kind has a part for each member.
func (op *Op) parted() bool {
	switch op.Kind {
	case ReduceScatter, AllGather, Gather, Scatter, AllToAll:
		return true
	default:
		return false
	}
}

// reduces reports whether the reduction is one for the element type.
func (op *Op) reduces() bool {
	switch {
	case op.Reduction > BXor:
		return false
	case op.Reduction >= BAnd && op.DType.float():
		return false
	}
	return !op.Scale || op.Reduction == Sum && op.DType.float()
}

// countsOf reads the numbers of elements of the parts. Their sums in bytes do not overflow.
func (op *Op) countsOf(segment []byte, n int) (sent, received []int64, err error) {
	most := int64(1) << 55 / op.DType.Size() // beyond any memory; a buffer that has all parts is compared with its segment
	if !op.Counts {
		if op.Count > most/int64(n) {
			return nil, nil, fmt.Errorf("%d parts of %d elements", n, op.Count)
		}
		sent = slices.Repeat([]int64{op.Count}, n)
		return sent, sent, nil
	}
	numbers := int64(n)
	if op.Kind == AllToAll {
		numbers *= 2
	}
	if err := fits(int64(len(segment)), 8, op.CountsOffset, 0, 1, 8*numbers); err != nil {
		return nil, nil, fmt.Errorf("numbers of elements: %w", err)
	}
	all := slices.Clone(kernels.I64s(segment[op.CountsOffset:][:8*numbers]))
	for _, part := range [][]int64{all[:n], all[len(all)-n:]} {
		left := most
		for i, c := range part {
			if c < 0 || c > left {
				return nil, nil, fmt.Errorf("part %d of %d elements", i, c)
			}
			left -= c
		}
	}
	return all[:n], all[len(all)-n:], nil
}

// groupSig is Op.sig for a group that was made: it also says which ranks that is and, where all members have the same numbers of
// elements, which.
func (op *Op) groupSig(o Options, ranks uint64, s *shape) uint64 {
	fields := []uint64{uint64(op.Kind), ranks, uint64(o.OneRoundMax)}
	if op.Kind != Barrier {
		fields = append(fields, uint64(op.DType))
	}
	if op.rooted() {
		fields = append(fields, uint64(op.Root))
	}
	if op.sums() {
		fields = append(fields, uint64(op.Reduction))
		if op.Scale {
			fields = append(fields, 1)
		}
	}
	switch {
	case op.Kind == AllToAll && op.Counts: // differ by right, and are compared in pairs
	case op.parted():
		for _, at := range s.send {
			fields = append(fields, uint64(at))
		}
	default:
		fields = append(fields, uint64(op.Count))
	}
	h := uint64(0x50485847)
	for _, v := range fields {
		h = mix(h ^ v)
	}
	return h | 1
}

// stepShape is the shape of an operation of a group of the step, once that was checked.
func (op *Op) stepShape(n, me, root int) *shape {
	s := &shape{out: op.outElements(n, me)}
	counts := make([]int64, n)
	switch op.Kind {
	case ReduceScatter:
		for i := range counts {
			first, end := Shard(op.Count, n, i)
			counts[i] = end - first
		}
		s.send = parts(counts)
	case AllGather:
		s.send = parts(slices.Repeat([]int64{op.Count}, n))
	default: // one part
	}
	if op.Kind != Barrier && (op.Kind != Broadcast || me == root) {
		s.in = op.Count
	}
	return s
}

// reduced returns the elements that member i of n reduces.
func (s *shape) reduced(op *Op, n, i, root int) (first, end int64) {
	switch op.Kind {
	case AllReduce:
		return Shard(op.Count, n, i)
	case ReduceScatter:
		return s.send[i], s.send[i+1]
	case Reduce:
		if i == root {
			return 0, op.Count
		}
	default: // reduces nothing
	}
	return 0, 0
}

// get returns what member me takes from the input of member i: where it begins there, where it goes in the output, and how much it is.
// theirs is the shape of member i; it is needed for AllToAll alone.
func (s *shape) get(op *Op, me, i, root int, theirs *shape) (from, at, elements int64) {
	switch op.Kind {
	case AllGather, Gather:
		if op.Kind == AllGather || me == root {
			return 0, s.send[i], s.send[i+1] - s.send[i]
		}
	case Scatter:
		if i == root {
			return s.send[me], 0, s.send[me+1] - s.send[me]
		}
	case Broadcast:
		if i == root {
			return 0, 0, op.Count
		}
	case AllToAll:
		if theirs != nil {
			from = theirs.send[me]
		}
		return from, s.recv[i], s.recv[i+1] - s.recv[i]
	default: // takes what was reduced
	}
	return 0, 0, 0
}

// give returns what member me gives to member i from its input.
func (s *shape) give(op *Op, me, i, root int) (from, elements int64) {
	switch op.Kind {
	case AllGather, Gather:
		if op.Kind == AllGather || i == root {
			return 0, s.send[me+1] - s.send[me]
		}
	case Scatter:
		if me == root {
			return s.send[i], s.send[i+1] - s.send[i]
		}
	case Broadcast:
		if me == root {
			return 0, op.Count
		}
	case AllToAll:
		return s.send[i], s.send[i+1] - s.send[i]
	default: // gives what was reduced
	}
	return 0, 0
}
