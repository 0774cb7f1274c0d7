// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// DefaultGrace is how long the data of a forgotten checkpoint stay when nothing else is asked for.
const DefaultGrace = 24 * time.Hour

// What callers of Forget, Undelete and Pin branch on.
var (
	// ErrProtected: a rule that no policy can switch off keeps the checkpoint.
	ErrProtected = errors.New("protected")
	// ErrNoUndelete: the store cannot replace conditionally, so it cannot be excluded that gc deletes what is put back.
	ErrNoUndelete = errors.New("this store cannot undelete")
)

// newToken draws the token of a stub.
func newToken() string { return rand.Text() }

// forgetting is what a stub says about how its checkpoint was forgotten.
type forgetting struct {
	now     time.Time
	grace   time.Duration
	by, why string
}

// Drop is one checkpoint to be forgotten, and why.
type Drop struct {
	Number uint64
	Why    string
}

// Drops are the decisions that keep nothing.
func Drops(decisions []Decision) []Drop {
	var drops []Drop
	for _, d := range decisions {
		if !d.Keep {
			drops = append(drops, Drop{d.Number, d.Why})
		}
	}
	return drops
}

// ForgetOptions say how checkpoints are forgotten.
type ForgetOptions struct {
	Now   time.Time     // of the decision
	Grace time.Duration // how long their data stay at least
	By    string        // who forgets
	// Confirm, when set, is asked before each change; an error ends the operation. A leader asks whether it still leads.
	Confirm func(context.Context) error
}

func (o *ForgetOptions) confirm(ctx context.Context) error {
	if o.Confirm == nil {
		return nil
	}
	return o.Confirm(ctx)
}

// ForgetResult is what Forget did.
type ForgetResult struct {
	Numbers []uint64 // are forgotten now
	Kept    []uint64 // were pinned or held at the same time, and are published still or again
}

// slowDecision is how old a decision may be when it takes effect without being dated anew.
const slowDecision = time.Minute

// Forget replaces the commit objects of these numbers by stubs. Nothing is deleted, and Undelete puts them back. What rules
// keep that no policy can switch off is refused as a whole, before anything is written: ErrProtected. The inventory that
// was decided on is checked, not trusted: each commit object must still be the one that it names.
//
// A pin or a hold that is set at the same time wins: it is looked for again after each stub was written, as Pin looks at the
// commit object after it has written the pin.
func Forget(ctx context.Context, s Store, inv *Inventory, drops []Drop, o ForgetOptions) (ForgetResult, error) {
	var done ForgetResult
	failed := func(err error) (ForgetResult, error) {
		return done, fmt.Errorf("forget checkpoints of %s: %w", inv.Job, err)
	}
	decided := time.Now() // a process may stop for long between deciding and writing
	protected := map[uint64]Decision{}
	for _, d := range (Policy{}).Decide(inv, o.Now) {
		protected[d.Number] = d
	}
	for _, x := range drops {
		d, found := protected[x.Number]
		switch {
		case !found && inv.record(x.Number).Stub != nil:
			return failed(&RemovedError{inv.record(x.Number).Stub})
		case !found:
			return failed(fmt.Errorf("number %d: %w", x.Number, ErrNotFound))
		case d.Keep:
			return failed(fmt.Errorf("checkpoint %d (step %d) is kept: %s: %w", x.Number, d.Attempt.Step, d.Words(), ErrProtected))
		}
	}
	for _, x := range drops {
		if err := o.confirm(ctx); err != nil {
			return failed(err)
		}
		forgotten, err := o.forget(ctx, s, inv, x, decided)
		if err != nil {
			return failed(err)
		}
		if forgotten {
			done.Numbers = append(done.Numbers, x.Number)
		} else {
			done.Kept = append(done.Kept, x.Number)
		}
	}
	return done, nil
}

