// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"phalanx"
	"phalanx/kernels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a state that donors and sinks share.
type memory struct {
	layout  []phalanx.TensorInfo
	content [][]byte
	mu      sync.Mutex
	times   map[string]int // how often each place was written
}

func newMemory(fill byte) *memory {
	m := &memory{times: map[string]int{}, layout: []phalanx.TensorInfo{
		{Name: "w", DType: "f32", Shape: []int{1000, 13}}, {Name: "none", DType: "f32", Shape: []int{0}}, {Name: "b", DType: "u8", Shape: []int{777}},
	}}
	for _, t := range m.layout {
		p := make([]byte, t.Bytes())
		for i := range p {
			p[i] = fill * byte(i%251)
		}
		m.content = append(m.content, p)
	}
	return m
}

func (m *memory) Write(tensor int, off int64, p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.times[fmt.Sprint(tensor, off)]++
	copy(m.content[tensor][off:], p)
	return nil
}

func (m *memory) digests() []phalanx.Digest {
	var d []phalanx.Digest
	for i, t := range m.layout {
		d = append(d, kernels.TensorDigest(0, kernels.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: m.content[i]}))
	}
	return d
}

func (m *memory) verify(_ context.Context, want []phalanx.Digest) error {
	for i, d := range m.digests() {
		if d != want[i] {
			return fmt.Errorf("tensor %s has %s, donors have %s", m.layout[i].Name, d, want[i])
		}
	}
	return nil
}

// donor serves a memory, with a hook before each read.
type donor struct {
	*memory
	index int
	hook  func(ctx context.Context, n int64) error
	reads atomic.Int64
}

func (d *donor) Member() phalanx.Incarnate {
	return phalanx.Incarnate{Member: phalanx.NewMemberID("host", d.index), Incarnation: 1}
}

func (d *donor) Digests(context.Context) ([]phalanx.Digest, error) { return d.digests(), nil }

func (d *donor) Read(ctx context.Context, tensor int, off int64, p []byte) error {
	if d.hook != nil {
		if err := d.hook(ctx, d.reads.Add(1)); err != nil {
			return err
		}
	}
	copy(p, d.content[tensor][off:])
	return nil
}

