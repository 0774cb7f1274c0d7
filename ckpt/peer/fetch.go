// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"phalanx"
)

// Donor is a live member that holds the wanted state and does not change it while it is read. Both reads must end soon
// after their ctx does: Fetch waits for them. They are called by several goroutines at once.
type Donor interface {
	// Member says who it is.
	Member() phalanx.Incarnate
	// Read fills p with the bytes of a tensor from offset off.
	Read(ctx context.Context, tensor int, off int64, p []byte) error
	// Digests returns the D1 digest (seed 0) of every tensor, in layout order.
	Digests(ctx context.Context) ([]phalanx.Digest, error)
}

// Sink takes the bytes of a state. Write is called by several goroutines at once, never twice for the same bytes.
type Sink interface {
	Write(tensor int, off int64, p []byte) error
}

// ErrNoDonor: no donor is left that can be read. errors.Is also finds what the donors returned.
var ErrNoDonor = errors.New("no donor left")

// ErrNotVerified: the bytes that arrived are not those that the donors have digested.
var ErrNotVerified = errors.New("fetched state does not verify")

// DisagreeError: donors hold different states, so none of them is a source. Somebody's numbers are wrong.
type DisagreeError struct {
	Tensor string // the first one that differs
	Have   []Opinion
}

// Opinion is what one donor says about a tensor.
type Opinion struct {
	Member phalanx.Incarnate
	Digest phalanx.Digest
}

func (e *DisagreeError) Error() string {
	var have []string
	for _, o := range e.Have {
		have = append(have, fmt.Sprintf("%s has %s", o.Member, o.Digest))
	}
	return fmt.Sprintf("heal: donors disagree about tensor %.60q: %s; one of them has wrong numbers: compare their machines, and see phalanx status --explain", e.Tensor, strings.Join(have, ", "))
}

// Options tune a fetch; the zero value is the default.
type Options struct {
	ChunkBytes int64 // bytes of one read, 1 MiB
	Parallel   int   // reads in flight at one donor, 2
	// ReadTimeout is how long one read, or one donor's digests, may take before the donor counts as failed, 10 s.
	ReadTimeout time.Duration
	// Agreed is asked with the digests that the donors agree on before the first byte is read; its error ends the fetch.
	Agreed func(digests []phalanx.Digest) error
	// Verify compares what the sink holds with the donors' digests, in layout order. nil: the caller does it afterwards.
	Verify func(ctx context.Context, digests []phalanx.Digest) error
}

// Share is what one donor gave.
type Share struct {
	Member phalanx.Incarnate
	Bytes  int64 // that were used
	Err    error // why it was given up, nil when it was not
}

// Report says what a fetch got, and from whom.
type Report struct {
	Digests []phalanx.Digest // agreed by all donors that answered, in layout order
	Shares  []Share          // in the donors' order
}

// Fetch reads the whole state from the donors into the sink. It returns when every byte is written and verified, when no
// donor is left (ErrNoDonor), when donors disagree (*DisagreeError), when the sink fails, or when ctx ends; no goroutine
// outlives it. After an error the sink holds a mixture that is no state.
func Fetch(ctx context.Context, donors []Donor, layout []phalanx.TensorInfo, sink Sink, o Options) (Report, error) {
	if o.ChunkBytes <= 0 {
		o.ChunkBytes = 1 << 20
	}
	if o.Parallel <= 0 {
		o.Parallel = 2
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 10 * time.Second
	}
	f := &fetch{
		donors: donors, sink: sink, options: o, schedule: NewSchedule(Split(layout, o.ChunkBytes), len(donors)),
		shares: make([]Share, len(donors)), cancels: map[reader]context.CancelFunc{}, changed: make(chan struct{}),
	}
	for d, donor := range donors {
		f.shares[d].Member = donor.Member()
	}
	digests, err := f.agree(ctx, layout)
	if err != nil {
		return Report{Shares: f.shares}, err
	}
	report := Report{Digests: digests, Shares: f.shares}
	if o.Agreed != nil {
		if err := o.Agreed(digests); err != nil {
			return report, err
		}
	}
	if err := f.run(ctx); err != nil {
		return report, err
	}
	if o.Verify != nil {
		if err := o.Verify(ctx, digests); err != nil {
			return report, fmt.Errorf("heal from %s: %w: %w", f.names(), ErrNotVerified, err)
		}
	}
	return report, nil
}

// reader names one read: who reads which range.
type reader struct{ donor, rng int }

type fetch struct {
	donors  []Donor
	sink    Sink
	options Options

	mu       sync.Mutex // guards the fields below; never held over I/O
	schedule *Schedule
	shares   []Share
	cancels  map[reader]context.CancelFunc // of the reads in flight
	changed  chan struct{}                 // closed and replaced when idle readers may find work
}

