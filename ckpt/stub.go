// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"errors"
	"fmt"
	"time"

	"phalanx"
)

// MaxStubBytes bounds what the decoder of a stub takes: it holds a whole commit object, in base64.
const MaxStubBytes = MaxCommitBytes/3*4 + 1<<20

// Phase says how far a stub's checkpoint is on its way out. The three follow each other; only Forgotten leads back.
type Phase string

const (
	// Forgotten: readers see it no more, its data are all there, and Undelete puts the commit object back.
	Forgotten Phase = "forgotten"
	// Sweeping: its data are being deleted. Entered by replacing the stub that was read as forgotten, before the first byte
	// goes; nothing leads back, so who finds a stub in this phase may delete, however late.
	Sweeping Phase = "sweeping"
	// Swept: after the stub was sweeping the attempt's folder was found without any object of ours.
	Swept Phase = "swept"
)

// Stub is what retention leaves in place of a commit object: the number stays taken and the chain can be followed.
type Stub struct {
	Format      int                `json:"format"`
	Kind        string             `json:"kind"` // "stub"
	Number      uint64             `json:"number"`
	Job         string             `json:"job"`
	Attempt     string             `json:"attempt"`
	Branch      uint64             `json:"branch"`
	Step        phalanx.Step       `json:"step"`
	Generation  phalanx.Generation `json:"generation"`
	UnixNS      int64              `json:"unix_ns"` // of the commit
	Predecessor string             `json:"predecessor"`
	SHA256      string             `json:"sha256"`          // of the commit object that was here
	Swept       bool               `json:"swept,omitempty"` // format 1 only: its data were deleted

	// Format 2 only.
	Phase           Phase  `json:"phase,omitempty"`
	ForgottenUnixNS int64  `json:"forgotten_unix_ns,omitempty"` // when, by the clock of who forgot it
	UntilUnixNS     int64  `json:"until_unix_ns,omitempty"`     // its data stay at least so long, by the clock of who sweeps
	By              string `json:"by,omitempty"`                // who forgot it
	Why             string `json:"why,omitempty"`               // by which rule, or the operator's words
	// Token is drawn anew each time that a checkpoint is forgotten: a decision that was taken on an earlier stub, before an
	// undelete, finds another object. An ETag alone does not tell them apart where it is a digest of the content.
	Token string `json:"token,omitempty"`
	// Commit is the commit object, byte for byte, while the stub is Forgotten.
	Commit []byte `json:"commit,omitempty"`
	Sum    *CRC   `json:"sum,omitempty"` // as in a commit
}

// At is the phase of a stub of any format. One of format 1 has no way back: the release that wrote it deleted at once.
func (s *Stub) At() Phase {
	switch {
	case s.Format > 1:
		return s.Phase
	case s.Swept:
		return Swept
	}
	return Sweeping
}

// Until is when gc may begin to delete the data, by the words of who forgot it; the zero time when it has begun.
func (s *Stub) Until() time.Time {
	if s.At() != Forgotten {
		return time.Time{}
	}
	return time.Unix(0, s.UntilUnixNS).UTC()
}

// RemovedError says that a checkpoint was removed by retention. It is an ErrNotFound.
type RemovedError struct{ Stub *Stub }

func (e *RemovedError) Error() string {
	s := e.Stub
	what := fmt.Sprintf("checkpoint %d (step %d) was removed by retention", s.Number, s.Step)
	if s.At() != Forgotten {
		return what + " for good"
	}
	if s.Why != "" {
		what += " (" + s.Why + ")"
	}
	return what + fmt.Sprintf(" and can be undeleted until %s: phalanx ckpt undelete %s", s.Until().Format(time.RFC3339), s.Attempt)
}

// Is makes errors.Is(err, ErrNotFound) true.
func (e *RemovedError) Is(target error) bool { return target == ErrNotFound }

// stub describes a commit that is being forgotten. content is the commit object as it is stored.
func (c *Commit) stub(content []byte, f forgetting) *Stub {
	return &Stub{
		Format: FormatVersion, Kind: kindStub, Number: c.Number, Job: c.Job, Attempt: c.Attempt, Branch: c.Branch, Step: c.Step,
		Generation: c.Generation, UnixNS: c.UnixNS, Predecessor: c.Predecessor, SHA256: sha256Hex(content),
		Phase: Forgotten, ForgottenUnixNS: f.now.UnixNano(), UntilUnixNS: f.now.Add(f.grace).UnixNano(), By: f.by, Why: f.why,
		Token: newToken(), Commit: content,
	}
}

// advanced is the stub in a later phase, which holds no commit any more. It has the present format whatever it had.
func (s *Stub) advanced(to Phase) *Stub {
	next := *s
	next.Format, next.Swept, next.Phase, next.Commit = FormatVersion, false, to, nil
	return &next
}

// Encode returns the bytes of the stub.
func (s *Stub) Encode() ([]byte, error) {
	v := *s
	if v.Format >= 2 {
		v.Sum = new(CRC)
	}
	return encode(&v, v.Number, v.Sum)
}

func decodeStub(b []byte) (Record, error) {
	var s Stub
	if err := decode(b, MaxStubBytes, FormatVersion, &s); err != nil {
		return Record{}, err
	}
	if err := checkSum(b, s.Format, s.Sum); err != nil {
		return Record{}, err
	}
	if err := s.validate(); err != nil {
		return Record{}, fmt.Errorf("stub %d: %w: %w", s.Number, err, ErrFormat)
	}
	return Record{Number: s.Number, Stub: &s, SHA256: s.SHA256}, nil
}

func (s *Stub) validate() error {
	if err := validNames(s.Job, s.Attempt, s.Step, s.Generation); err != nil {
		return err
	}
	if err := validChain(s.Number, s.Predecessor); err != nil {
		return err
	}
	if !isSHA256(s.SHA256) {
		return fmt.Errorf("sha256 %.70q", s.SHA256)
	}
	if s.Format == 1 {
		if s.Phase != "" || s.ForgottenUnixNS != 0 || s.UntilUnixNS != 0 || s.By != "" || s.Why != "" || s.Token != "" || s.Commit != nil {
			return errors.New("format 1 with fields of format 2")
		}
		return nil
	}
	if s.Swept {
		return errors.New("format 2 with a field of format 1")
	}
	switch s.Phase {
	case Forgotten:
		return s.validateForgotten()
	case Sweeping, Swept:
		if s.Commit != nil {
			return fmt.Errorf("phase %s and the commit object is inside", s.Phase)
		}
		return nil
	}
	return fmt.Errorf("phase %.20q is unknown", s.Phase)
}

// validateForgotten proves that the commit object inside is the one that was here.
func (s *Stub) validateForgotten() error {
	if sha256Hex(s.Commit) != s.SHA256 {
		return errors.New("the commit object inside has another digest")
	}
	r, err := decodeCommit(s.Commit)
	if err != nil {
		return fmt.Errorf("the commit object inside: %w", err)
	}
	c := r.Commit
	if c.Number != s.Number || c.Job != s.Job || c.Attempt != s.Attempt || c.Branch != s.Branch || c.Predecessor != s.Predecessor {
		return fmt.Errorf("the commit object inside is number %d of %.60q/%.80q", c.Number, c.Job, c.Attempt)
	}
	return nil
}

// Inside is the commit that a forgotten stub holds, nil in a later phase.
func (s *Stub) Inside() *Commit {
	if s.At() != Forgotten {
		return nil
	}
	r, err := decodeCommit(s.Commit)
	if err != nil {
		return nil // validate has decoded it
	}
	return r.Commit
}
