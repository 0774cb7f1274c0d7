// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"phalanx"
)

// HelloPath is where a trainer says hello: POST over the unix socket, JSON both ways, once at the start.
const HelloPath = "/v1/hello"

// GroupPath is where a trainer makes a group of ranks known, before the first descriptor that names it: POST over the unix
// socket, JSON. It may be asked again with the same ranks.
const GroupPath = "/v1/group"

// FirstGroup and LastGroup bound the ids of the groups that trainers make. Below lie the coordinates, above the world.
const (
	FirstGroup = 1 << 32
	LastGroup  = 1<<64 - 2
)

// Group asks for a group, which ends with its generation.
type Group struct {
	// Generation is the one of the trainer's seat; zero means that of the seat on the page.
	Generation phalanx.Generation `json:"generation,omitzero"`
	ID         uint64             `json:"id"`
	Ranks      []phalanx.Rank     `json:"ranks"` // in the order of the group, the same on all members
}

// PlacePath is where a trainer asks at which coordinate it is to sit: GET with group_size in the query, before the hello.
const PlacePath = "/v1/place"

// PlaceAnswer answers it.
type PlaceAnswer struct {
	Coordinate int `json:"coordinate"`
}

// Protocol is the version of the cold messages that this release speaks.
const Protocol = 1

// Hello is what a trainer says of itself.
type Hello struct {
	PID         int                  `json:"pid"`
	Start       uint64               `json:"start"` // start time in clock ticks since boot, field 22 of /proc/PID/stat
	ProtocolMin int                  `json:"protocol_min"`
	ProtocolMax int                  `json:"protocol_max"`
	Spec        phalanx.JobSpec      `json:"spec"`
	State       []phalanx.TensorInfo `json:"state"` // in the order of registration
	// Coordinate is the one at which alone the trainer may sit, because State is its shard; -1, or left out, for any.
	Coordinate   phalanx.Pin `json:"coordinate,omitempty"`
	SegmentBytes int64       `json:"segment_bytes"`   // what the trainer itself uses, from offset 0
	Client       string      `json:"client"`          // "go" or "python"
	Slabs        int         `json:"slabs,omitempty"` // how many the client can stage into by turns; 0: one
	// Plain is set by a trainer of a job without the step protocol, which wants collectives only. It has no spec and no state.
	Plain bool `json:"plain,omitempty"`
	// Groups is how many groups of ranks a trainer with steps makes at a time, at most 64. A plain one may make 64.
	Groups int `json:"groups,omitempty"`
}

// Welcome is the daemon's answer: where everything is.
type Welcome struct {
	Member       phalanx.MemberID    `json:"member"`
	Incarnation  phalanx.Incarnation `json:"incarnation"`
	Page         string              `json:"page"`
	Bells        string              `json:"bells"`
	DaemonBell   int                 `json:"daemon_bell"`
	TrainerBell  int                 `json:"trainer_bell"`
	Segment      string              `json:"segment"`
	SegmentBytes int64               `json:"segment_bytes"`   // whole; the daemon uses what is beyond the trainer's part
	Slab         string              `json:"slab"`            // "" when the job does not stage
	SlabBytes    int64               `json:"slab_bytes"`      // of each
	Slabs        []string            `json:"slabs,omitempty"` // all of them, Slab first, when there are several: at most as many as the client can use
	Protocol     int                 `json:"protocol"`
	Spec         phalanx.JobSpec     `json:"spec"` // the job's
}

// Error is the body of every answer with a 4xx or 5xx status.
type Error struct {
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"` // what to do next
	Code    string `json:"code,omitempty"` // a word that programs branch on: spec_differs, protocol, no_space, fenced, busy
}

// The codes of Error.
const (
	CodeSpecDiffers = "spec_differs" // the job has another spec or state
	CodeProtocol    = "protocol"     // no common protocol version
	CodeNoSpace     = "no_space"     // the segment or slab cannot be reserved
	CodeFenced      = "fenced"       // the incarnation has ended
	CodeBusy        = "busy"         // the daemon has another trainer, or is not ready yet: ask again
	CodeBadRequest  = "bad_request"  // the message cannot be read
)

func (e *Error) Error() string {
	if e.Hint != "" {
		return fmt.Sprintf("%s; %s", e.Message, e.Hint)
	}
	return e.Message
}
