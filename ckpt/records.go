// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// ErrNoCheckpoint: the job has no checkpoint that can be restored.
var ErrNoCheckpoint = errors.New("no restorable checkpoint")

// newestNumber finds the highest number of a job's commit objects, 0 when there are none. Numbers have no gaps and objects
// stay for ever, so "is there one after n" answers a binary search; a list of all would grow with the age of the job.
func newestNumber(ctx context.Context, s Store, job string) (uint64, error) {
	page, err := listNumbers(ctx, s, job, 0, 0)
	if err != nil || len(page) == 0 {
		return 0, err
	}
	known := page[len(page)-1]
	step := uint64(1)
	missing := uint64(0) // nothing comes after this number, once set
	for missing == 0 || known < missing {
		at := known + step - 1
		if missing != 0 {
			at = known + (missing-known)/2
		}
		next, err := listNumbers(ctx, s, job, at, 1)
		switch {
		case err != nil:
			return 0, err
		case len(next) > 0:
			known = next[0]
			step *= 2
		default:
			missing = at
		}
	}
	return known, nil
}

// listNumbers gives numbers greater than after, ascending.
func listNumbers(ctx context.Context, s Store, job string, after uint64, limit int) ([]uint64, error) {
	var numbers []uint64
	for key := CommitKey(job, after); len(numbers) == 0; {
		page, err := s.List(ctx, commitsPrefix(job), key, limit)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", commitsPrefix(job), err)
		}
		if len(page) == 0 {
			return nil, nil
		}
		for _, info := range page {
			if n, ok := parseCommitKey(job, info.Key); ok {
				numbers = append(numbers, n)
			}
		}
		key = page[len(page)-1].Key // a page of foreign names says nothing about what follows
	}
	return numbers, nil
}

// Problem is what is wrong with one number.
type Problem struct {
	Number uint64
	Err    error
	Link   bool // its record can be read; it does not name the digest of the one before it, either may be the changed one
}

func (p Problem) Error() string { return fmt.Sprintf("commit %d: %v", p.Number, p.Err) }
func (p Problem) Unwrap() error { return p.Err }

// List reads all commit objects and stubs of a job, oldest first, and checks their chain. Numbers that cannot be read, are
// missing, or do not name their predecessor's digest are problems; what can be read is returned beside them.
func List(ctx context.Context, s Store, job string) ([]Record, []Problem, error) {
	if err := validJob(job); err != nil {
		return nil, nil, err
	}
	newest, err := newestNumber(ctx, s, job)
	if err != nil {
		return nil, nil, err
	}
	numbers := make([]uint64, newest)
	for i := range numbers {
		numbers[i] = uint64(i) + 1
	}
	return readRecords(ctx, s, job, numbers)
}

