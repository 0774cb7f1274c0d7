// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
)

// ProtocolVersion is the version of the messages between daemons. A hello brings the oldest and the newest that it speaks.
const ProtocolVersion = 1

// maxMessage bounds a message between daemons: a snapshot of the state of a large job is a few MiB.
const maxMessage = 64 << 20

// Message is what goes over a stream between a member and the leader, one field set. Frames are a 32-bit little-endian
// length and JSON.
type Message struct {
	// Up: from a member to the leader.
	Hello  *StreamHello    `json:"hello,omitempty"`
	Report *Report         `json:"report,omitempty"`
	Answer *elastic.Answer `json:"answer,omitempty"`
	Lease  *LeaseAsk       `json:"lease,omitempty"`
	Shard  *ShardWritten   `json:"shard,omitempty"`
	First  *FirstStep      `json:"first,omitempty"`
	Ask    *Request        `json:"ask,omitempty"`
	// Down: from the leader to a member.
	Welcome  *StreamWelcome `json:"welcome,omitempty"`
	Snapshot *Snapshot      `json:"snapshot,omitempty"`
	Entries  []Entry        `json:"entries,omitempty"`
	Seal     *SealAsk       `json:"seal,omitempty"`
	Grant    *LeaseGrant    `json:"grant,omitempty"`
	Save     *SaveAsk       `json:"save,omitempty"`
	Copy     *CopyAsk       `json:"copy,omitempty"`
	Roster   []Peer         `json:"roster,omitempty"`
	Reply    *Reply         `json:"reply,omitempty"`
}

// StreamHello opens a stream.
type StreamHello struct {
	Job         string `json:"job"`
	ProtocolMin int    `json:"protocol_min"`
	ProtocolMax int    `json:"protocol_max"`
	Peer        Peer   `json:"peer"`
	From        uint64 `json:"from"` // newest command applied
}

// StreamWelcome answers a hello. A daemon that does not lead names the one that does, if it knows.
type StreamWelcome struct {
	Leading bool   `json:"leading"`
	Leader  string `json:"leader,omitempty"` // address
	Refused string `json:"refused,omitempty"`
	Term    uint64 `json:"term"`
	Roster  []Peer `json:"roster,omitempty"`
	// State is what a daemon that does not lead has read, if that is more than the asker has.
	State *elastic.State `json:"state,omitempty"`
}

// Peer is where a daemon is reached and what it is.
type Peer struct {
	phalanx.Incarnate
	Host      string `json:"host"`
	Addr      string `json:"addr"` // IP:PORT of its one TCP port
	Server    string `json:"server"`
	BootID    string `json:"boot_id"`
	Home      string `json:"home,omitempty"` // names the directory of its host's members
	DaemonPID int    `json:"daemon_pid"`
	Watcher   bool   `json:"watcher,omitempty"` // does not take part in Raft
}

// Report is what a member tells the leader, at once when it changes and every 250 ms.
type Report struct {
	phalanx.Incarnate
	Seq        uint64               `json:"seq"` // newest command applied
	Generation phalanx.Generation   `json:"generation"`
	Local      string               `json:"local"`
	Ready      bool                 `json:"ready"` // the trainer has said hello
	Possession elastic.Possession   `json:"possession"`
	Slabs      []phalanx.Label      `json:"slabs,omitempty"`
	SlabCount  int                  `json:"slab_count,omitempty"` // of the present life: that many saves can be under way; 0: one
	Sealed     phalanx.Generation   `json:"sealed"`
	Refused    elastic.Vote         `json:"refused"`
	Voted      elastic.Vote         `json:"voted"`
	Spec       *phalanx.JobSpec     `json:"spec,omitempty"`  // until the log has it
	State      []phalanx.TensorInfo `json:"state,omitzero"`  // likewise, of the trainer's coordinate
	Pin        phalanx.Pin          `json:"pin,omitempty"`   // where alone its trainer may sit
	Place      phalanx.Pin          `json:"place,omitempty"` // what its trainer was told when it asked for its place
	Failed     string               `json:"failed,omitempty"`
	Leaving    bool                 `json:"leaving,omitempty"`
	Finished   bool                 `json:"finished,omitempty"`
	Digest     phalanx.Digest       `json:"digest"`
	TrainerPID int                  `json:"trainer_pid"`
	Evidence   []phalanx.Evidence   `json:"evidence,omitempty"`
	Siblings   []Sibling            `json:"siblings,omitempty"`
	Cut        []phalanx.MemberID   `json:"cut,omitempty"`          // members of the world that it does not reach
	Healed     int64                `json:"healed_bytes,omitempty"` // progress of a heal
	HealTotal  int64                `json:"heal_total_bytes,omitempty"`
	HealRate   float64              `json:"heal_rate,omitempty"`       // bytes a second
	HostBytes  int64                `json:"host_bytes,omitempty"`      // of host memory, besides the trainer's own
	SaveRead   int64                `json:"save_read_bytes,omitempty"` // of slabs, for saves, by this daemon so far
	StepNS     int64                `json:"step_ns,omitempty"`         // p50 of the step
	Plain      string               `json:"plain,omitempty"`           // HOST:PORT that rank 0 of a plain job may bind
	Niced      bool                 `json:"niced"`
	Store      string               `json:"store,omitempty"` // for how long it has carried out nothing, and why
	Note       string               `json:"note,omitempty"`
	OneSlab    string               `json:"one_slab,omitempty"` // why there is one although two were asked for
}