// agree asks all donors for their digests and compares them. Donors that do not answer are given up.
func (f *fetch) agree(ctx context.Context, layout []phalanx.TensorInfo) ([]phalanx.Digest, error) {
	answers := make([][]phalanx.Digest, len(f.donors))
	var wg sync.WaitGroup
	for d, donor := range f.donors {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, f.options.ReadTimeout)
			defer cancel()
			digests, err := donor.Digests(ctx)
			if err == nil && len(digests) != len(layout) {
				err = fmt.Errorf("it has %d tensors, the layout has %d", len(digests), len(layout))
			}
			if err != nil {
				f.fail(d, fmt.Errorf("digests: %w", err))
				return
			}
			answers[d] = digests
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("heal: %w", err)
	}
	first := slices.IndexFunc(answers, func(a []phalanx.Digest) bool { return a != nil })
	if first < 0 {
		return nil, f.noDonor()
	}
	for i, t := range layout {
		differ := false
		var have []Opinion
		for d, a := range answers {
			if a != nil {
				have = append(have, Opinion{f.shares[d].Member, a[i]})
				differ = differ || a[i] != answers[first][i]
			}
		}
		if differ {
			return nil, &DisagreeError{Tensor: t.Name, Have: have}
		}
	}
	return answers[first], nil
}

// run lets every donor's readers work until all is done or nobody is left.
func (f *fetch) run(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	for d := range f.donors {
		for range f.options.Parallel {
			group.Go(func() error { return f.work(gctx, d) })
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	if err := ctx.Err(); err != nil && !f.schedule.Finished() {
		return fmt.Errorf("heal: %w", err)
	}
	if !f.schedule.Finished() {
		return f.noDonor()
	}
	return nil
}

// work is one reader of one donor. An error ends the whole fetch; a donor's failure does not.
func (f *fetch) work(ctx context.Context, donor int) error {
	var buffer []byte
	for {
		i, next := f.next(ctx, donor)
		switch next {
		case ended:
			return ctx.Err()
		case idle:
			continue
		case found:
		}
		r := f.schedule.Range(i) // ranges do not change
		if buffer == nil {
			buffer = make([]byte, f.options.ChunkBytes)
		}
		p := buffer[:r.Length]
		if !f.read(ctx, donor, i, p) {
			continue
		}
		if err := f.sink.Write(r.Tensor, r.Off, p); err != nil {
			return fmt.Errorf("write %s: %w", r, err)
		}
	}
}

type outcome int

const (
	ended outcome = iota // nothing more will come
	idle                 // something changed, ask again
	found
)

// next waits for a range for a donor.
func (f *fetch) next(ctx context.Context, donor int) (int, outcome) {
	f.mu.Lock()
	if ctx.Err() != nil || f.schedule.Finished() || f.shares[donor].Err != nil {
		f.mu.Unlock()
		return 0, ended
	}
	i, ok := f.schedule.Next(donor)
	changed := f.changed
	f.mu.Unlock()
	if ok {
		return i, found
	}
	// All that is left is being read by others: their reads end by their deadline, and then something changes.
	select {
	case <-ctx.Done():
		return 0, ended
	case <-changed:
		return 0, idle
	}
}

// read reads a range and reports whether its bytes are wanted.
func (f *fetch) read(ctx context.Context, donor, i int, p []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, f.options.ReadTimeout)
	defer cancel()
	who := reader{donor, i}
	f.mu.Lock()
	if !f.schedule.Reads(donor, i) {
		f.mu.Unlock()
		return false // somebody else was faster than this read could begin: nobody would cancel it
	}
	f.cancels[who] = cancel
	f.mu.Unlock()
	r := f.schedule.Range(i)
	err := f.donors[donor].Read(ctx, r.Tensor, r.Off, p)

	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.cancels, who)
	if err != nil {
		if !f.schedule.Reads(donor, i) {
			return false // somebody else was first and this read was cancelled
		}
		f.failLocked(donor, fmt.Errorf("read %s: %w", r, err))
		return false
	}
	wanted, others := f.schedule.Done(donor, i)
	if wanted {
		f.shares[donor].Bytes += r.Length
	}
	for _, other := range others {
		if stop := f.cancels[reader{other, i}]; stop != nil {
			stop()
		}
	}
	f.wake()
	return wanted
}

func (f *fetch) fail(donor int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(donor, err)
}

func (f *fetch) failLocked(donor int, err error) {
	if f.shares[donor].Err == nil {
		f.shares[donor].Err = err
	}
	f.schedule.Fail(donor)
	for who, stop := range f.cancels {
		if who.donor == donor {
			stop()
		}
	}
	f.wake()
}

// wake lets idle readers look again.
func (f *fetch) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// noDonor names every donor and why it was given up.
func (f *fetch) noDonor() error {
	errs := []error{}
	for _, s := range f.shares {
		if s.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Member, s.Err))
		}
	}
	if len(errs) == 0 {
		return fmt.Errorf("heal: %w: none was given", ErrNoDonor)
	}
	return fmt.Errorf("heal: %w: %w", ErrNoDonor, errors.Join(errs...))
}

// names lists who gave bytes.
func (f *fetch) names() string {
	var names []string
	for _, s := range f.shares {
		if s.Bytes > 0 {
			names = append(names, s.Member.String())
		}
	}
	return strings.Join(names, ", ")
}
