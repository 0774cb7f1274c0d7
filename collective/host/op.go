// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"

	"phalanx"
)

// ErrMismatch is returned to every member of an operation whose members asked for different things. The message names
// two ranks that differ. The group does nothing more in this generation.
var ErrMismatch = errors.New("members asked for different collectives")

// ErrDeadline is returned when an operation made no progress for Options.Timeout. The message names the ranks waited for.
var ErrDeadline = errors.New("collective made no progress")

// ErrPeer is returned when another member gave the operation up, or its link broke. It says nothing against this member:
// its trainer does not hold the result, and asks again in the next generation.
var ErrPeer = errors.New("peer gave up")

// ErrInvalid is returned for an operation that does not fit the segment, the world or the rules of its kind.
var ErrInvalid = errors.New("invalid collective")

// Kind says what an operation does. The numbers are those of the control page.
type Kind uint64

// The kinds of operations.
const (
	// AllReduce sums over the slot tree; every member gets the whole sum at OutOffset.
	AllReduce Kind = 1
	// ReduceScatter sums over the slot tree; member i gets the elements [Shard] gives it, at OutOffset.
	ReduceScatter Kind = 2
	// AllGather gives every member the Count elements of all members, in rank order, at OutOffset.
	AllGather Kind = 3
	// Broadcast gives every member the Count elements of Root at OutOffset; the root's own copy included.
	Broadcast Kind = 4
	// Barrier ends when all members have entered it.
	Barrier Kind = 5
	// Reduce gives the root what AllReduce gives everybody. This one and the kinds below are for groups of ranks.
	Reduce Kind = 6
	// Gather gives the root what AllGather gives everybody.
	Gather Kind = 7
	// Scatter gives every member its part of the root's input.
	Scatter Kind = 8
	// AllToAll gives every member its part of everybody's input.
	AllToAll Kind = 9
	// Send gives the input to Peer, which receives it.
	Send Kind = 10
	// Recv takes what Peer sends.
	Recv Kind = 11
)

func (k Kind) String() string {
	switch k {
	case AllReduce:
		return "all_reduce"
	case ReduceScatter:
		return "reduce_scatter"
	case AllGather:
		return "all_gather"
	case Broadcast:
		return "broadcast"
	case Barrier:
		return "barrier"
	case Reduce:
		return "reduce"
	case Gather:
		return "gather"
	case Scatter:
		return "scatter"
	case AllToAll:
		return "all_to_all"
	case Send:
		return "send"
	case Recv:
		return "recv"
	}
	return fmt.Sprintf("kind %d", uint64(k))
}

// DType is the type of the elements in the segments. The numbers are those of the control page.
type DType uint64

// The element types. BF16 and F16 are summed as float32 and rounded once at the end.
const (
	F32  DType = 1
	F64  DType = 2
	I64  DType = 3
	BF16 DType = 4
	F16  DType = 5
	// The types below are for groups of ranks. Bool is a byte: 0 is false and any other is true; results are 0 or 1.
	U8   DType = 6
	I8   DType = 7
	I16  DType = 8
	I32  DType = 9
	Bool DType = 10
	U16  DType = 11
	U32  DType = 12
	U64  DType = 13
)

// Size is the number of bytes of an element, 0 when the type is unknown.
func (d DType) Size() int64 {
	switch d {
	case F32, I32, U32:
		return 4
	case F64, I64, U64:
		return 8
	case BF16, F16, I16, U16:
		return 2
	case U8, I8, Bool:
		return 1
	}
	return 0
}

// float reports whether the elements are floating point numbers.
func (d DType) float() bool { return d == F32 || d == F64 || d == BF16 || d == F16 }

// Reduction says how two elements become one. The numbers are those of the control page.
type Reduction uint64

// The reductions. Integers wrap. Min and Max give what is not a number if either operand is. BAnd, BOr and BXor are for
// integers and Bool.
const (
	Sum     Reduction = 0
	Product Reduction = 1
	Min     Reduction = 2
	Max     Reduction = 3
	BAnd    Reduction = 4
	BOr     Reduction = 5
	BXor    Reduction = 6
)

// The groups of ranks that an operation can run among.
const (
	// GroupReplicas is all seats with the coordinate of this one: the group that sums gradients.
	GroupReplicas = 0
	// GroupWorld is all seats. With a group size above 1 it cannot sum over slots: several seats hold the same ones.
	GroupWorld = 1

	groups = 2
	// groupMade is the group in the frames of groups that trainers made; those carry the id.
	groupMade = groups
)

// Op is one operation as the trainer's descriptor gives it. Offsets and strides are bytes in the member's own segment;
// they need not agree between members, everything else must.
type Op struct {
	// Seq is the number of the descriptor; it only appears in messages. Operations are matched between members by their
	// order within the group and generation, so members that joined at different times agree.
	Seq   uint64
	Kind  Kind
	DType DType
	Group int
	// ID names a group that was made with Engine.Make, instead of Group; 0: none. What follows is for those only.
	ID uint64
	// Reduction is what reducing kinds do to two elements.
	Reduction Reduction
	// Peer and Tag are for Send and Recv.
	Peer phalanx.Rank
	Tag  uint64
	// Counts says that the parts of ReduceScatter, AllGather, Gather, Scatter and AllToAll differ in size. At CountsOffset lie
	// their numbers of elements in member order, int64, equal on all members; for AllToAll those that are sent and then those
	// that are received. Count is not used then.
	Counts       bool
	CountsOffset int64

	// Root is the rank that rooted kinds read from or write to; it must be in the group.
	Root phalanx.Rank
	// Count is the number of elements of one input buffer. In groups that were made it is that of one part.
	Count int64
	// InOffset is where the first input buffer starts; the k-th starts InStride·k further on.
	InOffset, InStride int64
	// InNodes is the number of input buffers. For AllReduce and ReduceScatter it must be the number of nodes in
	// SlotTree.Cover of the seat's slots; otherwise it is not looked at.
	InNodes int
	// OutOffset is where the result goes. It may be equal to the place of an input buffer, or apart from all of them.
	OutOffset int64
	// Scale multiplies the sum once by 1/S at the root of the tree: rounded to float32 for F32, BF16 and F16, as float64
	// for F64, not at all for I64.
	Scale bool
}

