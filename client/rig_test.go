// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// rig is a client over heap memory; the test plays the daemon. Inside a synctest bubble settle returns once the client can
// only go on by another write of the daemon, so every test has one order of events.
type rig struct {
	*testing.T
	*Client
	page         *wire.Page
	own, daemon  wire.Bell
	segment      []byte
	slab         []byte
	w            []float32 // the state: weights
	count        []int64   // and the number of optimizer steps
	applied      []phalanx.Step
	applyErr     error
	beforeApply  func()
	coordinates  []int
	daemonAlive  atomic.Bool
	healOffset   int64
	digestOffset int64
}

const (
	testElements = 5
	testSlots    = 8
	testLast     = 3
	testStart    = 4711
)

func testSpec() phalanx.JobSpec {
	return phalanx.JobSpec{LastStep: testLast, Slots: testSlots, GlobalBatch: 16, GroupSize: 1, Seed: 9}
}

// inBubble runs a test with a rig inside a synctest bubble.
func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newRig(t)) })
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, page: wire.NewPage(0, 1), own: wire.NewLocalBell(), daemon: wire.NewLocalBell(),
		w: []float32{1, 2, 3, 4, 5}, count: []int64{0}}
	cfg := r.config()
	r.healOffset = planSegment(Config{Spec: cfg.Spec, GradientElements: testElements, CountElements: DefaultCountElements, ExtraSegmentBytes: cfg.ExtraSegmentBytes}).bytes
	r.digestOffset = r.healOffset + 4096
	r.segment = kernels.Bytes(make([]uint64, (r.healOffset+8192)/8)) // words, so that the memory is aligned as a mapping is
	r.slab = kernels.Bytes(make([]uint64, 1024))
	var err error
	r.daemonAlive.Store(true)
	r.Client, err = Attach(cfg, Memory{Page: r.page, Own: r.own, Daemon: r.daemon, Segment: r.segment, Slabs: [][]byte{r.slab}, TrainerStart: testStart,
		Alive: func(int, uint64) bool { return r.daemonAlive.Load() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	r.page.WriteIdentity(wire.Identity{Member: "host/0", Incarnation: 1, DaemonPID: 1, DaemonStart: 1})
	return r
}

func (r *rig) config() Config {
	return Config{
		Spec: testSpec(), GradientElements: testElements, ExtraSegmentBytes: 256,
		State: []kernels.Tensor{
			{Name: "w", DType: "f32", Shape: []int{len(r.w)}, Data: kernels.Bytes(r.w)},
			{Name: "count", DType: "i64", Shape: []int{1}, Data: kernels.Bytes(r.count)},
		},
		Apply: func(step phalanx.Step) error {
			if r.beforeApply != nil {
				r.beforeApply()
			}
			r.applied = append(r.applied, step)
			if r.applyErr != nil {
				return r.applyErr
			}
			r.count[0] = int64(step)
			r.w[0]++
			return nil
		},
		Coordinate: func(k int) error { r.coordinates = append(r.coordinates, k); return nil },
	}
}

func generation(n uint64) phalanx.Generation { return phalanx.Generation{Number: n} }

// seat gives a seat in a generation whose floor is a label.
func (r *rig) seat(action wire.Action, n uint64, floor phalanx.Label) wire.Seat {
	s := wire.Seat{Generation: generation(n), Action: action, Rank: 0, World: 2, GroupSize: 1, SlotFirst: 0, SlotEnd: 4, SlotCount: testSlots,
		LocalWorld: 2, ResumeStep: floor.Step, ResumeGeneration: floor.Generation, ResumeDigest: floor.Digest, LastStep: testLast}
	r.give(s)
	return s
}

func (r *rig) give(s wire.Seat) {
	r.page.WriteSeat(s)
	r.settle()
}

// settle rings the trainer and waits until it can only go on by another write.
func (r *rig) settle() {
	r.own.Ring()
	synctest.Wait()
}

// call is a method of the client that runs beside the test.
type call[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func start[T any](f func() (T, error)) *call[T] {
	c := &call[T]{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.value, c.err = f()
	}()
	synctest.Wait()
	return c
}

func (c *call[T]) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// must returns the result of a call that has ended without an error.
func must[T any](r *rig, c *call[T]) T {
	r.Helper()
	if !c.ended() {
		r.Fatal("the call has not returned")
	}
	if c.err != nil {
		r.Fatal(c.err)
	}
	return c.value
}

func (r *rig) begin() *call[Begin] {
	return start(func() (Begin, error) { return r.Begin(r.Context()) })
}

func (r *rig) vote(ok bool, d phalanx.Digest) *call[bool] {
	return start(func() (bool, error) { return r.Vote(r.Context(), Vote{OK: ok, Digest: d}) })
}

func (r *rig) commit(n uint64, step phalanx.Step) {
	r.page.WriteCommit(wire.Commit{Generation: generation(n), Step: step})
	r.settle()
}

// step trains one step in a generation whose run seat was given.
func (r *rig) step(n uint64, digest phalanx.Digest) {
	r.Helper()
	b := must(r, r.begin())
	v := r.vote(true, digest)
	r.commit(n, b.Step)
	if !must(r, v) {
		r.Fatalf("step %d was not committed", b.Step)
	}
	if err := r.Apply(); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) label() phalanx.Label {
	a, _ := r.page.ReadApplied()
	return a.Label()
}

func (r *rig) torn() bool {
	a, _ := r.page.ReadApplying()
	b, _ := r.page.ReadApplied()
	h, _ := r.page.ReadHealing()
	return wire.Torn(a, b, h)
}

func (r *rig) wantErr(err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Fatalf("error %v, want %v", err, want)
	}
}

// putDigests writes the expected digests of a state into the segment.
func (r *rig) putDigests(state []kernels.Tensor) {
	for i, t := range state {
		d := kernels.TensorDigest(0, t)
		binary.LittleEndian.PutUint64(r.segment[r.digestOffset+int64(16*i):], d[0])
		binary.LittleEndian.PutUint64(r.segment[r.digestOffset+int64(16*i)+8:], d[1])
	}
}
