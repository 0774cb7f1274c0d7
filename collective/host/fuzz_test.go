// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"log/slog"
	"net"
	"testing"
	"time"

	"phalanx"
)

// stash is a sink that looks at what it is given and lets it go.
type stash struct {
	t      *testing.T
	frames int
}

func (s *stash) deliver(f *frame) {
	s.frames++
	if int(f.payload) != len(f.data()) || f.payload > maxPayload || f.group >= groups {
		s.t.Errorf("delivered %+v with %d bytes", f.header, len(f.data()))
	}
	f.free()
}

func (*stash) broken(error) {}

// FuzzLink: a link delivers whole frames of its generation, keeps few of a later one, and breaks at the first byte that is
// none, whatever comes.
func FuzzLink(f *testing.F) {
	gen := phalanx.Generation{Epoch: 1, Number: 7}
	var valid bytes.Buffer
	for _, h := range []header{
		{typ: framePost, gen: gen, source: 1, seq: 1, word: 9},
		{typ: frameData, gen: gen, source: 1, seq: 1, payload: 5},
		{typ: frameAck, gen: gen.Next(), source: 1, seq: 1, chunk: 1 << 60},
		{typ: frameFail, gen: phalanx.Generation{}, seq: 1},
	} {
		var head [headBytes]byte
		h.encode(head[:])
		valid.Write(head[:])
		valid.Write(make([]byte, h.payload))
	}
	f.Add(valid.Bytes(), 3)
	f.Add(bytes.Repeat(valid.Bytes()[:headBytes], 40), 0)
	f.Add(valid.Bytes()[:headBytes+20], 1)
	f.Fuzz(func(t *testing.T, text []byte, early int) {
		here, there := net.Pipe()
		l := NewLink(here, slog.New(slog.DiscardHandler))
		sink := &stash{t: t}
		early = min(max(early, 0), len(text))
		deadline := time.Now().Add(10 * time.Second)
		if err := there.SetWriteDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		_, first := there.Write(text[:early])
		l.in.Lock()
		if n := len(l.in.early); n > maxEarly {
			t.Errorf("%d frames are kept", n)
		}
		l.in.Unlock()
		l.attach(gen, sink)
		_, second := there.Write(text[early:])
		if (first != nil || second != nil) && time.Now().After(deadline) {
			t.Error("the link reads no more and is not broken")
		}
		if err := there.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the link lives on without its connection")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// What the link delivered is what lies in the bytes: a reader of the plain format must agree.
		want, rest := 0, text
		for len(rest) >= headBytes {
			h, err := parseHeader(rest)
			if err != nil || len(rest) < headBytes+int(h.payload) {
				break
			}
			late := len(text)-len(rest)+headBytes+int(h.payload) > early
			if h.gen == gen && late {
				want++
			}
			rest = rest[headBytes+int(h.payload):]
		}
		if sink.frames > want+maxEarly {
			t.Errorf("%d frames were delivered, %d were sent", sink.frames, want)
		}
	})
}

// FuzzOp: whatever a trainer asks for in a group of ranks, with whatever numbers of parts in its segment, while the other member asks for
// the same or for something sound, ends once, here and there, and nothing panics.
func FuzzOp(f *testing.F) {
	add := func(ops ...Op) {
		for _, o := range ops {
			f.Add(uint64(o.Kind), uint64(o.DType), uint64(o.Reduction), o.Count, o.InOffset, o.OutOffset, o.CountsOffset, o.Counts, o.Scale, int32(o.Root), int32(o.Peer), o.Tag, []byte{1, 0, 0, 0, 0, 0, 0, 0, 2}, true)
		}
	}
	add(Op{Kind: AllReduce, DType: F32, Count: 100, OutOffset: 1024}, Op{Kind: ReduceScatter, DType: I8, Count: 7, OutOffset: 100, Reduction: BXor},
		Op{Kind: AllToAll, DType: U16, OutOffset: 1024, Counts: true, CountsOffset: 2048}, Op{Kind: Gather, DType: Bool, Count: 1 << 62, Root: 1},
		Op{Kind: Scatter, DType: F64, Count: 9000, Root: 1}, Op{Kind: Send, DType: U8, Count: 64, Peer: 1}, Op{Kind: Recv, DType: BF16, Count: -1, Peer: 1})
	f.Fuzz(func(t *testing.T, kind, dtype, reduction uint64, count, in, out, at int64, counts, scale bool, root, peer int32, tag uint64, numbers []byte, same bool) {
		c := groupsOf(t, []int{0, 0}, 4096, Options{Timeout: 20 * time.Millisecond})
		defer c.close()
		c.made(t, 1, 0, 1)
		op := Op{Seq: 1, ID: 1, Kind: Kind(kind), DType: DType(dtype), Reduction: Reduction(reduction), Count: count, InOffset: in, OutOffset: out, CountsOffset: at,
			Counts: counts, Scale: scale, Root: phalanx.Rank(root), Peer: phalanx.Rank(peer), Tag: tag}
		other := op
		if !same {
			other = Op{Seq: 1, ID: 1, Kind: AllToAll, DType: U8, Count: 16, OutOffset: 64}
		}
		for r := range c.segments {
			if at >= 0 && at < 4096 {
				copy(c.segments[r][at:], numbers)
			}
		}
		a, b := c.post(0, op), c.post(1, other)
		first, second := await(t, "the one", a), await(t, "the other", b)
		if (first == nil) != (second == nil) && op.Kind != Send && op.Kind != Recv {
			t.Errorf("%+v ended with %v and %v", op, first, second)
		}
	})
}
