// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// GCOptions say what GC deletes, and as who.
type GCOptions struct {
	Now time.Time
	// Grace counts from when a checkpoint was forgotten; nil is the time that was promised then.
	Grace *time.Duration
	// AbandonedGrace counts from when gc saw first that an attempt can never be published. 0 deletes at once.
	AbandonedGrace time.Duration
	By             string
	// Confirm, when set, is asked before each change and before each batch of deletions; an error ends the operation. A leader
	// asks whether it still leads.
	Confirm func(context.Context) error
}

func (o *GCOptions) confirm(ctx context.Context) error {
	if o.Confirm == nil {
		return nil
	}
	return o.Confirm(ctx)
}

// Collected is what GC did.
type Collected struct {
	Swept   []Attempt // folders that were emptied: of stubs, and abandoned ones
	Objects int       // objects deleted
	Bytes   int64
	// Foreign are objects in those folders whose names we do not give. They stay.
	Foreign []string
	// Passed are those that were due and were put back, pinned or taken up by somebody else at the same time.
	Passed []Sweep
}

// GC deletes the data of forgotten checkpoints whose grace is over, and of attempts that can never be published.
//
// The stub is replaced by one that is Sweeping, on the condition that it is still the one that was read, before the first
// byte goes. Undelete replaces the same stub on the same condition, so one of the two loses. Nothing leads out of Sweeping,
// and an abandoned attempt is fenced by the chain of commits for ever; so a gc that was stopped anywhere, for however long,
// and goes on beside its successors can only delete what nobody can get back. A crash leaves a stub that is Sweeping, which
// the next GC finishes.
//
// Which data a damaged commit object stands for is not known: it is kept, and so is every folder that it may name. The rest
// is collected all the same; then the error wraps a Problem for each number that was passed over.
func GC(ctx context.Context, s Store, inv *Inventory, o GCOptions) (Collected, error) {
	c := &collector{GCOptions: o, s: s, inv: inv}
	failed := func(err error) (Collected, error) { return c.done, fmt.Errorf("gc of %s: %w", inv.Job, err) }
	_, kept, err := suspects(inv.Problems)
	if err != nil {
		return failed(fmt.Errorf("nothing deleted: %w", err))
	}
	var deferred []Sweep // by stubs of other numbers that name the same folder and may still be put back
	for _, x := range PlanSweep(inv, o.Now, o.Grace, o.AbandonedGrace) {
		switch {
		case !x.Due && x.Number == 0 && x.Since.IsZero():
			err = c.see(ctx, x)
		case !x.Due:
		case x.Number == 0:
			err = c.abandoned(ctx, x)
		case x.Phase == Forgotten:
			var begun bool
			if begun, err = c.begin(ctx, x); begun {
				deferred = append(deferred, x)
			}
		default:
			deferred = append(deferred, x)
		}
		if err != nil {
			return failed(err)
		}
	}
	for _, x := range deferred {
		if err := c.finish(ctx, x); err != nil {
			return failed(err)
		}
	}
	if err := c.tidy(ctx); err != nil {
		return failed(err)
	}
	if err := c.settle(ctx); err != nil {
		return failed(err)
	}
	if kept != nil {
		return failed(fmt.Errorf("kept, with all that it may name: %w", kept))
	}
	return c.done, nil
}

type collector struct {
	GCOptions
	s    Store
	inv  *Inventory
	done Collected
}

// begin replaces a forgotten stub by one that is sweeping. It reports false when the checkpoint is to be kept after all.
func (c *collector) begin(ctx context.Context, x Sweep) (bool, error) {
	if err := c.confirm(ctx); err != nil {
		return false, err
	}
	r := c.inv.record(x.Number)
	// Who pins puts back first, and that changes the stub; a pin on what is still the same stub was there before.
	if kept, err := isKept(ctx, c.s, c.inv.Job, x.Number, c.Now); err != nil || kept {
		c.done.Passed = append(c.done.Passed, x)
		return false, err
	}
	_, err := replaceRecord(ctx, c.s, r, r.Stub.advanced(Sweeping))
	if errors.Is(err, ErrConflict) {
		c.done.Passed = append(c.done.Passed, x)
		return false, nil
	}
	return err == nil, err
}

