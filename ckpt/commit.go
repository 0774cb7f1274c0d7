// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"phalanx"
)

const (
	kindCommit = "commit"
	kindStub   = "stub"
)

// Commit is the content of a commit object: the record by which a checkpoint is published. It is written last, once, and
// never changed; retention replaces it by a Stub.
type Commit struct {
	Format      int                `json:"format"`
	Kind        string             `json:"kind"` // "commit"
	Number      uint64             `json:"number"`
	Job         string             `json:"job"`
	Attempt     string             `json:"attempt"` // name of the folder that holds the data
	Branch      uint64             `json:"branch"`  // counts rewinds
	Step        phalanx.Step       `json:"step"`
	Generation  phalanx.Generation `json:"generation"`
	UnixNS      int64              `json:"unix_ns"`
	Container   string             `json:"container"`
	States      []StoredState      `json:"states"`      // one for each coordinate, in order
	Parts       []PartRef          `json:"parts"`       // in rank order
	Predecessor string             `json:"predecessor"` // SHA-256 of the commit object before this one, "" for the first
	Spec        json.RawMessage    `json:"spec,omitempty"`
	// Metadata is PyTorch's index in the attempt's folder, for container dcp.
	Metadata *ObjectRef `json:"metadata,omitempty"`
	// Fenced: the store created this object only because it was absent. Without it only the job's log kept two lineages apart.
	Fenced bool `json:"fenced,omitempty"`
	Sum    *CRC `json:"sum,omitempty"` // of the object's bytes with sixteen zeros in its place; from format 2 on
}

// ObjectRef names an object in the attempt's folder, with what proves that it is the one that was written.
type ObjectRef struct {
	Name      string `json:"name"`
	Size      int64  `json:"size_bytes"`
	CRC64NVME CRC    `json:"crc64nvme"`
	SHA256    string `json:"sha256"`
}

// StoredState says which state of which coordinate a checkpoint holds.
type StoredState struct {
	Label   phalanx.Label  `json:"label"`
	Digest  phalanx.Digest `json:"digest"` // D1 over all tensors, seed 0
	Tensors int            `json:"tensors"`
	Bytes   int64          `json:"bytes"`
}

// PartRef names a part file, with what proves that it is the one that was written.
type PartRef struct {
	Name       string       `json:"name"` // in the attempt's folder
	Rank       phalanx.Rank `json:"rank"`
	Coordinate int          `json:"coordinate"`
	Size       int64        `json:"size_bytes"`
	CRC64NVME  CRC          `json:"crc64nvme"`
	SHA256     string       `json:"sha256"`
}

// Record is one numbered object below JOB/commits/: a commit or its stub.
type Record struct {
	Number uint64
	Commit *Commit // nil for a stub
	Stub   *Stub   // nil for a commit
	SHA256 string  // of the commit object, also when a stub took its place
	ETag   string  // of the object as it was read, "" when unknown
}

// Predecessor is the SHA-256 of the commit object before this one.
func (r Record) Predecessor() string {
	if r.Stub != nil {
		return r.Stub.Predecessor
	}
	return r.Commit.Predecessor
}

// Attempt is the attempt that the record published.
func (r Record) Attempt() Attempt {
	job, name := "", ""
	if r.Stub != nil {
		job, name = r.Stub.Job, r.Stub.Attempt
	} else {
		job, name = r.Commit.Job, r.Commit.Attempt
	}
	a, _ := ParseAttempt(job, name) // decoders refuse what does not parse
	return a
}

// Branch is the branch of the lineage that the record belongs to.
func (r Record) Branch() uint64 {
	if r.Stub != nil {
		return r.Stub.Branch
	}
	return r.Commit.Branch
}

// Encode returns the bytes of the commit object, the same for equal commits.
func (c *Commit) Encode() ([]byte, error) {
	v := *c
	if v.Format >= 2 {
		v.Sum = new(CRC)
	}
	return encode(&v, v.Number, v.Sum)
}

// encode prints a record. sum, unless nil, points to its field for the checksum over all of it.
func encode(v any, number uint64, sum *CRC) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", " ")
	if sum != nil && err == nil {
		*sum = Checksum(append(b, '\n'))
		b, err = json.MarshalIndent(v, "", " ")
	}
	if err != nil {
		return nil, fmt.Errorf("encode commit object %d: %w", number, err)
	}
	return append(b, '\n'), nil
}

// sumField is how the checksum of a record is written: the last field.
var sumField = []byte("\n \"sum\": \"")

// checkSum checks the checksum that a record of format 2 carries over itself.
func checkSum(b []byte, format int, sum *CRC) error {
	if format < 2 {
		if sum != nil {
			return fmt.Errorf("format %d has no sum: %w", format, ErrFormat)
		}
		return nil
	}
	at := bytes.LastIndex(b, sumField) + len(sumField)
	if sum == nil || at < len(sumField) || len(b) < at+16 {
		return fmt.Errorf("no checksum at the end: %w", ErrFormat)
	}
	zeroed := bytes.Clone(b)
	copy(zeroed[at:], "0000000000000000")
	if got := Checksum(zeroed); got != *sum {
		return fmt.Errorf("crc64nvme of the object %s, expected %s: %w", got, *sum, ErrCorrupt)
	}
	return nil
}

