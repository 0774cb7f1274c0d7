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

const (
	// MaxMarkBytes bounds one mark.
	MaxMarkBytes = 64 << 10
	// MaxMarks bounds the marks of a kind that are read of a job.
	MaxMarks = 20_000
	// MaxWhy bounds the words in a mark, and the name of who made it, in bytes.
	MaxWhy = 1000

	firstMarks = 2 // the format that brought them
)

// MarkKind is the kind of a mark: a small object beside the commit objects that says something about one of them.
type MarkKind string

// The kinds of marks, with their keys.
const (
	PinMark      MarkKind = "pin"      // JOB/pins/NUMBER.json: kept until somebody takes the pin away
	HoldMark     MarkKind = "hold"     // JOB/holds/NUMBER.OWNER.json: kept for its owner until it expires
	VerifiedMark MarkKind = "verified" // JOB/verified/NUMBER.json: what the last verification of it found
	SeenMark     MarkKind = "seen"     // JOB/abandoned/ATTEMPT.json: since when gc knows that an attempt is abandoned
	SettledMark  MarkKind = "settled"  // JOB/settled.json: which numbers gc need not look at again
)

func (k MarkKind) folder() string {
	switch k {
	case PinMark:
		return "pins"
	case HoldMark:
		return "holds"
	case VerifiedMark:
		return "verified"
	case SeenMark:
		return "abandoned"
	case SettledMark:
	}
	return "unknown"
}

// Level says how deeply a checkpoint was verified. Each level includes those before it.
type Level string

// The levels, from shallow to deep.
const (
	LevelManifest Level = "manifest" // commit object and parts: checksums, agreement, coverage
	LevelHead     Level = "head"     // every data object is there, with its size, and its checksum where the store keeps one
	LevelData     Level = "data"     // every byte was read
)

// Depth orders levels; 0 is none of them.
func (l Level) Depth() int { return slices.Index([]Level{"", LevelManifest, LevelHead, LevelData}, l) }

// Mark is the content of every mark; a kind has fields of its own beside those that all have.
type Mark struct {
	Format int      `json:"format"`
	Kind   MarkKind `json:"kind"`
	Job    string   `json:"job"`
	Number uint64   `json:"number,omitempty"` // of the commit; not of SeenMark
	// SHA256 is the digest of the commit object that was meant. Where the store has another one now, a pin or hold keeps it
	// all the same.
	SHA256 string `json:"sha256,omitempty"`
	UnixNS int64  `json:"unix_ns"` // when it was made, by the clock of who made it
	By     string `json:"by,omitempty"`
	Why    string `json:"why,omitempty"`

	Owner       string `json:"owner,omitempty"`         // HoldMark: one key element
	UntilUnixNS int64  `json:"until_unix_ns,omitempty"` // HoldMark: when it expires

	Level   Level  `json:"level,omitempty"`   // VerifiedMark
	OK      bool   `json:"ok,omitempty"`      // VerifiedMark: nothing was wrong
	Version string `json:"version,omitempty"` // VerifiedMark: of the program that verified

	Attempt string `json:"attempt,omitempty"` // SeenMark: name of the folder

	Left []uint64 `json:"left,omitempty"` // SettledMark: the numbers up to Number that are not swept, ascending

	Sum *CRC `json:"sum,omitempty"` // as in a commit
}

// Key is the key of the mark.
func (m *Mark) Key() string {
	name := fmt.Sprintf("%012d", m.Number)
	switch m.Kind {
	case SettledMark:
		return m.Job + "/settled.json"
	case HoldMark:
		name += "." + m.Owner
	case SeenMark:
		name = m.Attempt
	case PinMark, VerifiedMark:
	}
	return m.Job + "/" + m.Kind.folder() + "/" + name + ".json"
}

// Encode returns the bytes of the mark.
func (m *Mark) Encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Kind, err)
	}
	v := *m
	v.Sum = new(CRC)
	return encode(&v, v.Number, v.Sum)
}

