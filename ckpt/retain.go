// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Retain returns the numbers of the commits that retention may drop, ascending: all but the newest keep ones (at least
// one), never the newest verified one (0: none was verified), and nothing newer than it. It is pure; records are in order of
// numbers, as List gives them, and stubs count for nothing.
func Retain(records []Record, keep int, newestVerified uint64) []uint64 {
	var commits []uint64
	for _, r := range records {
		if r.Commit != nil {
			commits = append(commits, r.Number)
		}
	}
	kept := min(len(commits), max(keep, 1))
	var drop []uint64
	for _, n := range commits[:len(commits)-kept] {
		if newestVerified == 0 || n < newestVerified {
			drop = append(drop, n)
		}
	}
	return drop
}

// Abandoned returns the attempts among the folders that can never be published any more and never were, because a record
// fences them: an older generation, or the same one at a step that is not newer. Records are in order of numbers, as List
// gives them; a number that is missing among them may have published anything that the record before it does not fence. No
// clock is involved. It is pure.
func Abandoned(records []Record, folders []Attempt) []Attempt {
	unbroken := 0
	for unbroken < len(records) && records[unbroken].Number == uint64(unbroken)+1 {
		unbroken++
	}
	if unbroken == 0 {
		return nil
	}
	fence := records[unbroken-1].Attempt()
	published := map[Attempt]bool{}
	for _, r := range records {
		published[r.Attempt()] = true
	}
	var gone []Attempt
	for _, a := range folders {
		g := a.Generation.Compare(fence.Generation)
		if !published[a] && (g < 0 || g == 0 && a.Step <= fence.Step) {
			gone = append(gone, a)
		}
	}
	return gone
}

// Pruned is what Prune did.
type Pruned struct {
	Stubbed []uint64  // commits that became stubs
	Swept   []Attempt // folders that were emptied: of stubs, and abandoned ones
	Objects int       // objects deleted
	Bytes   int64
}

// Prune drops the commits with these numbers and deletes the data of every stub and of every abandoned attempt. Order: the
// stub replaces the commit object before the first byte of its data goes, so no reader ever finds a commit whose data are
// being deleted; a crash leaves a stub with data, which the next Prune finishes. The newest record is never dropped. Only
// the leader prunes.
//
// Which data a damaged commit object stands for is not known: it is kept, and so is every folder that it may name. The rest
// is pruned all the same; then the error wraps a Problem for each number that was passed over.
func Prune(ctx context.Context, s Store, job string, drop []uint64) (Pruned, error) {
	var done Pruned
	failed := func(err error) (Pruned, error) { return done, fmt.Errorf("prune %s: %w", job, err) }
	records, problems, err := List(ctx, s, job)
	if err != nil {
		return failed(err)
	}
	suspect, kept, err := suspects(problems)
	if err != nil {
		return failed(fmt.Errorf("nothing deleted: %w", err))
	}
	for _, n := range drop {
		if len(records) == 0 || n == 0 || n >= records[len(records)-1].Number {
			return failed(fmt.Errorf("commit %d is not one of those before the newest", n))
		}
	}
	var trusted []Record
	for _, r := range records {
		if suspect[r.Number] {
			continue
		}
		if r.Commit != nil && slices.Contains(drop, r.Number) {
			if r, err = putStub(ctx, s, r); err != nil {
				return failed(err)
			}
			done.Stubbed = append(done.Stubbed, r.Number)
		}
		trusted = append(trusted, r)
	}
	inUse := map[Attempt]bool{} // also when two numbers name one attempt: it was published again after damage
	for _, r := range records {
		if r.Commit != nil && !slices.Contains(done.Stubbed, r.Number) {
			inUse[r.Attempt()] = true
		}
	}
	for _, r := range trusted {
		if r.Stub == nil || r.Stub.Swept || inUse[r.Attempt()] {
			continue
		}
		if err := done.sweep(ctx, s, r.Attempt()); err != nil {
			return failed(err)
		}
		if err := markSwept(ctx, s, r); err != nil {
			return failed(err)
		}
	}
	folders, err := attemptFolders(ctx, s, job)
	if err != nil {
		return failed(err)
	}
	for _, a := range Abandoned(trusted, folders) {
		if inUse[a] {
			continue
		}
		if err := done.sweep(ctx, s, a); err != nil {
			return failed(err)
		}
	}
	if kept != nil {
		return failed(fmt.Errorf("kept, with all that it may name: %w", kept))
	}
	return done, nil
}