// forget forgets one checkpoint. It reports false when a pin or a hold came in between.
func (o *ForgetOptions) forget(ctx context.Context, s Store, inv *Inventory, x Drop, decided time.Time) (bool, error) {
	r, content, err := readContent(ctx, s, inv.Job, x.Number)
	if err != nil {
		return false, err
	}
	if r.Stub != nil {
		return true, nil // somebody else was faster
	}
	if r.SHA256 != inv.record(x.Number).SHA256 {
		return false, fmt.Errorf("%s has changed since it was decided upon; decide again: %w", CommitKey(inv.Job, x.Number), ErrConflict)
	}
	if kept, err := isKept(ctx, s, inv.Job, x.Number, o.Now); err != nil || kept {
		return false, err
	}
	f := forgetting{now: o.Now, grace: o.Grace, by: clip(o.By), why: clip(x.Why)}
	stub := r.Commit.stub(content, f)
	present, err := replaceRecord(ctx, s, r, stub)
	if err != nil {
		return false, err
	}
	if passed := time.Since(decided); passed > slowDecision && present.Stub.Token == stub.Token {
		// The grace begins when it is forgotten, not when somebody thought of it.
		f.now = o.Now.Add(passed)
		if present, err = replaceRecord(ctx, s, present, r.Commit.stub(content, f)); err != nil {
			return false, err
		}
	}
	kept, err := isKept(ctx, s, inv.Job, x.Number, o.Now)
	if err != nil || !kept {
		return err == nil, err
	}
	if present.Stub.At() == Forgotten && s.Capabilities().ConditionalReplace {
		_, err = putBack(ctx, s, present)
	}
	return false, err // where it cannot be put back, gc finds the pin before it deletes anything
}

// isKept looks for a pin, or a hold that has not expired.
func isKept(ctx context.Context, s Store, job string, number uint64, now time.Time) (bool, error) {
	m, err := keepsOf(ctx, s, job, number)
	if err != nil {
		return false, err
	}
	kept := m.Pins[number] != nil || len(m.Problems) > 0
	for _, h := range m.Holds[number] {
		kept = kept || time.Unix(0, h.UntilUnixNS).After(now)
	}
	return kept, nil
}

// replaceRecord writes a stub over the record as it was read. When the outcome is unknown, or somebody else was faster, what
// is there afterwards decides: a stub of the same commit object in the same phase, or a later one.
func replaceRecord(ctx context.Context, s Store, r Record, stub *Stub) (Record, error) {
	b, err := stub.Encode()
	if err != nil {
		return r, err
	}
	if _, err := DecodeRecord(b); err != nil {
		return r, fmt.Errorf("stub %d would not be readable: %w", r.Number, err)
	}
	job := r.Attempt().Job
	key := CommitKey(job, r.Number)
	if s.Capabilities().ConditionalReplace {
		err = s.PutIfMatch(ctx, key, r.ETag, Bytes(b))
	} else {
		err = s.Put(ctx, key, Bytes(b))
	}
	present, rerr := readRecord(ctx, s, job, r.Number)
	if rerr != nil {
		return r, errors.Join(err, rerr)
	}
	if present.Stub == nil || present.SHA256 != r.SHA256 || phaseOrder(present.Stub.At()) < phaseOrder(stub.At()) {
		return r, fmt.Errorf("%s could not be replaced by its stub; look again: %w", key, errors.Join(err, ErrConflict))
	}
	return present, nil
}

func phaseOrder(p Phase) int {
	switch p {
	case Forgotten:
		return 1
	case Sweeping:
		return 2
	case Swept:
		return 3
	}
	return 0
}

// readContent reads a record and the bytes of its object, which belong to its ETag.
func readContent(ctx context.Context, s Store, job string, number uint64) (Record, []byte, error) {
	r, err := readRecord(ctx, s, job, number)
	if err != nil || r.Commit == nil {
		return r, nil, err
	}
	content, err := readWhole(ctx, s, CommitKey(job, number), MaxCommitBytes)
	if err != nil {
		return r, nil, err
	}
	if sha256Hex(content) != r.SHA256 {
		return r, nil, fmt.Errorf("%s changed while it was read; look again: %w", CommitKey(job, number), ErrConflict)
	}
	return r, content, nil
}

// Undelete puts the commit object of a forgotten checkpoint back, bit for bit, as long as no gc has begun on it; then the
// error is a *RemovedError. Its data are looked for first: ErrIncomplete when they are not all there. One that is published is
// left as it is. ErrConflict: not known whether it was put back; call again.
//
// The policy of a running job forgets it again when nothing else keeps it: Pin puts it back and keeps it.
func Undelete(ctx context.Context, s Store, job string, number uint64) (Record, error) {
	fail := func(err error) (Record, error) {
		return Record{}, fmt.Errorf("undelete checkpoint %d of %s: %w", number, job, err)
	}
	if err := validJob(job); err != nil {
		return fail(err)
	}
	r, err := readRecord(ctx, s, job, number)
	switch {
	case err != nil:
		return fail(err)
	case r.Commit != nil:
		return r, nil
	case r.Stub.At() != Forgotten:
		return fail(&RemovedError{r.Stub})
	case !s.Capabilities().ConditionalReplace:
		return fail(fmt.Errorf("%s: %w", s.Capabilities().Name, ErrNoUndelete))
	}
	if err := restorable(ctx, s, r.Stub.Inside()); err != nil {
		return fail(err)
	}
	if r, err = putBack(ctx, s, r); err != nil {
		return fail(err)
	}
	return r, nil
}

