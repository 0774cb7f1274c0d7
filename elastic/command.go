// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"phalanx"
)

// Command is one entry of the log. The set is closed: an unknown kind stops the daemon, it is never skipped.
type Command interface{ kind() string }

// AdmitMembers makes incarnations known. The first one also commits the job's spec, the policy and the layout of its state; where
// members are pinned, the first member of each coordinate brings the layout of that one.
type AdmitMembers struct {
	Members []Admission          `json:"members"`
	Spec    *phalanx.JobSpec     `json:"spec,omitempty"`
	State   []phalanx.TensorInfo `json:"state,omitempty"`
	Policy  *Policy              `json:"policy,omitempty"`
	// WarmStart comes with the spec, if the job has one.
	WarmStart *WarmStart `json:"warm_start,omitempty"`
	UnixNS    int64      `json:"unix_ns"`
}

// Admission is one incarnation that may take part.
type Admission struct {
	phalanx.Incarnate
	Host string `json:"host"`
	// Pin is where alone it may sit, and Layout that of its state, if it is the first one there.
	Pin    phalanx.Pin          `json:"pin,omitempty"`
	Layout []phalanx.TensorInfo `json:"layout,omitzero"`
}

// EvictMembers removes incarnations that are not in the world.
type EvictMembers struct {
	Evictions []Eviction `json:"evictions"`
	UnixNS    int64      `json:"unix_ns"`
}

// Eviction is the end of one incarnation, with what proves it.
type Eviction struct {
	phalanx.Incarnate
	Evidence phalanx.Evidence `json:"evidence"`
}

// FormGeneration is the only entry on the path of a failure: it evicts, decides the resume step and names the next world.
type FormGeneration struct {
	Base      phalanx.Generation  `json:"base"`
	World     phalanx.World       `json:"world"`
	Floor     Floor               `json:"floor"`
	Source    Source              `json:"source"`
	Evictions []Eviction          `json:"evictions,omitempty"`
	Seals     []phalanx.Incarnate `json:"seals"` // whose answers it rests on
	Halt      *HaltReason         `json:"halt,omitempty"`
	Cause     string              `json:"cause"`
	Planned   bool                `json:"planned,omitempty"`
	Newest    phalanx.Step        `json:"newest_step"`
	Evidence  []phalanx.Evidence  `json:"evidence,omitempty"`
	UnixNS    int64               `json:"unix_ns"`
}

// Rewind opens a new branch of the lineage below the floor, or the first world from a checkpoint.
type Rewind struct {
	FormGeneration
	Branch     int      `json:"branch"`
	Unreadable []uint64 `json:"unreadable,omitempty"` // commit numbers of published checkpoints that cannot be read
}

// Activate records, beside the path, that the generation has committed its first step and how long the parts took.
type Activate struct {
	Generation phalanx.Generation `json:"generation"`
	Seconds    Seconds            `json:"seconds"`
	UnixNS     int64              `json:"unix_ns"`
}

// PublishCheckpoint records a checkpoint whose commit object is written.
type PublishCheckpoint struct {
	Published
}

// Quarantine keeps a host's members out of the next world until lifted.
type Quarantine struct {
	Member   phalanx.MemberID `json:"member"`
	Evidence phalanx.Evidence `json:"evidence"`
}

// Lift ends a quarantine.
type Lift struct {
	Member phalanx.MemberID `json:"member"`
	Why    string           `json:"why"`
}

// Drain asks a member to leave in order.
type Drain struct {
	Member phalanx.MemberID `json:"member"`
	Why    string           `json:"why"`
}

// Resize changes how many ranks a full world has.
type Resize struct {
	Want int `json:"want"`
}

// Halt ends training without a new world.
type Halt struct {
	Reason HaltReason `json:"reason"`
	UnixNS int64      `json:"unix_ns"`
}

// Resume begins a job anew that had ended without being done: somebody has started it again.
type Resume struct {
	Policy *Policy `json:"policy,omitempty"` // of the new start
	UnixNS int64   `json:"unix_ns"`
}

// Done records that the last step is committed, every trainer has ended and the last save is durable.
type Done struct {
	Step   phalanx.Step   `json:"step"`
	Digest phalanx.Digest `json:"digest"`
	UnixNS int64          `json:"unix_ns"`
}

func (AdmitMembers) kind() string      { return "admit_members" }
func (EvictMembers) kind() string      { return "evict_members" }
func (FormGeneration) kind() string    { return "form_generation" }
func (Rewind) kind() string            { return "rewind" }
func (Activate) kind() string          { return "activate" }
func (PublishCheckpoint) kind() string { return "publish_checkpoint" }
func (Quarantine) kind() string        { return "quarantine" }
func (Lift) kind() string              { return "lift" }
func (Drain) kind() string             { return "drain" }
func (Resize) kind() string            { return "resize" }
func (Halt) kind() string              { return "halt" }
func (Resume) kind() string            { return "resume" }
func (Done) kind() string              { return "done" }

// ErrUnknownCommand means that the log holds an entry of a newer version. The daemon must stop and be upgraded.
var ErrUnknownCommand = errors.New("unknown command in the log: this daemon is older than the job; upgrade it")

type envelope struct {
	Version int             `json:"v"`
	Kind    string          `json:"kind"`
	Body    json.RawMessage `json:"body"`
}

// EncodeCommand makes the bytes of a log entry.
func EncodeCommand(c Command) ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.kind(), err)
	}
	return json.Marshal(envelope{version(c), c.kind(), body})
}

// version is the oldest version that can say what c says.
func version(c Command) int {
	if a, ok := c.(AdmitMembers); ok && a.WarmStart != nil || ok && slices.ContainsFunc(a.Members, func(a Admission) bool { return a.Pin != phalanx.AnyPlace || a.Layout != nil }) {
		return versionPinned
	}
	return versionBase
}

// DecodeCommand reads the bytes of a log entry.
func DecodeCommand(b []byte) (Command, error) {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("decode log command: %w", err)
	}
	if e.Version < 1 {
		return nil, fmt.Errorf("decode log command %q: it has no version", e.Kind)
	}
	if e.Version > FormatVersion {
		return nil, fmt.Errorf("decode log command %q version %d: %w", e.Kind, e.Version, ErrUnknownCommand)
	}
	switch e.Kind {
	case "admit_members":
		return decodeBody[AdmitMembers](e)
	case "evict_members":
		return decodeBody[EvictMembers](e)
	case "form_generation":
		return decodeBody[FormGeneration](e)
	case "rewind":
		return decodeBody[Rewind](e)
	case "activate":
		return decodeBody[Activate](e)
	case "publish_checkpoint":
		return decodeBody[PublishCheckpoint](e)
	case "reach_level":
		return decodeBody[ReachLevel](e)
	case "quarantine":
		return decodeBody[Quarantine](e)
	case "lift":
		return decodeBody[Lift](e)
	case "drain":
		return decodeBody[Drain](e)
	case "resize":
		return decodeBody[Resize](e)
	case "halt":
		return decodeBody[Halt](e)
	case "resume":
		return decodeBody[Resume](e)
	case "done":
		return decodeBody[Done](e)
	}
	return nil, fmt.Errorf("decode log command %q: %w", e.Kind, ErrUnknownCommand)
}

func decodeBody[C Command](e envelope) (Command, error) {
	var c C
	if err := json.Unmarshal(e.Body, &c); err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.Kind, err)
	}
	return c, nil
}