// suspects are the numbers whose records may not say what was published: damaged ones, and both ends of a link that does not
// hold. kept says so. An error that is not about the stored bytes proves nothing, and is returned.
func suspects(problems []Problem) (numbers map[uint64]bool, kept, err error) {
	numbers = map[uint64]bool{}
	var all []error
	for _, p := range problems {
		if !isDamage(p.Err) && !errors.Is(p.Err, ErrFormat) {
			return nil, nil, p
		}
		numbers[p.Number] = true
		if p.Link {
			numbers[p.Number-1] = true
		}
		all = append(all, p)
	}
	return numbers, errors.Join(all...), nil
}

// putStub replaces a commit object by its stub.
func putStub(ctx context.Context, s Store, r Record) (Record, error) {
	c := r.Commit
	return replaceStub(ctx, s, r, &Stub{
		Format: FormatVersion, Kind: kindStub, Number: c.Number, Job: c.Job, Attempt: c.Attempt, Branch: c.Branch, Step: c.Step,
		Generation: c.Generation, UnixNS: c.UnixNS, Predecessor: c.Predecessor, SHA256: r.SHA256,
	})
}

func markSwept(ctx context.Context, s Store, r Record) error {
	stub := *r.Stub
	stub.Swept = true
	_, err := replaceStub(ctx, s, r, &stub)
	return err
}

// replaceStub writes a stub over the record as it was read. When the outcome is unknown, or somebody else was faster, what
// is there afterwards decides.
func replaceStub(ctx context.Context, s Store, r Record, stub *Stub) (Record, error) {
	b, err := stub.Encode()
	if err != nil {
		return r, err
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
	if present.Stub == nil || present.Stub.SHA256 != stub.SHA256 {
		return r, fmt.Errorf("%s could not be replaced by its stub: %w", key, errors.Join(err, ErrConflict))
	}
	return present, nil
}

// sweep deletes all objects of an attempt, the parts first: without them the folder offers nothing.
func (done *Pruned) sweep(ctx context.Context, s Store, a Attempt) error {
	objects, err := ListAll(ctx, s, a.Folder()+"/")
	if err != nil {
		return err
	}
	for _, parts := range []bool{true, false} {
		for _, o := range objects {
			if strings.HasSuffix(o.Key, ".json") != parts {
				continue
			}
			if err := s.Delete(ctx, o.Key); err != nil {
				return err
			}
			done.Objects++
			done.Bytes += o.Size
		}
	}
	if len(objects) > 0 {
		done.Swept = append(done.Swept, a)
	}
	return nil
}

// attemptFolders lists the attempts of a job that have objects. It asks for one object of each folder.
func attemptFolders(ctx context.Context, s Store, job string) ([]Attempt, error) {
	prefix := job + "/step-"
	var folders []Attempt
	after := ""
	for {
		page, err := s.List(ctx, prefix, after, 1)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return folders, nil
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(page[0].Key, job+"/"), "/")
		if a, err := ParseAttempt(job, name); err == nil {
			folders = append(folders, a)
		}
		// '0' is the character after '/': the next list begins behind everything in this folder.
		after = job + "/" + name + "0"
		if !strings.HasPrefix(page[0].Key, job+"/"+name+"/") {
			after = page[0].Key // an object, not a folder
		}
	}
}