// putBack replaces a forgotten stub, as it was read, by the commit object inside.
func putBack(ctx context.Context, s Store, r Record) (Record, error) {
	job := r.Attempt().Job
	key := CommitKey(job, r.Number)
	err := s.PutIfMatch(ctx, key, r.ETag, Bytes(r.Stub.Commit))
	present, rerr := readRecord(ctx, s, job, r.Number)
	switch {
	case rerr != nil:
		return Record{}, errors.Join(err, rerr)
	case present.Commit != nil && present.SHA256 == r.SHA256:
		return present, nil
	case present.Stub != nil && present.Stub.At() != Forgotten:
		return Record{}, &RemovedError{present.Stub}
	}
	return Record{}, fmt.Errorf("%s was not replaced; try again: %w", key, errors.Join(err, ErrConflict))
}

// Pin keeps a checkpoint until Unpin. One that is forgotten is put back first, so what is pinned is published. By is who
// pins, why their words. Errors are those of Undelete; then there is no pin.
func Pin(ctx context.Context, s Store, job string, number uint64, by, why string, now time.Time) (Record, error) {
	return keep(ctx, s, &Mark{Format: FormatVersion, Kind: PinMark, Job: job, Number: number, UnixNS: now.UnixNano(), By: clip(by), Why: clip(why)})
}

// Unpin takes a pin away, a damaged one too. Without one the error is ErrNotFound.
func Unpin(ctx context.Context, s Store, job string, number uint64) error {
	return takeAway(ctx, s, &Mark{Kind: PinMark, Job: job, Number: number})
}

// Hold keeps a checkpoint for an owner, one key element, until it expires or is released. A second hold of the same owner
// replaces the first. Otherwise it is like Pin.
func Hold(ctx context.Context, s Store, job string, number uint64, owner, why string, now, until time.Time) (Record, error) {
	return keep(ctx, s, &Mark{Format: FormatVersion, Kind: HoldMark, Job: job, Number: number, UnixNS: now.UnixNano(),
		Owner: owner, UntilUnixNS: until.UnixNano(), Why: clip(why)})
}

// Release ends a hold. Without one the error is ErrNotFound.
func Release(ctx context.Context, s Store, job string, number uint64, owner string) error {
	return takeAway(ctx, s, &Mark{Kind: HoldMark, Job: job, Number: number, Owner: owner})
}

// keep writes a mark that keeps a checkpoint, and then makes sure that it is published: whoever forgets it looks for marks
// after that.
func keep(ctx context.Context, s Store, m *Mark) (Record, error) {
	fail := func(err error) (Record, error) {
		return Record{}, fmt.Errorf("%s checkpoint %d of %s: %w", m.Kind, m.Number, m.Job, err)
	}
	if err := m.validate(); err != nil {
		return fail(err)
	}
	r, err := readRecord(ctx, s, m.Job, m.Number)
	if err != nil {
		return fail(err)
	}
	if r.Stub != nil && r.Stub.At() != Forgotten {
		return fail(&RemovedError{r.Stub})
	}
	m.SHA256 = r.SHA256
	_, err = s.Stat(ctx, m.Key())
	before := err == nil
	if err := putMark(ctx, s, m); err != nil {
		return fail(err)
	}
	r, err = Undelete(ctx, s, m.Job, m.Number)
	if err != nil && !before && !errors.Is(err, ErrConflict) {
		// A mark on what is not published would promise what it cannot give.
		err = errors.Join(err, s.Delete(ctx, m.Key()))
	}
	if err != nil {
		return fail(err)
	}
	return r, nil
}

func takeAway(ctx context.Context, s Store, m *Mark) error {
	key := m.Key()
	if _, err := s.Stat(ctx, key); err != nil {
		return fmt.Errorf("take away %s: %w", key, err)
	}
	if err := s.Delete(ctx, key); err != nil {
		return fmt.Errorf("take away %s: %w", key, err)
	}
	return nil
}
