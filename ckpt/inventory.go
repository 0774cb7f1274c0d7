// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// TakeInventory reads what retention decides by: records, marks, folders, and whether the newest checkpoints are whole (it
// asks for their objects and reads no data). lineage says which commits belong to the lineage that the job goes on with; nil
// is what the records alone tell. An error means that nothing may be decided.
func TakeInventory(ctx context.Context, s Store, job string, lineage func(*Commit) bool) (*Inventory, error) {
	fail := func(err error) (*Inventory, error) {
		return nil, fmt.Errorf("take stock of %s: %w", job, err)
	}
	folders, err := ListAttempts(ctx, s, job)
	if err != nil {
		return fail(err)
	}
	records, problems, settled, err := listUnsettled(ctx, s, job)
	if err == nil && settled != nil && hasNameless(records, folders) {
		settled = nil // whether a record names it must be known for sure before anybody thinks of deleting it
		records, problems, err = List(ctx, s, job)
	}
	if err != nil {
		return fail(err)
	}
	if _, _, err := suspects(problems); err != nil {
		return fail(err)
	}
	inv := &Inventory{Job: job, Records: records, Problems: problems, Folders: folders, Settled: settled, Damaged: map[uint64]error{}, OffLineage: leftByBranches(records)}
	if lineage != nil {
		for _, r := range records {
			if r.Commit != nil && !lineage(r.Commit) {
				inv.OffLineage[r.Number] = true
			}
		}
	}
	if inv.Marks, err = ReadMarks(ctx, s, job); err != nil {
		return fail(err)
	}
	if err := inv.lookAtNewest(ctx, s); err != nil {
		return fail(err)
	}
	return inv, nil
}

// lookAtNewest finds out which of the newest checkpoints are not whole, until there are MinDurable of the lineage that are.
// A verification that failed is believed.
func (inv *Inventory) lookAtNewest(ctx context.Context, s Store) error {
	for n, m := range inv.Marks.Verified {
		if !m.OK {
			inv.Damaged[n] = fmt.Errorf("its verification failed: %w", ErrCorrupt)
		}
	}
	whole := 0
	for i := len(inv.Records) - 1; i >= 0 && whole < MinDurable; i-- {
		r := inv.Records[i]
		if r.Commit == nil || inv.Damaged[r.Number] != nil {
			continue
		}
		err := restorable(ctx, s, r.Commit)
		switch {
		case err == nil && !inv.OffLineage[r.Number]:
			whole++
		case err == nil:
		case !isDamage(err) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrFormat):
			return err
		default:
			inv.Damaged[r.Number] = err
		}
	}
	return nil
}

// hasNameless reports whether an attempt is named by none of the records and is not newer than the newest of them.
func hasNameless(records []Record, folders []Attempt) bool {
	if len(records) == 0 {
		return len(folders) > 0
	}
	named := map[Attempt]bool{}
	for _, r := range records {
		named[r.Attempt()] = true
	}
	newest := records[len(records)-1].Attempt()
	return slices.ContainsFunc(folders, func(a Attempt) bool {
		g := a.Generation.Compare(newest.Generation)
		return !named[a] && (g < 0 || g == 0 && a.Step <= newest.Step)
	})
}

// record is the record with a number, the zero value when it cannot be read.
func (inv *Inventory) record(number uint64) Record {
	for _, r := range inv.Records {
		if r.Number == number {
			return r
		}
	}
	return Record{}
}

// ListAttempts lists the attempts of a job that have objects, published or not. It asks for one object of each folder.
func ListAttempts(ctx context.Context, s Store, job string) ([]Attempt, error) {
	if err := validJob(job); err != nil {
		return nil, err
	}
	folders, err := attemptFolders(ctx, s, job)
	if err != nil {
		return nil, fmt.Errorf("list attempts of %s: %w", job, err)
	}
	return folders, nil
}

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

// Sweep is what gc would do about one number, or about one attempt that was never published.
type Sweep struct {
	Number  uint64 // 0: never published
	Attempt Attempt
	Phase   Phase     // of the stub, "" without one
	Since   time.Time // when it was forgotten, or first seen to be abandoned; the zero time: seen now for the first time
	Due     bool      // its data go now
	Why     string
}

