// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"phalanx"
	"phalanx/kernels"
)

// A fuzzing process is interrupted in the middle of a read, so only the others are searched for goroutines that are left.
func TestMain(m *testing.M) {
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// defaults are the options of an engine that is given none.
var defaults = New(slog.New(slog.DiscardHandler), Options{}).o

// tb is what *testing.T, *testing.B and *rapid.T have in common here.
type tb interface {
	Helper()
	Fatalf(string, ...any)
}

// cluster is a world in one process: an engine, a segment and a board for each rank, links between hosts.
type cluster struct {
	world    phalanx.World
	hosts    []int // host of each rank
	engines  []*Engine
	segments [][]byte
	boards   [][]byte
	links    map[[2]int]*Link // [from, to]
}

// layout describes a cluster. Slots of rank r are deal[r / groupSize].
type layout struct {
	hosts     []int
	deal      []phalanx.SlotRange
	slots     int
	groupSize int
	bytes     int
	options   Options
	inline    []int64 // Options.Inline of each rank; nil: those of options
	pipe      bool    // net.Pipe instead of TCP
	groups    int     // that a trainer may make
}

func evenDeal(t tb, slots, n int) []phalanx.SlotRange {
	t.Helper()
	deal, err := phalanx.DealSlots(slots, n)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return deal
}

func newCluster(t tb, l layout) *cluster {
	t.Helper()
	n := len(l.hosts)
	g := max(1, l.groupSize)
	c := &cluster{hosts: l.hosts, links: map[[2]int]*Link{}}
	c.world = phalanx.World{Generation: phalanx.Generation{Number: 1}, GroupSize: g, SlotCount: l.slots}
	for r := range n {
		c.world.Seats = append(c.world.Seats, phalanx.Seat{
			Incarnate: phalanx.Incarnate{Member: phalanx.NewMemberID(fmt.Sprint("h", l.hosts[r]), r), Incarnation: 1},
			Rank:      phalanx.Rank(r), Group: r / g, Coordinate: r % g, Slots: l.deal[r/g],
		})
		if l.inline != nil {
			l.options.Inline = l.inline[r]
		}
		c.engines = append(c.engines, New(slog.New(slog.DiscardHandler), l.options))
		c.segments = append(c.segments, kernels.Bytes(make([]uint64, (l.bytes+7)/8)))
		c.boards = append(c.boards, kernels.Bytes(make([]uint64, (int64(BoardBytes)+GroupBytes(l.groups))/8)))
	}
	for a := range n {
		for b := range a {
			if c.hosts[a] != c.hosts[b] {
				x, y := connect(t, l.pipe)
				c.links[[2]int{a, b}] = NewLink(x, slog.New(slog.DiscardHandler))
				c.links[[2]int{b, a}] = NewLink(y, slog.New(slog.DiscardHandler))
			}
		}
	}
	return c
}

func connect(t tb, pipe bool) (a, b net.Conn) {
	t.Helper()
	if pipe {
		return net.Pipe()
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := ln.Accept()
		accepted <- conn
	}()
	a, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatalf("%v", err)
	}
	if b = <-accepted; b == nil {
		t.Fatalf("no connection accepted")
	}
	return a, b
}

func (c *cluster) form(t tb, r int) {
	t.Helper()
	if err := c.formErr(r); err != nil {
		t.Fatalf("%v", err)
	}
}

func (c *cluster) formErr(r int) error {
	var locals []LocalPeer
	var remotes []RemotePeer
	for p := range c.engines {
		switch {
		case p == r:
		case c.hosts[p] == c.hosts[r]:
			locals = append(locals, LocalPeer{phalanx.Rank(p), c.segments[p], c.boards[p], c.engines[p].Wake})
		default:
			remotes = append(remotes, RemotePeer{phalanx.Rank(p), c.links[[2]int{r, p}]})
		}
	}
	return c.engines[r].Form(c.world, Self{phalanx.Rank(r), c.segments[r], c.boards[r]}, locals, remotes)
}

func (c *cluster) formAll(t tb) {
	t.Helper()
	for r := range c.engines {
		c.form(t, r)
	}
}

func (c *cluster) close() {
	for _, e := range c.engines {
		e.Close()
	}
	for _, l := range c.links {
		_ = l.Close()
	}
}

// post starts an operation and returns where its error will come.
func (c *cluster) post(r int, op Op) <-chan error {
	done := make(chan error, 1) // 1: done is called once
	c.engines[r].Post(c.world.Generation, op, func(err error) { done <- err })
	return done
}

const patience = 30 * time.Second

func await(t tb, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("%s: nothing after %s", what, patience)
		return nil
	}
}

// all posts on every rank, in the given order, and returns the errors by rank.
func (c *cluster) all(t tb, order []int, op func(r int) Op) []error {
	t.Helper()
	done := make([]<-chan error, len(c.engines))
	for _, r := range order {
		done[r] = c.post(r, op(r))
	}
	errs := make([]error, len(done))
	for r, d := range done {
		errs[r] = await(t, fmt.Sprint("rank ", r), d)
	}
	return errs
}