// readRecords reads the records with these numbers, which ascend, and checks the links between neighbours.
func readRecords(ctx context.Context, s Store, job string, numbers []uint64) ([]Record, []Problem, error) {
	all := make([]Record, len(numbers))
	errs := make([]error, len(numbers))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(requestLimit)
	for i, n := range numbers {
		group.Go(func() error {
			all[i], errs[i] = readRecord(gctx, s, job, n)
			return gctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, fmt.Errorf("list %s: %w", commitsPrefix(job), err)
	}
	var records []Record
	var problems []Problem
	for i, r := range all {
		if errs[i] != nil {
			problems = append(problems, Problem{Number: numbers[i], Err: errs[i]})
			continue
		}
		if i > 0 && errs[i-1] == nil && numbers[i-1]+1 == numbers[i] {
			if err := checkLink(all[i-1], r); err != nil {
				problems = append(problems, Problem{Number: r.Number, Err: err, Link: true})
			}
		}
		records = append(records, r)
	}
	return records, problems, nil
}

// checkLink checks that a record names the digest of the one before it.
func checkLink(before, r Record) error {
	if r.Predecessor() != before.SHA256 {
		return fmt.Errorf("names predecessor %.12s…, commit %d is %.12s…: %w", r.Predecessor(), before.Number, before.SHA256, ErrCorrupt)
	}
	return nil
}

// Found is what Latest found, and what it had to say on the way.
type Found struct {
	Record Record // a commit
	// Problems are the newer numbers that cannot be restored, a broken link of the chain at or above the one found, and the
	// number below it when it can be read no more and could when the one found was published. A broken link says that a
	// commit object was changed behind the store's back; the data verify by themselves.
	Problems []Problem
}

// Latest returns the newest checkpoint that can be restored: its commit object can be read, its parts are whole and cover
// the state, and every data object is there with the right size. It reads no data; Checkpoint.VerifyAll does. Without any,
// the error is ErrNoCheckpoint.
func Latest(ctx context.Context, s Store, job string) (Found, error) {
	return latest(ctx, s, job, func(Record) error { return nil })
}

// LatestSound is Latest that also passes over what the last recorded verification found damaged, see RecordVerified.
func LatestSound(ctx context.Context, s Store, job string) (Found, error) {
	if err := validJob(job); err != nil {
		return Found{}, err
	}
	m := &Marks{Verified: map[uint64]*Mark{}}
	if err := m.read(ctx, s, job, VerifiedMark, ""); err != nil {
		return Found{}, fmt.Errorf("look for the newest checkpoint of %s: %w", job, err)
	}
	return latest(ctx, s, job, func(r Record) error {
		v := m.Verified[r.Number]
		if v == nil || v.OK || v.SHA256 != "" && v.SHA256 != r.SHA256 {
			return nil
		}
		return fmt.Errorf("a verification (level %s) recorded it as damaged; phalanx ckpt verify --record %d looks again: %w", v.Level, r.Commit.Step, ErrCorrupt)
	})
}

// latest is Latest of the records that refuse lets pass.
func latest(ctx context.Context, s Store, job string, refuse func(Record) error) (Found, error) {
	if err := validJob(job); err != nil {
		return Found{}, err
	}
	n, err := newestNumber(ctx, s, job)
	if err != nil {
		return Found{}, err
	}
	var f Found
	var above Record // the record with the next higher number, when it could be read
	for ; n > 0; n-- {
		r, err := readRecord(ctx, s, job, n)
		if ctx.Err() != nil {
			return f, fmt.Errorf("look for the newest checkpoint of %s: %w", job, ctx.Err())
		}
		if err != nil {
			f.Problems = append(f.Problems, Problem{Number: n, Err: err})
			above = Record{}
			continue
		}
		if above.Number != 0 {
			if err := checkLink(r, above); err != nil {
				f.Problems = append(f.Problems, Problem{Number: above.Number, Err: err, Link: true})
			}
		}
		above = r
		if r.Commit == nil {
			continue
		}
		err = refuse(r)
		if err == nil {
			err = restorable(ctx, s, r.Commit)
		}
		if err != nil {
			if ctx.Err() != nil {
				return f, fmt.Errorf("look for the newest checkpoint of %s: %w", job, ctx.Err())
			}
			f.Problems = append(f.Problems, Problem{Number: n, Err: err})
			continue
		}
		f.Record = r
		f.checkBelow(ctx, s, job)
		return f, nil
	}
	return f, fmt.Errorf("job %s in %s: %w", job, s.Capabilities().Name, ErrNoCheckpoint)
}

// checkBelow checks the link from the record that was found to the one before it.
func (f *Found) checkBelow(ctx context.Context, s Store, job string) {
	if f.Record.Number == 1 {
		return
	}
	number := f.Record.Number
	before, content, err := readNumbered(ctx, s, job, number-1)
	switch {
	case err == nil:
		if err := checkLink(before, f.Record); err != nil {
			f.Problems = append(f.Problems, Problem{Number: number, Err: err, Link: true})
		}
	case content != nil && sha256Hex(content) == f.Record.Predecessor():
		// It was damaged already when this one was published after it.
	default:
		f.Problems = append(f.Problems, Problem{Number: number - 1, Err: err})
	}
}

// restorable checks all that can be checked without reading data.
func restorable(ctx context.Context, s Store, c *Commit) error {
	cp, err := Open(ctx, s, c)
	if err != nil {
		return err
	}
	if m := c.Metadata; m != nil {
		if err := checkObject(ctx, s, cp.attempt, Object{Name: m.Name, Size: m.Size, CRC64NVME: m.CRC64NVME}); err != nil {
			return err
		}
	}
	return checkObjects(ctx, s, cp.attempt, cp.parts)
}