// DecodeRecord reads a commit object or a stub. It never panics and allocates in proportion to the input.
func DecodeRecord(b []byte) (Record, error) {
	var head struct {
		Kind string `json:"kind"`
	}
	if len(b) > MaxStubBytes {
		return Record{}, fmt.Errorf("commit object: %d bytes, at most %d: %w", len(b), MaxStubBytes, ErrFormat)
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return Record{}, fmt.Errorf("commit object: %w: %w", err, ErrFormat)
	}
	var r Record
	var err error
	switch head.Kind {
	case kindCommit:
		r, err = decodeCommit(b)
	case kindStub:
		r, err = decodeStub(b)
	default:
		err = fmt.Errorf("kind %.20q is unknown: %w", head.Kind, ErrFormat)
	}
	if err != nil {
		return Record{}, fmt.Errorf("commit object: %w", err)
	}
	return r, nil
}

func decodeCommit(b []byte) (Record, error) {
	var c Commit
	if err := decode(b, MaxCommitBytes, FormatVersion, &c); err != nil {
		return Record{}, err
	}
	if err := checkSum(b, c.Format, c.Sum); err != nil {
		return Record{}, err
	}
	if err := c.validate(); err != nil {
		return Record{}, fmt.Errorf("%w: %w", err, ErrFormat)
	}
	return Record{Number: c.Number, Commit: &c, SHA256: sha256Hex(b)}, nil
}

func (c *Commit) validate() error {
	if err := validNames(c.Job, c.Attempt, c.Step, c.Generation); err != nil {
		return err
	}
	if err := validChain(c.Number, c.Predecessor); err != nil {
		return err
	}
	if err := checkContainer(c.Format, c.Container); err != nil {
		return err
	}
	if m := c.Metadata; (m != nil) != (c.Container == ContainerDCP) || m != nil && (m.Name != MetadataName || m.Size < 0 || !isSHA256(m.SHA256)) {
		return fmt.Errorf("container %s: %s is named wrongly or not at all", c.Container, MetadataName)
	}
	for i, s := range c.States {
		if s.Label.Coordinate != i || s.Label.Step != c.Step || s.Tensors < 0 || s.Bytes < 0 {
			return fmt.Errorf("state %d: %s, %d tensors, %d bytes, in a checkpoint of step %d", i, s.Label, s.Tensors, s.Bytes, c.Step)
		}
	}
	if len(c.States) == 0 || len(c.Parts) == 0 {
		return fmt.Errorf("%d states, %d parts", len(c.States), len(c.Parts))
	}
	last := phalanx.NoRank
	for _, p := range c.Parts {
		if err := p.validate(len(c.States)); err != nil {
			return err
		}
		if p.Rank <= last {
			return fmt.Errorf("part of rank %d after rank %d", p.Rank, last)
		}
		last = p.Rank
	}
	return nil
}

func (p PartRef) validate(coordinates int) error {
	if p.Rank < 0 || p.Name != partName(p.Rank) || p.Coordinate < 0 || p.Coordinate >= coordinates ||
		p.Size < 0 || p.Size > MaxPartBytes || !isSHA256(p.SHA256) {
		return fmt.Errorf("part %.40q of rank %d: coordinate %d of %d, %d bytes, sha256 %.70q", p.Name, p.Rank, p.Coordinate, coordinates, p.Size, p.SHA256)
	}
	return nil
}

func validNames(job, name string, step phalanx.Step, g phalanx.Generation) error {
	if err := validJob(job); err != nil {
		return err
	}
	a, err := ParseAttempt(job, name)
	if err != nil {
		return err
	}
	if a.Step != step || a.Generation != g {
		return fmt.Errorf("attempt %s in a record of step %d of generation %s", name, step, g)
	}
	return nil
}

func validChain(number uint64, predecessor string) error {
	switch {
	case number == 0:
		return fmt.Errorf("number 0: numbers begin with 1")
	case number == 1 && predecessor != "":
		return fmt.Errorf("number 1 has a predecessor")
	case number > 1 && !isSHA256(predecessor):
		return fmt.Errorf("number %d: predecessor %.70q is no SHA-256", number, predecessor)
	}
	return nil
}

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ReadRecord reads the commit object or stub with a number.
func ReadRecord(ctx context.Context, s Store, job string, number uint64) (Record, error) {
	if err := validJob(job); err != nil {
		return Record{}, err
	}
	return readRecord(ctx, s, job, number)
}

// readRecord reads the commit object or stub with a number.
func readRecord(ctx context.Context, s Store, job string, number uint64) (Record, error) {
	r, _, err := readNumbered(ctx, s, job, number)
	return r, err
}

// readNumbered is readRecord; it also gives the bytes of an object that can be read and is no record of this number.
func readNumbered(ctx context.Context, s Store, job string, number uint64) (Record, []byte, error) {
	key := CommitKey(job, number)
	info, err := s.Stat(ctx, key)
	if err != nil {
		return Record{}, nil, fmt.Errorf("read %s: %w", key, err)
	}
	b, err := readWhole(ctx, s, key, MaxStubBytes)
	if err != nil {
		return Record{}, nil, err
	}
	r, err := DecodeRecord(b)
	if err != nil {
		return Record{}, b, fmt.Errorf("%s: %w; run: phalanx ckpt verify", key, err)
	}
	if r.Number != number || r.Attempt().Job != job {
		return Record{}, b, fmt.Errorf("%s holds commit %d of job %.60q: %w; run: phalanx ckpt verify", key, r.Number, r.Attempt().Job, ErrFormat)
	}
	r.ETag = info.ETag
	return r, b, nil
}
