// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"sync/atomic"

	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// replica is the replicated state behind Raft. One goroutine applies; anyone reads the newest state.
type replica struct {
	state atomic.Pointer[elastic.State]
}

func newReplica() *replica {
	r := &replica{}
	r.state.Store(elastic.NewState())
	return r
}

// refusal is the response of a command that every replica refuses alike.
type refusal struct{ err error }

// unknownCommand stops the daemon: a command of a newer version is never skipped.
type unknownCommand struct{ err error }

// Halt makes the log stop here.
func (u unknownCommand) Halt() error { return u.err }

// Apply applies one command.
func (r *replica) Apply(command []byte) any {
	c, err := elastic.DecodeCommand(command)
	if err != nil {
		return unknownCommand{err}
	}
	switch c.(type) {
	case elastic.FormGeneration:
		failpoint.Here("form-committed")
	case elastic.PublishCheckpoint:
		failpoint.Here("publish-committed")
	case elastic.Done:
		failpoint.Here("done-committed")
	}
	next, err := r.state.Load().Apply(c)
	r.state.Store(next)
	if err != nil {
		return refusal{err}
	}
	return nil
}

// Snapshot encodes the present state, which is immutable.
func (r *replica) Snapshot() ([]byte, error) { return json.Marshal(r.state.Load()) }

// Restore replaces the state.
func (r *replica) Restore(snapshot []byte) error {
	s, err := decodeState(snapshot)
	if err != nil {
		return err
	}
	r.state.Store(s)
	return nil
}

func decodeState(b []byte) (*elastic.State, error) {
	s := new(elastic.State)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("decode state: %w", err)
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("decode state: %w", err)
	}
	return s, nil
}
