// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// has reports whether a number is settled: its checkpoint was swept, which nothing leads back from.
func (m *Mark) has(number uint64) bool {
	if m == nil || number == 0 || number > m.Number {
		return false
	}
	_, left := slices.BinarySearch(m.Left, number)
	return !left
}

// listUnsettled is List without the numbers that are settled: what a job costs with each publish must not grow with its age.
// A mark that cannot be read, or that the store does not bear out because an older state of it was brought back, is passed over.
func listUnsettled(ctx context.Context, s Store, job string) ([]Record, []Problem, *Mark, error) {
	if err := validJob(job); err != nil {
		return nil, nil, nil, err
	}
	newest, err := newestNumber(ctx, s, job)
	if err != nil {
		return nil, nil, nil, err
	}
	settled, err := readMark(ctx, s, (&Mark{Kind: SettledMark, Job: job}).Key())
	switch {
	case err != nil && !isDamage(err) && !errors.Is(err, ErrFormat):
		return nil, nil, nil, err
	case err != nil, settled.Kind != SettledMark, settled.Job != job, settled.Number >= newest:
		settled = nil
	}
	if settled != nil {
		last, err := readRecord(ctx, s, job, settled.Number)
		if err != nil && !isDamage(err) && !errors.Is(err, ErrFormat) {
			return nil, nil, nil, err
		}
		if err != nil || last.SHA256 != settled.SHA256 || last.Stub == nil || last.Stub.At() != Swept {
			settled = nil
		}
	}
	var numbers []uint64
	first := uint64(1)
	if settled != nil {
		numbers, first = slices.Clone(settled.Left), settled.Number+1
	}
	for n := first; n <= newest; n++ {
		numbers = append(numbers, n)
	}
	records, problems, err := readRecords(ctx, s, job, numbers)
	return records, problems, settled, err
}

// settleEvery is how many numbers must be new before the mark is written again.
const settleEvery = 16

// settle writes down which numbers need not be looked at again: up to the last one that was found swept, all but those that
// were found otherwise, or not found to be readable.
func (c *collector) settle(ctx context.Context) error {
	m := &Mark{Format: FormatVersion, Kind: SettledMark, Job: c.inv.Job, UnixNS: c.Now.UnixNano(), By: clip(c.By)}
	before := uint64(0)
	if c.inv.Settled != nil {
		before = c.inv.Settled.Number
	}
	swept := map[uint64]bool{}
	for _, r := range c.inv.Records {
		if swept[r.Number] = r.Stub != nil && r.Stub.At() == Swept; swept[r.Number] {
			m.Number, m.SHA256 = r.Number, r.SHA256
		}
	}
	if m.Number < before+settleEvery {
		return nil
	}
	for n := uint64(1); n <= m.Number; n++ {
		if !swept[n] && !c.inv.Settled.has(n) {
			m.Left = append(m.Left, n)
		}
	}
	if content, err := m.Encode(); err != nil || len(content) > MaxMarkBytes/2 {
		return err // so many are kept that nothing would be gained
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	if err := putMark(ctx, c.s, m); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}