// PlanSweep says what gc may delete now, in the order of numbers, then attempts. grace is counted from when a checkpoint was
// forgotten; nil takes the time until which the stub promises that it can be undeleted, and abandonedGrace for attempts
// that were never published. It is pure. Whatever is not due is listed with why.
func PlanSweep(inv *Inventory, now time.Time, grace *time.Duration, abandonedGrace time.Duration) []Sweep {
	suspect, _, err := suspects(inv.Problems)
	if err != nil {
		return nil // TakeInventory refuses such an inventory
	}
	// What may still be read, or be put back: also when two numbers name one attempt, which was published again after damage.
	needed := map[Attempt]uint64{}
	var trusted []Record
	for _, r := range inv.Records {
		if !suspect[r.Number] {
			trusted = append(trusted, r)
		}
		if r.Commit != nil || suspect[r.Number] && r.Stub.At() == Forgotten {
			needed[r.Attempt()] = r.Number
		}
	}
	var plan []Sweep
	folders := map[Attempt]bool{}
	for _, a := range inv.Folders {
		folders[a] = true
	}
	for _, r := range trusted {
		if r.Stub == nil {
			continue
		}
		x := planStub(inv, r, now, grace)
		if x.Phase == Swept {
			if !folders[x.Attempt] {
				continue
			}
			x.Due, x.Why = true, "objects came after its folder was swept"
		}
		if n := needed[x.Attempt]; x.Due && n != 0 {
			x.Due, x.Why = false, fmt.Sprintf("checkpoint %d has the same data", n)
		}
		plan = append(plan, x)
	}
	for _, a := range Abandoned(trusted, inv.Folders) {
		if needed[a] == 0 {
			plan = append(plan, planAbandoned(inv, a, now, abandonedGrace))
		}
	}
	return plan
}

func planStub(inv *Inventory, r Record, now time.Time, grace *time.Duration) Sweep {
	x := Sweep{Number: r.Number, Attempt: r.Attempt(), Phase: r.Stub.At()}
	if r.Stub.ForgottenUnixNS != 0 {
		x.Since = time.Unix(0, r.Stub.ForgottenUnixNS).UTC()
	}
	if x.Phase != Forgotten {
		x.Due, x.Why = true, "its data are being deleted"
		return x
	}
	until := r.Stub.Until()
	if grace != nil {
		until = x.Since.Add(*grace)
	}
	if m := inv.Marks; m.Pins[r.Number] != nil || m.problem(PinMark, r.Number) != nil || m.problem(HoldMark, r.Number) != nil {
		x.Why = "it is pinned or held"
		return x
	}
	for _, h := range inv.Marks.Holds[r.Number] {
		if time.Unix(0, h.UntilUnixNS).After(now) {
			x.Why = fmt.Sprintf("held for %s until %s", h.Owner, time.Unix(0, h.UntilUnixNS).UTC().Format(time.RFC3339))
			return x
		}
	}
	if now.Before(until) {
		x.Why = "can be undeleted until " + until.Format(time.RFC3339)
		return x
	}
	x.Due, x.Why = true, "its grace is over"
	return x
}

func planAbandoned(inv *Inventory, a Attempt, now time.Time, grace time.Duration) Sweep {
	x := Sweep{Attempt: a}
	if m := inv.Marks.Seen[a.Name()]; m != nil {
		x.Since = time.Unix(0, m.UnixNS).UTC()
	}
	switch {
	case grace <= 0:
		x.Due, x.Why = true, "never published, and can be no more"
	case x.Since.IsZero():
		x.Why = fmt.Sprintf("never published, and can be no more; seen so for the first time, its grace of %s begins", grace)
	case now.Before(x.Since.Add(grace)):
		x.Why = "never published, and can be no more; its data stay until " + x.Since.Add(grace).Format(time.RFC3339)
	default:
		x.Due, x.Why = true, "never published, and its grace is over"
	}
	return x
}