// DecodeMark reads a mark. It never panics and allocates in proportion to the input.
func DecodeMark(b []byte) (*Mark, error) {
	var m Mark
	if err := decode(b, MaxMarkBytes, FormatVersion, &m); err != nil {
		return nil, fmt.Errorf("mark: %w", err)
	}
	if err := checkSum(b, m.Format, m.Sum); err != nil {
		return nil, fmt.Errorf("mark: %w", err)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("mark: %w: %w", err, ErrFormat)
	}
	return &m, nil
}

func (m *Mark) validate() error {
	if m.Format < firstMarks || m.Format > FormatVersion {
		return fmt.Errorf("format %d: marks have %d to %d", m.Format, firstMarks, FormatVersion)
	}
	if err := validJob(m.Job); err != nil {
		return err
	}
	if len(m.Why) > MaxWhy || len(m.By) > MaxWhy || len(m.Version) > MaxWhy {
		return fmt.Errorf("more than %d bytes of words", MaxWhy)
	}
	if m.SHA256 != "" && !isSHA256(m.SHA256) {
		return fmt.Errorf("sha256 %.70q", m.SHA256)
	}
	if (m.Number == 0) != (m.Kind == SeenMark) {
		return fmt.Errorf("%.20q of number %d", m.Kind, m.Number)
	}
	switch m.Kind {
	case PinMark:
	case HoldMark:
		if !validOwner(m.Owner) {
			return fmt.Errorf("owner %.80q: want letters, digits, dots, dashes and underscores, at most %d", m.Owner, maxOwner)
		}
	case VerifiedMark:
		if m.Level.Depth() < 1 {
			return fmt.Errorf("level %.20q is unknown", m.Level)
		}
	case SeenMark:
		if _, err := ParseAttempt(m.Job, m.Attempt); err != nil {
			return err
		}
	case SettledMark:
		for i, n := range m.Left {
			if n == 0 || n > m.Number || i > 0 && n <= m.Left[i-1] {
				return fmt.Errorf("numbers up to %d are left: %d is no such, or not in order", m.Number, n)
			}
		}
	default:
		return fmt.Errorf("kind %.20q is unknown", m.Kind)
	}
	return nil
}

const maxOwner = 120

func validOwner(owner string) bool {
	return owner != "" && len(owner) <= maxOwner && !strings.Contains(owner, "/") && ValidKey("x"+owner) == nil
}

// putMark creates a mark, or replaces the one that is there: the last one to say something about a number is right, and a
// damaged mark is mended. When the outcome is unknown, what is there afterwards decides.
func putMark(ctx context.Context, s Store, m *Mark) error {
	content, err := m.Encode()
	if err != nil {
		return err
	}
	key := m.Key()
	err = s.PutIfAbsent(ctx, key, Bytes(content))
	for try := 0; err != nil && try < putTries; try++ {
		if errors.Is(err, ErrReadOnly) || ctx.Err() != nil {
			break
		}
		present, rerr := readWhole(ctx, s, key, MaxMarkBytes)
		if rerr == nil && string(present) == string(content) {
			return nil
		}
		if errors.Is(rerr, ErrNotFound) {
			err = s.PutIfAbsent(ctx, key, Bytes(content))
			continue
		}
		err = s.Put(ctx, key, Bytes(content))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// RecordVerified writes down what a verification found. A shallower look that found nothing wrong does not replace a deeper
// one that did not either.
func RecordVerified(ctx context.Context, s Store, r Record, level Level, ok bool, by, version string, now time.Time) error {
	if r.Commit == nil {
		return errors.New("record a verification: not a published checkpoint")
	}
	m := &Mark{Format: FormatVersion, Kind: VerifiedMark, Job: r.Commit.Job, Number: r.Number, SHA256: r.SHA256, UnixNS: now.UnixNano(),
		By: clip(by), Level: level, OK: ok, Version: clip(version)}
	before, err := readMark(ctx, s, m.Key())
	if err == nil && ok && before.OK && before.SHA256 == m.SHA256 && before.Level.Depth() > level.Depth() {
		return nil
	}
	if err := putMark(ctx, s, m); err != nil {
		return fmt.Errorf("record the verification of checkpoint %d: %w", r.Number, err)
	}
	return nil
}

// clip makes words fit into a mark, at a boundary of characters.
func clip(words string) string {
	if len(words) <= MaxWhy {
		return words
	}
	return strings.ToValidUTF8(words[:MaxWhy], "")
}
