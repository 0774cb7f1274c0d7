// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"phalanx"
)

// ErrFenced: the store holds a commit that this attempt must not follow. errors.As finds a *FencedError.
var ErrFenced = errors.New("fenced")

// ErrIncomplete: the parts do not make a restorable checkpoint; nothing was published.
var ErrIncomplete = errors.New("checkpoint incomplete")

// FencedError says which commit is in the way. Its attempt will never be published.
type FencedError struct {
	Attempt Attempt // the one that lost
	By      Record  // what is in the store
	Why     string
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("publish %s: %s (commit %d, attempt %s): %v; run: phalanx ckpt ls",
		e.Attempt.Folder(), e.Why, e.By.Number, e.By.Attempt().Name(), ErrFenced)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// Publication is what the leader says about a checkpoint.
type Publication struct {
	Attempt Attempt
	Branch  uint64          // counts rewinds; of the lineage that the state belongs to
	Labels  []phalanx.Label // one for each coordinate, in order
	UnixNS  int64           // when, by the leader's clock
	Spec    json.RawMessage // the job's committed spec, any JSON
	// Follows, when set, is the SHA-256 of the commit that must be the newest, as the replicated state has it ("" for
	// none). It fences against a lineage that this leader knows nothing of.
	Follows *string
}

// Publish makes a checkpoint visible: it proves that the parts are whole, agree and cover every element, then creates the
// next commit object. It may be repeated by any leader until it gives an answer: an attempt that is published already is a
// success.
//
// ErrFenced, ErrIncomplete (also for a *DivergedError or *CoverageError inside) and ErrCorrupt are final for the attempt.
// ErrConflict: not known whether it was published; call again. A damaged commit object is passed over, see the package's
// description.
func Publish(ctx context.Context, s Store, p Publication, parts []PartRef) (Record, error) {
	if err := p.validate(); err != nil {
		return Record{}, fmt.Errorf("publish %s: %w", p.Attempt.Folder(), err)
	}
	last, err := findTip(ctx, s, p.Attempt.Job)
	if err != nil {
		return Record{}, fmt.Errorf("publish %s: %w", p.Attempt.Folder(), err)
	}
	if done, err := publishedBefore(ctx, s, p, last.newest); err != nil || done.Number != 0 {
		return done, err
	}
	if err := p.mayFollow(last); err != nil {
		return Record{}, err
	}
	commit, err := p.commit(ctx, s, parts)
	if err != nil {
		return Record{}, fmt.Errorf("publish %s: %w", p.Attempt.Folder(), err)
	}
	commit.Number = last.number + 1
	commit.Predecessor = last.sha256
	return create(ctx, s, p.Attempt, commit)
}

func (p Publication) validate() error {
	if err := p.Attempt.Validate(); err != nil {
		return err
	}
	if len(p.Labels) == 0 {
		return errors.New("no labels: give one for each coordinate")
	}
	for i, l := range p.Labels {
		if l.Coordinate != i || l.Step != p.Attempt.Step {
			return fmt.Errorf("label %d is %s: want coordinate %d and the attempt's step %d", i, l, i, p.Attempt.Step)
		}
	}
	return nil
}

// publishedBefore looks for the attempt among the newest commits: a leader that lost the answer, or its successor, asks
// again, and others may have published since. One whose commit object is damaged counts as not published.
func publishedBefore(ctx context.Context, s Store, p Publication, newest Record) (Record, error) {
	const lookBack = 16 // as many saves as can follow while one leader is deposed and another asks again
	r := newest
	for range lookBack {
		if r.Number == 0 {
			return Record{}, nil
		}
		if r.Attempt() == p.Attempt {
			return r, nil
		}
		if older(r, p) {
			return Record{}, nil
		}
		var err error
		if r, err = readableBelow(ctx, s, p.Attempt.Job, r.Number); err != nil {
			return Record{}, fmt.Errorf("publish %s: %w", p.Attempt.Folder(), err)
		}
	}
	return Record{}, nil
}

// older reports whether a record lies before the publication in the order that generations, then steps give.
func older(r Record, p Publication) bool {
	g := r.Attempt().Generation.Compare(p.Attempt.Generation)
	return g < 0 || g == 0 && r.Attempt().Step < p.Attempt.Step
}

// mayFollow says whether the publication may come after the newest commit that can be read. The rules need nothing but the
// store, so they hold when the whole cluster is lost and when a deposed leader wakes up.
func (p Publication) mayFollow(last tip) error {
	newest := last.newest
	fenced := func(format string, args ...any) error {
		return &FencedError{Attempt: p.Attempt, By: newest, Why: fmt.Sprintf(format, args...)}
	}
	// What a damaged object at the newest number was is not known; it may be the one that this must follow.
	if p.Follows != nil && *p.Follows != last.sha256 && last.number == newest.Number {
		if newest.Number == 0 {
			return fmt.Errorf("publish %s: the store has no commit, commit %.12s… should be its newest: is this the right store? %w",
				p.Attempt.Folder(), *p.Follows, ErrNotFound)
		}
		return fenced("the newest commit is %.12s…, expected %.12s…", newest.SHA256, *p.Follows)
	}
	if newest.Number == 0 {
		return nil
	}
	have := newest.Attempt()
	switch {
	case p.Attempt.Generation.Less(have.Generation):
		return fenced("generation %s has published, this attempt is of generation %s", have.Generation, p.Attempt.Generation)
	case p.Branch < newest.Branch():
		return fenced("branch %d has published, this attempt is of branch %d", newest.Branch(), p.Branch)
	case p.Branch == newest.Branch() && p.Attempt.Step <= have.Step:
		return fenced("step %d of this branch is published, this attempt is of step %d", have.Step, p.Attempt.Step)
	}
	return nil
}

// commit reads and checks everything that is published and describes it.
func (p Publication) commit(ctx context.Context, s Store, refs []PartRef) (*Commit, error) {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b PartRef) int { return int(a.Rank) - int(b.Rank) })
	parts, err := readParts(ctx, s, p.Attempt, refs)
	if err != nil {
		return nil, err
	}
	manifests, err := Merge(parts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	if len(manifests) != len(p.Labels) {
		return nil, fmt.Errorf("%w: parts of %d coordinates, labels of %d", ErrIncomplete, len(manifests), len(p.Labels))
	}
	c := &Commit{
		Format: FormatVersion, Kind: kindCommit, Job: p.Attempt.Job, Attempt: p.Attempt.Name(), Branch: p.Branch,
		Step: p.Attempt.Step, Generation: p.Attempt.Generation, UnixNS: p.UnixNS, Container: parts[0].Container,
		Parts: refs, Spec: p.Spec, Fenced: s.Capabilities().ConditionalCreate,
	}
	for i, m := range manifests {
		if m.Coordinate != i {
			return nil, fmt.Errorf("%w: no part of coordinate %d", ErrIncomplete, i)
		}
		c.States = append(c.States, StoredState{Label: p.Labels[i], Digest: m.StateDigest, Tensors: len(m.Tensors), Bytes: m.Bytes})
	}
	globals, err := GlobalTensors(manifests)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	if err := checkObjects(ctx, s, p.Attempt, parts); err != nil {
		return nil, err
	}
	if c.Container == ContainerDCP {
		if c.Metadata, err = putMetadata(ctx, s, p.Attempt, globals); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// requestLimit bounds the requests in flight of one publisher or reader.
const requestLimit = 16

// readParts reads part files and checks them against their references.
func readParts(ctx context.Context, s Store, a Attempt, refs []PartRef) ([]*Part, error) {
	parts := make([]*Part, len(refs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requestLimit)
	for i, ref := range refs {
		group.Go(func() error {
			var err error
			parts[i], err = readPart(ctx, s, a, ref)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return parts, nil
}

func readPart(ctx context.Context, s Store, a Attempt, ref PartRef) (*Part, error) {
	key := a.Folder() + "/" + ref.Name
	if ref.Name != partName(ref.Rank) || ref.Size < 0 || ref.Size > MaxPartBytes {
		return nil, fmt.Errorf("part %.60q of rank %d, %d bytes: %w", ref.Name, ref.Rank, ref.Size, ErrFormat)
	}
	b, err := readWhole(ctx, s, key, ref.Size)
	if err != nil {
		if errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("%w: %w", ErrIncomplete, err)
		}
		return nil, err
	}
	if got := Checksum(b); int64(len(b)) != ref.Size || got != ref.CRC64NVME || sha256Hex(b) != ref.SHA256 {
		return nil, fmt.Errorf("%s: %d bytes with crc64nvme %s and sha256 %s, expected %d with %s and %s; run: phalanx ckpt verify: %w",
			key, len(b), got, sha256Hex(b), ref.Size, ref.CRC64NVME, ref.SHA256, ErrCorrupt)
	}
	p, err := DecodePart(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if p.Attempt != a.Name() || p.Rank != ref.Rank || p.Coordinate != ref.Coordinate {
		return nil, fmt.Errorf("%s: is of attempt %s, rank %d, coordinate %d, expected %s, %d, %d: %w",
			key, p.Attempt, p.Rank, p.Coordinate, a.Name(), ref.Rank, ref.Coordinate, ErrFormat)
	}
	return p, nil
}

// checkObjects asks the store for every data object: present, of the right size, with the right checksum where it keeps one.
func checkObjects(ctx context.Context, s Store, a Attempt, parts []*Part) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requestLimit)
	for _, p := range parts {
		for _, o := range p.Objects {
			group.Go(func() error { return checkObject(ctx, s, a, o) })
		}
	}
	return group.Wait()
}

func checkObject(ctx context.Context, s Store, a Attempt, o Object) error {
	key := a.Folder() + "/" + o.Name
	info, err := s.Stat(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	case err != nil:
		return err
	case info.Size != o.Size:
		return fmt.Errorf("%s: %d bytes, expected %d; run: phalanx ckpt verify: %w", key, info.Size, o.Size, ErrDamaged)
	case info.HasCRC && info.CRC64NVME != o.CRC64NVME:
		return fmt.Errorf("%s: crc64nvme %s, expected %s; run: phalanx ckpt verify: %w", key, info.CRC64NVME, o.CRC64NVME, ErrCorrupt)
	}
	return nil
}

// create writes the commit object and finds out what became of it.
func create(ctx context.Context, s Store, a Attempt, c *Commit) (Record, error) {
	content, err := c.Encode()
	if err != nil {
		return Record{}, fmt.Errorf("publish %s: %w", a.Folder(), err)
	}
	mine, err := DecodeRecord(content) // what is written must be readable
	if err != nil {
		return Record{}, fmt.Errorf("publish %s: %w", a.Folder(), err)
	}
	key := CommitKey(a.Job, c.Number)
	for try := range putTries {
		if try > 0 {
			if err := wait(ctx, time.Duration(try)*50*time.Millisecond); err != nil {
				break
			}
		}
		err = s.PutIfAbsent(ctx, key, Bytes(content))
		if err == nil {
			return mine, nil
		}
		present, rerr := readRecord(ctx, s, a.Job, c.Number)
		switch {
		case rerr == nil && present.Attempt() == a:
			return present, nil
		case rerr == nil:
			return Record{}, &FencedError{Attempt: a, By: present, Why: "another attempt took the number"}
		case errors.Is(err, ErrReadOnly), errors.Is(err, ErrCorrupt):
			return Record{}, fmt.Errorf("publish %s: %w", a.Folder(), err)
		}
		// Not there, or not readable now. The same bytes are offered again: whichever of the tries lands says the same.
	}
	// Some try may have left the object, or may still leave it.
	return Record{}, fmt.Errorf("publish %s: create %s: publish the same attempt again: %w: %w", a.Folder(), key, ErrConflict, err)
}