// Shard returns the elements [first, end) of count that member i of n owns: a balanced split at multiples of 16 elements,
// so that shards of every type start at a multiple of 32 bytes.
func Shard(count int64, n, i int) (first, end int64) {
	const align = 16
	units := count / align
	if count%align != 0 {
		units++
	}
	first, end = units*int64(i)/int64(n)*align, units*int64(i+1)/int64(n)*align
	return min(first, count), min(end, count)
}

// sums reports whether the kind reduces.
func (op *Op) sums() bool {
	return op.Kind == AllReduce || op.Kind == ReduceScatter || op.Kind == Reduce
}

// outElements is how many elements member i of n gets.
func (op *Op) outElements(n, i int) int64 {
	switch op.Kind {
	case AllReduce, Broadcast:
		return op.Count
	case ReduceScatter:
		first, end := Shard(op.Count, n, i)
		return end - first
	case AllGather:
		return op.Count * int64(n)
	default: // a barrier carries nothing
		return 0
	}
}

// sig is equal exactly when two members asked for the same, up to a chance of 2^-64. It is never 0.
func (op *Op) sig(o Options) uint64 {
	root, scale := uint64(0), uint64(0)
	if op.Kind == Broadcast {
		root = uint64(op.Root)
	}
	if op.Scale && op.sums() {
		scale = 1
	}
	h := uint64(0x5048584c)
	for _, v := range [...]uint64{uint64(op.Kind), uint64(op.DType), uint64(op.Count), root, scale, uint64(o.DirectMax), uint64(o.OneRoundMax)} {
		h = mix(h ^ v)
	}
	return h | 1
}

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// check refuses what does not fit. segment is the length of the member's segment, n and me its place in the group, cover
// the number of buffers that its slots need.
func (op *Op) check(segment int64, n, me, cover int, root bool) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s %d: "+format+": %w", append(append([]any{op.Kind, op.Seq}, args...), ErrInvalid)...)
	}
	if op.Kind < AllReduce || op.Kind > Barrier {
		return bad("kind is not for a group of the step")
	}
	if op.Kind == Barrier {
		return nil
	}
	size := op.DType.Size()
	if op.DType > F16 || size == 0 {
		return bad("element type %d is not for a group of the step", op.DType)
	}
	if op.Reduction != Sum {
		return bad("reduction %d is not for a group of the step", op.Reduction)
	}
	if op.Count < 0 || op.Count > segment/size {
		return bad("%d elements of %d bytes in a segment of %d bytes", op.Count, size, segment)
	}
	buffers := op.buffers(root)
	if op.sums() && op.InNodes != cover {
		return bad("%d input buffers, the slots of this seat need %d", op.InNodes, cover)
	}
	bytes := op.Count * size
	if buffers > 0 {
		if err := fits(segment, size, op.InOffset, op.InStride, buffers, bytes); err != nil {
			return bad("input: %v", err)
		}
	}
	out := op.outElements(n, me) * size
	if err := fits(segment, size, op.OutOffset, 0, 1, out); err != nil {
		return bad("output: %v", err)
	}
	return op.checkOverlap(buffers, bytes, out, n, me, bad)
}

// checkOverlap allows a result to take the place of an input exactly, where every element is read before it is written
// and no other member reads what is written; any other overlap would feed results back into sums.
func (op *Op) checkOverlap(buffers int, in, out int64, n, me int, bad func(string, ...any) error) error {
	if in == 0 || out == 0 {
		return nil
	}
	place := op.OutOffset // where the input lies if the operation is in place
	switch op.Kind {
	case ReduceScatter:
		first, _ := Shard(op.Count, n, me)
		place -= first * op.DType.Size()
	case AllGather:
		place += int64(me) * in
	default: // at the output itself
	}
	for k := range buffers {
		at := op.InOffset + int64(k)*op.InStride
		apart := op.OutOffset+out <= at || at+in <= op.OutOffset
		if !apart && at != place {
			return bad("output at %d overlaps input %d at %d", op.OutOffset, k, at)
		}
	}
	return nil
}

// buffers is how many input buffers the member has.
func (op *Op) buffers(root bool) int {
	switch {
	case op.sums():
		return op.InNodes
	case op.Kind == AllGather, op.Kind == Broadcast && root:
		return 1
	}
	return 0
}

// fits reports whether n buffers of the given bytes lie inside a segment, aligned to their elements.
func fits(segment, size, offset, stride int64, n int, bytes int64) error {
	if n == 1 {
		stride = 0 // not used
	}
	if offset < 0 || offset%size != 0 || stride < 0 || stride%size != 0 {
		return fmt.Errorf("offset %d, stride %d: want multiples of %d", offset, stride, size)
	}
	if n > 1 && stride < bytes {
		return fmt.Errorf("stride %d below the %d bytes of a buffer", stride, bytes)
	}
	if n < 0 || bytes > segment || offset > segment-bytes || n > 1 && stride > (segment-bytes-offset)/int64(n-1) {
		return fmt.Errorf("%d buffers of %d bytes at %d, stride %d, exceed the segment of %d bytes", n, bytes, offset, stride, segment)
	}
	return nil
}
