// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// MarkProblem is a mark that cannot be read. What it may say about the number in its key is taken for true: a damaged pin
// pins, a damaged hold holds, and a damaged verification may be the last.
type MarkProblem struct {
	Kind   MarkKind
	Key    string
	Number uint64
	Err    error
}

func (p MarkProblem) Error() string { return fmt.Sprintf("%s %s: %v", p.Kind, p.Key, p.Err) }
func (p MarkProblem) Unwrap() error { return p.Err }

// Marks are the marks of a job, as they were read.
type Marks struct {
	Pins     map[uint64]*Mark
	Holds    map[uint64][]*Mark // sorted by owner
	Verified map[uint64]*Mark
	Seen     map[string]*Mark // by the name of the attempt
	Problems []MarkProblem
}

// ReadMarks reads the pins, holds, verifications and records of abandoned attempts of a job. A store that cannot be read is
// an error, a mark that is damaged is among the problems.
func ReadMarks(ctx context.Context, s Store, job string) (*Marks, error) {
	if err := validJob(job); err != nil {
		return nil, err
	}
	m := &Marks{Pins: map[uint64]*Mark{}, Holds: map[uint64][]*Mark{}, Verified: map[uint64]*Mark{}, Seen: map[string]*Mark{}}
	for _, kind := range []MarkKind{PinMark, HoldMark, VerifiedMark, SeenMark} {
		if err := m.read(ctx, s, job, kind, ""); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// keepsOf reads only what keeps one number: its pin and its holds.
func keepsOf(ctx context.Context, s Store, job string, number uint64) (*Marks, error) {
	m := &Marks{Pins: map[uint64]*Mark{}, Holds: map[uint64][]*Mark{}}
	for _, kind := range []MarkKind{PinMark, HoldMark} {
		if err := m.read(ctx, s, job, kind, fmt.Sprintf("%012d.", number)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// read reads the marks of one kind whose names begin with begin.
func (m *Marks) read(ctx context.Context, s Store, job string, kind MarkKind, begin string) error {
	keys, err := listMarks(ctx, s, job, kind, begin)
	if err != nil {
		return err
	}
	found := make([]*Mark, len(keys))
	errs := make([]error, len(keys))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(requestLimit)
	for i, k := range keys {
		group.Go(func() error {
			found[i], errs[i] = readMark(gctx, s, k.Key)
			if errs[i] == nil && found[i].Key() != k.Key {
				errs[i] = fmt.Errorf("holds the mark %.80q: %w", found[i].Key(), ErrFormat)
			}
			if errs[i] != nil && !isDamage(errs[i]) && !errors.Is(errs[i], ErrFormat) {
				return fmt.Errorf("read %s: %w", k.Key, errs[i])
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, k := range keys {
		switch {
		case errors.Is(errs[i], ErrNotFound): // taken away since it was listed
		case errs[i] != nil:
			m.Problems = append(m.Problems, MarkProblem{kind, k.Key, k.Number, errs[i]})
		default:
			m.add(found[i])
		}
	}
	return nil
}

func (m *Marks) add(k *Mark) {
	switch k.Kind {
	case PinMark:
		m.Pins[k.Number] = k
	case HoldMark:
		m.Holds[k.Number] = append(m.Holds[k.Number], k)
	case VerifiedMark:
		m.Verified[k.Number] = k
	case SeenMark:
		m.Seen[k.Attempt] = k
	case SettledMark: // read by itself
	}
}

// problem is the damaged mark of a kind about a number, if there is one.
func (m *Marks) problem(kind MarkKind, number uint64) *MarkProblem {
	for i, p := range m.Problems {
		if p.Kind == kind && p.Number == number {
			return &m.Problems[i]
		}
	}
	return nil
}

// markKey is a key that parses, and what it says.
type markKey struct {
	Key    string
	Number uint64
}

// listMarks lists the keys of one kind of mark. Names that do not parse are ignored.
func listMarks(ctx context.Context, s Store, job string, kind MarkKind, begin string) ([]markKey, error) {
	prefix := job + "/" + kind.folder() + "/"
	var keys []markKey
	for after := ""; ; {
		page, err := s.List(ctx, prefix+begin, after, 0)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		if len(page) == 0 {
			return keys, nil
		}
		for _, o := range page {
			if number, ok := parseMarkName(job, kind, strings.TrimPrefix(o.Key, prefix)); ok {
				keys = append(keys, markKey{o.Key, number})
			}
		}
		if len(keys) > MaxMarks {
			return nil, fmt.Errorf("%s holds more than %d objects; take away what is not needed: phalanx ckpt unpin, phalanx ckpt gc", prefix, MaxMarks)
		}
		after = page[len(page)-1].Key
	}
}

// parseMarkName takes the name of a mark apart: the number, 0 for those of attempts.
func parseMarkName(job string, kind MarkKind, name string) (uint64, bool) {
	name, ok := strings.CutSuffix(name, ".json")
	if !ok {
		return 0, false
	}
	if kind == SeenMark {
		_, err := ParseAttempt(job, name)
		return 0, err == nil
	}
	if kind == HoldMark {
		digits, owner, found := strings.Cut(name, ".")
		if !found || !validOwner(owner) {
			return 0, false
		}
		name = digits
	}
	n, err := strconv.ParseUint(name, 10, 64)
	return n, err == nil && n > 0 && fmt.Sprintf("%012d", n) == name
}

func readMark(ctx context.Context, s Store, key string) (*Mark, error) {
	b, err := readWhole(ctx, s, key, MaxMarkBytes)
	if err != nil {
		return nil, err
	}
	return DecodeMark(b)
}