// Sibling is what a daemon's kernel says about another member of the same host.
type Sibling struct {
	phalanx.Incarnate
	Daemon     bool              `json:"daemon"` // its daemon lives
	Trainer    bool              `json:"trainer"`
	DaemonPID  int               `json:"daemon_pid"`
	TrainerPID int               `json:"trainer_pid"`
	Stopped    bool              `json:"stopped"` // its daemon is stopped for longer than a stall
	Evidence   *phalanx.Evidence `json:"evidence,omitempty"`
}

// LeaseAsk asks for a lease from SentNS, by the asker's CLOCK_BOOTTIME.
type LeaseAsk struct {
	SentNS int64 `json:"sent_ns"`
}

// LeaseGrant answers a LeaseAsk after a quorum round that began after it arrived.
type LeaseGrant struct {
	SentNS     int64 `json:"sent_ns"`
	DurationNS int64 `json:"duration_ns"`
}

// SealAsk asks for a seal; a boundary of 0 is an ordinary one.
type SealAsk struct {
	Generation phalanx.Generation `json:"generation"`
	Boundary   phalanx.Step       `json:"boundary,omitempty"`
}

// SaveAsk asks a member to write shares of the state after a step: its own, and those of ranks of the same coordinate whose
// members do not bring them.
type SaveAsk struct {
	Attempt ckpt.Attempt   `json:"attempt"`
	Ranks   []phalanx.Rank `json:"ranks"`            // whose shares
	Beside  []ckpt.Attempt `json:"beside,omitempty"` // other saves under way: they go on
	Record  saveRecord     `json:"record"`
}

// ShardWritten says that a rank's share is in the store.
type ShardWritten struct {
	Attempt ckpt.Attempt  `json:"attempt"`
	Rank    phalanx.Rank  `json:"rank"` // whose share
	Label   phalanx.Label `json:"label"`
	Part    ckpt.PartRef  `json:"part"`
	Failed  string        `json:"failed,omitempty"`
	Missed  bool          `json:"missed,omitempty"` // the member does not have the state: its step had passed already
}

// FirstStep says when the parts of a formation were over on one member, in Unix nanoseconds.
type FirstStep struct {
	Generation phalanx.Generation `json:"generation"`
	FormedNS   int64              `json:"formed_ns"`
	HealedNS   int64              `json:"healed_ns,omitempty"` // 0: it did not heal
	StepNS     int64              `json:"step_ns"`
}

// Request is an operator's wish, forwarded to the leader.
type Request struct {
	ID     uint64           `json:"id"`
	Drain  phalanx.MemberID `json:"drain,omitempty"`
	Resize int              `json:"resize,omitempty"`
	Stop   bool             `json:"stop,omitempty"`
	Place  int              `json:"place,omitempty"` // the group size, of a member that asks at which coordinate it is to sit
	Local  int              `json:"local,omitempty"` // members of its host, with Place
	Why    string           `json:"why,omitempty"`
}

// Reply answers a request.
type Reply struct {
	ID    uint64      `json:"id"`
	Error string      `json:"error,omitempty"`
	Place phalanx.Pin `json:"place,omitempty"` // the answer to one for a place
	Code  int         `json:"code,omitempty"`  // exit code of the command line, 0: no better one than that of a refusal
}

// Snapshot is the state after Seq commands.
type Snapshot struct {
	Seq   uint64         `json:"seq"`
	State *elastic.State `json:"state"`
}

// Entry is one command of the log.
type Entry struct {
	Seq     uint64          `json:"seq"`
	Command json.RawMessage `json:"command"`
}

// writeMessage frames a message.
func writeMessage(w io.Writer, m *Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	frame := make([]byte, 4, 4+len(body))
	binary.LittleEndian.PutUint32(frame, uint32(len(body)))
	if _, err := w.Write(append(frame, body...)); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// readMessage reads one frame.
func readMessage(r io.Reader) (*Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("receive message: %w", err)
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxMessage {
		return nil, fmt.Errorf("receive message: %d bytes are more than %d", n, maxMessage)
	}
	// Memory follows what comes: a length alone is four bytes.
	var body bytes.Buffer
	if got, err := io.CopyN(&body, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the length was there
		}
		return nil, fmt.Errorf("receive message: %d of %d bytes: %w", got, n, err)
	}
	m := new(Message)
	if err := json.Unmarshal(body.Bytes(), m); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	return m, nil
}

// validate refuses a state that no log can have led to, or one of a newer release: it would be taken for our own.
func (m *Message) validate() error {
	if m.Snapshot != nil {
		if m.Snapshot.State == nil {
			return errors.New("a snapshot without a state")
		}
		return m.Snapshot.State.Validate()
	}
	if m.Welcome != nil && m.Welcome.State != nil {
		return m.Welcome.State.Validate()
	}
	return nil
}