func fetchFrom(t *testing.T, o Options, donors ...*donor) (*memory, Report, error) {
	t.Helper()
	sink := newMemory(0)
	if o.ChunkBytes == 0 {
		o.ChunkBytes = 500
	}
	o.Verify = sink.verify
	var all []Donor
	for i, d := range donors {
		d.index = i
		all = append(all, d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	report, err := Fetch(ctx, all, sink.layout, sink, o)
	for place, n := range sink.times {
		if n != 1 {
			t.Fatalf("%s was written %d times", place, n)
		}
	}
	return sink, report, err
}

func TestFetchSharesTheWork(t *testing.T) {
	m := newMemory(1)
	slow := func(ctx context.Context, _ int64) error { // so that nobody is done before others begin
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
			return nil
		}
	}
	_, report, err := fetchFrom(t, Options{}, &donor{memory: m, hook: slow}, &donor{memory: m, hook: slow}, &donor{memory: m, hook: slow})
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, s := range report.Shares {
		if s.Bytes == 0 || s.Err != nil {
			t.Errorf("%+v", s)
		}
		total += s.Bytes
	}
	if total != 52_000+777 {
		t.Fatalf("%d bytes", total)
	}
}

func TestFetchSurvivesFailingDonors(t *testing.T) {
	m := newMemory(1)
	broken := errors.New("connection reset")
	failAfter := func(k int64) func(context.Context, int64) error {
		return func(_ context.Context, n int64) error {
			if n > k {
				return broken
			}
			return nil
		}
	}
	_, report, err := fetchFrom(t, Options{}, &donor{memory: m, hook: failAfter(3)}, &donor{memory: m}, &donor{memory: m, hook: failAfter(0)})
	if err != nil {
		t.Fatal(err)
	}
	// The others may finish before it is asked; it is blamed when it was, and gave nothing.
	if s := report.Shares[2]; s.Bytes != 0 || s.Err != nil && !errors.Is(s.Err, broken) {
		t.Fatalf("%+v", s)
	}
	_, report, err = fetchFrom(t, Options{}, &donor{memory: m, hook: failAfter(3)}, &donor{memory: m, hook: failAfter(4)})
	if !errors.Is(err, ErrNoDonor) || !errors.Is(err, broken) || !strings.Contains(err.Error(), "host/0.1") || !strings.Contains(err.Error(), "host/1.1") {
		t.Fatal(err, report)
	}
	if _, _, err := fetchFrom(t, Options{}); !errors.Is(err, ErrNoDonor) {
		t.Fatal(err)
	}
}

func TestFetchDoesNotWaitForAStuckDonor(t *testing.T) {
	// Donor 0 never answers; donor 1 reads its ranges a second time and the stuck reads are cancelled, long before they
	// time out.
	m := newMemory(1)
	stuck := func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }
	_, report, err := fetchFrom(t, Options{ReadTimeout: time.Hour}, &donor{memory: m, hook: stuck}, &donor{memory: m})
	if err != nil || report.Shares[0].Bytes != 0 || report.Shares[0].Err != nil {
		t.Fatal(err, report)
	}
	// Alone, it is given up at its deadline.
	_, _, err = fetchFrom(t, Options{ReadTimeout: 20 * time.Millisecond}, &donor{memory: m, hook: stuck})
	if !errors.Is(err, ErrNoDonor) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestFetchRefusesDonorsThatDisagree(t *testing.T) {
	good, bad := newMemory(1), newMemory(1)
	bad.content[2][5] ^= 1
	sink, _, err := fetchFrom(t, Options{}, &donor{memory: good}, &donor{memory: bad}, &donor{memory: good})
	var disagree *DisagreeError
	if !errors.As(err, &disagree) || disagree.Tensor != "b" || len(disagree.Have) != 3 || !strings.Contains(err.Error(), "host/1.1 has") {
		t.Fatal(err)
	}
	if len(sink.times) != 0 {
		t.Fatal("bytes of a disputed state were written")
	}
}

func TestFetchVerifies(t *testing.T) {
	m := newMemory(1)
	d := &donor{memory: m, hook: func(context.Context, int64) error { return nil }}
	lying := lyingDonor{d}
	sink := newMemory(0)
	_, err := Fetch(t.Context(), []Donor{lying}, sink.layout, sink, Options{Verify: sink.verify})
	if !errors.Is(err, ErrNotVerified) || !strings.Contains(err.Error(), "host/0.1") {
		t.Fatal(err)
	}
}

// lyingDonor flips a bit on the way.
type lyingDonor struct{ *donor }

func (l lyingDonor) Read(ctx context.Context, tensor int, off int64, p []byte) error {
	err := l.donor.Read(ctx, tensor, off, p)
	p[0] ^= 1
	return err
}

func TestFetchEnds(t *testing.T) {
	m := newMemory(1)
	ctx, cancel := context.WithCancel(t.Context())
	d := &donor{memory: m, hook: func(ctx context.Context, n int64) error {
		if n == 5 {
			cancel()
			<-ctx.Done()
		}
		return ctx.Err()
	}}
	if _, err := Fetch(ctx, []Donor{d}, m.layout, newMemory(0), Options{ChunkBytes: 100}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := Fetch(t.Context(), []Donor{&donor{memory: m}}, m.layout, full{}, Options{}); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write(int, int64, []byte) error { return errFull }

// A read whose range another donor has finished before it began is not begun: who finished could not cancel it yet.
func TestFetchDoesNotBeginWhatIsDone(t *testing.T) {
	m := newMemory(1)
	asked := false
	late := &donor{memory: m, hook: func(ctx context.Context, _ int64) error { asked = true; <-ctx.Done(); return ctx.Err() }}
	f := &fetch{donors: []Donor{late, &donor{memory: m}}, options: Options{ReadTimeout: time.Hour}, schedule: NewSchedule([]Range{{Length: 10}}, 2),
		shares: make([]Share, 2), cancels: map[reader]context.CancelFunc{}, changed: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	i, first := f.schedule.Next(0)
	j, second := f.schedule.Next(1)
	if wanted, _ := f.schedule.Done(1, j); !first || !second || i != j || !wanted {
		t.Fatal(i, first, j, second, wanted)
	}
	if f.read(ctx, 0, i, make([]byte, 10)) || asked || ctx.Err() != nil {
		t.Fatalf("asked %v, %v", asked, ctx.Err())
	}
}
