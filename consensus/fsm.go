// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

const (
	ringEntries = 4096     // entries kept for Tail
	ringBytes   = 16 << 20 // and no more bytes of commands than this

	snapshotVersion  = 1
	maxSnapshotBytes = 1 << 30
)

// Snapshot is the state after the command Seq.
type Snapshot struct {
	Seq     uint64
	Index   uint64 // of that command in the Raft log
	Term    uint64
	Machine []byte // what Machine.Snapshot returned
}

// envelope is the stored form of a snapshot.
type envelope struct {
	Version int             `json:"version"`
	Job     string          `json:"job"`
	Seq     uint64          `json:"seq"`
	Index   uint64          `json:"index"`
	Term    uint64          `json:"term"`
	Machine json.RawMessage `json:"machine"`
}

// applied is the response of a command inside raft.
type applied struct {
	seq      uint64
	response any
}

// fsm counts and applies commands, keeps the last ones, and hands each on. raft calls all but tail from one goroutine.
type fsm struct {
	job       string
	machine   Machine
	onApply   func(Entry)
	onRestore func(uint64)
	halt      func(error)     // a command or a snapshot cannot be applied
	opened    <-chan struct{} // closed when halt may be called

	mu     sync.Mutex // serialises the machine with tail; held for one command or one snapshot
	at     Snapshot   // Seq, Index, Term of the last command; Machine unused
	halted error
	ring   []Entry   // consecutive, ends at at.Seq
	bytes  int       // of the commands in ring
	cached *Snapshot // the last one taken: many watchers that join at once share it
}

var _ raft.BatchingFSM = (*fsm)(nil)

func (f *fsm) Apply(log *raft.Log) any { return f.apply(log) }

// ApplyBatch lets raft hand over what was committed together without a round trip to this goroutine for each.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	for i, log := range logs {
		responses[i] = f.apply(log)
	}
	return responses
}

func (f *fsm) apply(log *raft.Log) any {
	if log.Type != raft.LogCommand {
		return nil
	}
	entry, err := f.applyCommand(log)
	if err != nil {
		return err
	}
	if f.onApply != nil {
		f.onApply(entry)
	}
	return applied{entry.Seq, entry.Response}
}

func (f *fsm) applyCommand(log *raft.Log) (Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted != nil {
		return Entry{}, f.halted
	}
	response := f.machine.Apply(log.Data)
	if h, ok := response.(Halter); ok {
		if err := h.Halt(); err != nil {
			f.halted = fmt.Errorf("apply command %d: %w", f.at.Seq+1, err)
			f.halt(f.halted)
			return Entry{}, f.halted
		}
	}
	f.at.Seq++
	f.at.Index, f.at.Term = log.Index, log.Term
	entry := Entry{f.at.Seq, log.Index, log.Term, log.Data, response}
	f.remember(entry)
	return entry, nil
}

func (f *fsm) remember(entry Entry) {
	f.ring = append(f.ring, entry)
	f.bytes += len(entry.Command)
	for len(f.ring) > ringEntries || f.bytes > ringBytes && len(f.ring) > 1 {
		f.bytes -= len(f.ring[0].Command)
		f.ring[0] = Entry{} // append moves the rest to a new array only now and then
		f.ring = f.ring[1:]
	}
}

// seq returns the number of the last applied command.
func (f *fsm) seq() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at.Seq
}

// snapshot takes one; f.mu is held.
func (f *fsm) snapshot() (*Snapshot, error) {
	if f.halted != nil {
		return nil, f.halted
	}
	if f.cached != nil && f.cached.Seq == f.at.Seq {
		return f.cached, nil
	}
	machine, err := f.machine.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("snapshot state after command %d: %w", f.at.Seq, err)
	}
	s := f.at
	s.Machine = machine
	f.cached = &s
	return f.cached, nil
}

// tail returns what follows command from: entries when they are all in the ring, else a snapshot and the entries after it.
func (f *fsm) tail(from uint64) (*Snapshot, []Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if from >= f.at.Seq {
		return nil, nil, nil
	}
	if entries, ok := f.after(from); ok {
		return nil, entries, nil
	}
	if f.cached != nil && f.cached.Seq > from {
		if entries, ok := f.after(f.cached.Seq); ok {
			return f.cached, entries, nil
		}
	}
	s, err := f.snapshot()
	return s, nil, err
}

// after returns the entries after seq if the ring reaches back that far; f.mu is held.
func (f *fsm) after(seq uint64) ([]Entry, bool) {
	missing := f.at.Seq - seq
	if missing > uint64(len(f.ring)) {
		return nil, false
	}
	return append([]Entry(nil), f.ring[uint64(len(f.ring))-missing:]...), true
}

func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.snapshot()
	if err != nil {
		return nil, err
	}
	return storedSnapshot{f.job, *s}, nil
}

type storedSnapshot struct {
	job string
	Snapshot
}

func (s storedSnapshot) Persist(sink raft.SnapshotSink) error {
	err := json.NewEncoder(sink).Encode(envelope{snapshotVersion, s.job, s.Seq, s.Index, s.Term, s.Machine})
	if err != nil {
		return errors.Join(fmt.Errorf("write snapshot after command %d: %w", s.Seq, err), sink.Cancel())
	}
	return sink.Close()
}

func (storedSnapshot) Release() {}

// Restore replaces the state. raft calls it when it opens and when the leader sends a snapshot.
func (f *fsm) Restore(stored io.ReadCloser) error {
	defer stored.Close()
	seq, err := f.restore(stored)
	if err != nil {
		err = fmt.Errorf("restore snapshot: %w", err)
		select {
		case <-f.opened:
			f.halt(err)
		default: // Open tries an older one, or returns the error
		}
		return err
	}
	if f.onRestore != nil {
		f.onRestore(seq)
	}
	return nil
}

func (f *fsm) restore(stored io.Reader) (uint64, error) {
	encoded, err := io.ReadAll(io.LimitReader(stored, maxSnapshotBytes+1))
	if err != nil {
		return 0, err
	}
	if len(encoded) > maxSnapshotBytes {
		return 0, fmt.Errorf("it is larger than %d bytes", maxSnapshotBytes)
	}
	var e envelope
	if err := json.Unmarshal(encoded, &e); err != nil {
		return 0, err
	}
	if e.Version < 1 || e.Version > snapshotVersion {
		return 0, fmt.Errorf("version %d is not known here (1 to %d are): upgrade this daemon", e.Version, snapshotVersion)
	}
	if e.Job != f.job {
		return 0, fmt.Errorf("it is of job %q, not %q: %w", e.Job, f.job, ErrOtherJob)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.machine.Restore(e.Machine); err != nil {
		return 0, err
	}
	f.at = Snapshot{Seq: e.Seq, Index: e.Index, Term: e.Term}
	f.ring, f.bytes, f.cached = nil, 0, nil
	return e.Seq, nil
}