// finish deletes the data of a stub that is sweeping and marks it swept.
func (c *collector) finish(ctx context.Context, x Sweep) error {
	// Another number may name the same folder. It is past help only when none of them can be put back.
	for _, r := range c.inv.Records {
		if r.Attempt() != x.Attempt || r.Number == x.Number {
			continue
		}
		present, err := readRecord(ctx, c.s, c.inv.Job, r.Number)
		switch {
		case err != nil && !isDamage(err) && !errors.Is(err, ErrFormat):
			return err
		case err != nil, present.Stub == nil, present.Stub.At() == Forgotten:
			return nil // the next gc
		}
	}
	if err := c.sweep(ctx, x.Attempt); err != nil {
		return err
	}
	if x.Phase == Swept {
		return nil
	}
	present, err := readRecord(ctx, c.s, c.inv.Job, x.Number)
	if err != nil {
		return err
	}
	if present.Stub == nil || present.Stub.At() == Forgotten {
		// Only a store that replaces without conditions can bring that about.
		return fmt.Errorf("%s: its data were deleted and it is no longer marked so; run gc again: %w", CommitKey(c.inv.Job, x.Number), ErrConflict)
	}
	if present.Stub.At() == Swept && present.Stub.Format > 1 {
		return nil
	}
	_, err = replaceRecord(ctx, c.s, present, present.Stub.advanced(Swept))
	if errors.Is(err, ErrConflict) {
		return nil // the next gc finds it sweeping, and its folder empty
	}
	return err
}

// see writes down that an attempt was found abandoned. Its grace counts from there, by the clocks of those who run gc: a
// store's clock, and the time that an object carries after a copy, say nothing.
func (c *collector) see(ctx context.Context, x Sweep) error {
	if err := c.confirm(ctx); err != nil {
		return err
	}
	m := &Mark{Format: FormatVersion, Kind: SeenMark, Job: c.inv.Job, UnixNS: c.Now.UnixNano(), By: clip(c.By), Attempt: x.Attempt.Name()}
	return putMark(ctx, c.s, m)
}

// abandoned deletes what an attempt left that was never published.
func (c *collector) abandoned(ctx context.Context, x Sweep) error {
	if err := c.sweep(ctx, x.Attempt); err != nil {
		return err
	}
	if c.inv.Marks.Seen[x.Attempt.Name()] == nil {
		return nil
	}
	return c.s.Delete(ctx, (&Mark{Kind: SeenMark, Job: c.inv.Job, Attempt: x.Attempt.Name()}).Key())
}

// ourNames are the names that saves give to objects in an attempt's folder. What has another name was put there by somebody
// else.
var ourNames = regexp.MustCompile(`^(part-\d+\.json|rank-\d+-\d+\.raw|__\d+_\d+\.distcp|write-\d+-\d+\.json|\.metadata)$`)

// deleteBatch is how many objects are deleted between two questions whether to go on.
const deleteBatch = 256

// sweep deletes all objects of an attempt that are ours, those first without which the folder offers nothing: parts, and
// PyTorch's index.
func (c *collector) sweep(ctx context.Context, a Attempt) error {
	folder := a.Folder() + "/"
	objects, err := ListAll(ctx, c.s, folder)
	if err != nil {
		return err
	}
	var index, content []Info
	for _, o := range objects {
		name := strings.TrimPrefix(o.Key, folder)
		switch {
		case !ourNames.MatchString(name):
			c.done.Foreign = append(c.done.Foreign, o.Key)
		case strings.HasSuffix(name, ".json"), name == MetadataName:
			index = append(index, o)
		default:
			content = append(content, o)
		}
	}
	for _, these := range [][]Info{index, content} {
		for len(these) > 0 {
			n := min(deleteBatch, len(these))
			if err := c.delete(ctx, these[:n]); err != nil {
				return err
			}
			these = these[n:]
		}
	}
	if len(index)+len(content) > 0 {
		c.done.Swept = append(c.done.Swept, a)
	}
	return nil
}

func (c *collector) delete(ctx context.Context, batch []Info) error {
	if err := c.confirm(ctx); err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(requestLimit)
	for _, o := range batch {
		group.Go(func() error { return c.s.Delete(gctx, o.Key) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, o := range batch {
		c.done.Objects++
		c.done.Bytes += o.Size
	}
	return nil
}

// staleHold is how long after its end a hold that nobody released is taken away.
const staleHold = 7 * 24 * time.Hour

// tidy takes away marks that say nothing any more: of checkpoints that are gone for good, holds that expired long ago, and
// records of abandoned attempts without a folder.
func (c *collector) tidy(ctx context.Context) error {
	var keys []string
	gone := func(number uint64) bool {
		r := c.inv.record(number)
		return r.Stub != nil && r.Stub.At() == Swept
	}
	m := c.inv.Marks
	for n, v := range m.Verified {
		if gone(n) {
			keys = append(keys, v.Key())
		}
	}
	for n, holds := range m.Holds {
		for _, h := range holds {
			if gone(n) || c.Now.Sub(time.Unix(0, h.UntilUnixNS)) > staleHold {
				keys = append(keys, h.Key())
			}
		}
	}
	for name, x := range m.Seen {
		a, err := ParseAttempt(c.inv.Job, name)
		if err == nil && !slices.Contains(c.inv.Folders, a) {
			keys = append(keys, x.Key())
		}
	}
	for _, p := range m.Problems {
		if gone(p.Number) {
			keys = append(keys, p.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	for _, key := range keys {
		if err := c.s.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}