func (c *cluster) mustAll(t tb, order []int, op func(r int) Op) {
	t.Helper()
	for r, err := range c.all(t, order, op) {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

func ranks(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// leaves holds one buffer of elements for each slot, as raw bytes.
type leaves struct {
	d      DType
	count  int
	slots  int
	values [][]byte
}

const drawn = 4099

// newLeaves draws values of very different sizes, zeros of both signs and, rarely, what is no number.
func newLeaves(rng *rand.Rand, d DType, slots, count int) *leaves {
	l := &leaves{d: d, count: count, slots: slots}
	for range slots {
		b := make([]byte, int64(count)*d.Size())
		f := make([]float32, count)
		for i := range f {
			// Big buffers repeat with a period that divides no block, chunk or shard: drawing is slow.
			if i >= drawn {
				f[i] = f[i-drawn]
				continue
			}
			switch rng.IntN(40) {
			case 0:
				f[i] = float32(math.Copysign(0, -1))
			case 1:
				f[i] = 0
			case 2:
				f[i] = float32(math.NaN())
			case 3:
				f[i] = float32(math.Inf(1 - 2*rng.IntN(2)))
			default:
				f[i] = float32(rng.NormFloat64() * math.Exp(4*rng.NormFloat64()))
			}
		}
		switch d {
		case F32:
			copy(b, kernels.Bytes(f))
		case F64:
			for i, v := range f {
				f64s(b)[i] = float64(v) * (1 + 0x1p-40*float64(i))
			}
		case I64:
			for i := range f {
				i64s(b)[i] = int64(mix(rng.Uint64()))
			}
		case BF16:
			kernels.BF16FromF32(u16s(b), f)
		case F16:
			kernels.F16FromF32(u16s(b), f)
		default: // the step sums no others
		}
		l.values = append(l.values, b)
	}
	return l
}

// wide returns a buffer of elements in accumulator type.
func wide(d DType, b []byte) []byte {
	if d != BF16 && d != F16 {
		return bytes.Clone(b)
	}
	out := make([]float32, len(b)/2)
	if d == BF16 {
		kernels.F32FromBF16(out, u16s(b))
	} else {
		kernels.F32FromF16(out, u16s(b))
	}
	return kernels.Bytes(out)
}

func addInto(d DType, a, b []byte) []byte {
	switch d.accumulator() {
	case F32:
		kernels.AddF32(f32s(a), f32s(a), f32s(b))
	case F64:
		kernels.AddF64(f64s(a), f64s(a), f64s(b))
	case I64:
		kernels.AddI64(i64s(a), i64s(a), i64s(b))
	default: // no accumulator is narrower
	}
	return a
}

func narrow(d DType, b []byte) []byte {
	if d != BF16 && d != F16 {
		return b
	}
	out := make([]uint16, len(b)/4)
	if d == BF16 {
		kernels.BF16FromF32(out, f32s(b))
	} else {
		kernels.F16FromF32(out, f32s(b))
	}
	return kernels.Bytes(out)
}

// value is the oracle: the value of a node by plain recursion, in accumulator type, over what supplied gives.
func (l *leaves) value(n phalanx.Node, supplied func(phalanx.Node) []byte) []byte {
	if b := supplied(n); b != nil {
		return wide(l.d, b)
	}
	left, right := phalanx.SlotTree{Slots: l.slots}.Children(n)
	return addInto(l.d, l.value(left, supplied), l.value(right, supplied))
}

// supply is what a trainer computes for a node: the sum of its leaves, in the type of the elements.
func (l *leaves) supply(n phalanx.Node) []byte {
	return narrow(l.d, l.value(n, func(n phalanx.Node) []byte {
		if n.Len() == 1 {
			return l.values[n.First]
		}
		return nil
	}))
}

// sum is the expected result for a deal.
func (l *leaves) sum(deal []phalanx.SlotRange, scale bool) []byte {
	tree := phalanx.SlotTree{Slots: l.slots}
	supplied := map[phalanx.Node][]byte{}
	for _, r := range deal {
		for _, n := range tree.Cover(r) {
			supplied[n] = l.supply(n)
		}
	}
	b := l.value(tree.Root(), func(n phalanx.Node) []byte { return supplied[n] })
	if scale {
		switch l.d.accumulator() {
		case F32:
			kernels.ScaleF32(f32s(b), f32s(b), float32(1/float64(l.slots)))
		case F64:
			kernels.ScaleF64(f64s(b), f64s(b), 1/float64(l.slots))
		default: // integers are not scaled
		}
	}
	return narrow(l.d, b)
}

const pad = 64

func round64(n int64) int64 { return (n + pad - 1) / pad * pad }

// sumBytes is a segment size that place needs.
func sumBytes(d DType, count, nodes int) int {
	return int(round64(int64(count)*d.Size()))*(nodes+1) + pad
}

// place writes a rank's buffers into its segment and returns the operation. With inPlace the result replaces buffer 0.
func (c *cluster) place(r int, l *leaves, kind Kind, scale, inPlace bool) Op {
	tree := phalanx.SlotTree{Slots: l.slots}
	cover := tree.Cover(c.world.Seats[r].Slots)
	stride := round64(int64(l.count) * l.d.Size())
	op := Op{
		Seq: 7, Kind: kind, DType: l.d, Count: int64(l.count), InOffset: pad, InStride: stride, InNodes: len(cover),
		OutOffset: pad + stride*int64(len(cover)), Scale: scale,
	}
	if inPlace {
		op.OutOffset = pad
		if kind == ReduceScatter {
			first, _ := Shard(op.Count, len(c.engines), r)
			op.OutOffset += first * l.d.Size()
		}
	}
	for k, n := range cover {
		copy(c.segments[r][pad+stride*int64(k):], l.supply(n))
	}
	return op
}

func (c *cluster) out(r int, op Op) []byte {
	return c.segments[r][op.OutOffset:][:op.outElements(len(c.engines), r)*op.DType.Size()]
}

func differ(t tb, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %02x, want %02x", what, i, len(want), got[i], want[i])
		}
	}
}

func wantErr(t *testing.T, err, want error, parts ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want one that wraps %v", err, want)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not name %q", err, p)
		}
	}
}
