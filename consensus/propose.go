// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Result is what became of a command.
type Result struct {
	Seq      uint64 // its number among the applied commands
	Index    uint64 // in the Raft log
	Response any    // what Machine.Apply returned
}

// Propose replicates a command and waits until it is applied here. Only the leader can; others return ErrNotLeader, and
// nothing happened. ErrOutcomeUnknown (ErrLeadershipLost, an ended ctx, a failed store) means that the command may still be
// committed.
func (l *Log) Propose(ctx context.Context, command []byte) (Result, error) {
	if len(command) > MaxCommandBytes {
		return Result{}, fmt.Errorf("propose: command of %d bytes is larger than %d", len(command), MaxCommandBytes)
	}
	ctx, cancel := withDefaultWait(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("propose: %w", err)
	}
	if l.raft.State() != raft.Leader {
		return Result{}, fmt.Errorf("propose: %w", l.notLeader())
	}
	done, err := l.enter()
	if err != nil {
		return Result{}, fmt.Errorf("propose: %w", err)
	}
	deadline, _ := ctx.Deadline()
	var future raft.ApplyFuture // written before await's answer is sent
	err = l.await(ctx, done, func() error {
		f := l.raft.Apply(command, max(time.Until(deadline), time.Millisecond))
		err := f.Error()
		future = f
		return err
	})
	if err != nil {
		return Result{}, fmt.Errorf("propose: %w", l.proposeError(err))
	}
	switch response := future.Response().(type) {
	case applied:
		return Result{response.seq, future.Index(), response.response}, nil
	case error: // the replica halted at this command
		return Result{}, fmt.Errorf("propose: %w: %w", ErrOutcomeUnknown, response)
	default:
		return Result{}, fmt.Errorf("propose: %w: response is a %T", ErrOutcomeUnknown, response)
	}
}

// proposeError says whether raft took the command.
func (l *Log) proposeError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return l.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		l.watchTransfer()
		return ErrNotLeader{} // in a moment
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("not taken: %w", context.DeadlineExceeded)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		return ErrLeadershipLost
	case errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, ErrClosed)
	default:
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
}

// Tail returns what was applied here after command fromSeq, for a server of watchers: the entries when they are all in
// memory (4,096 of them, 16 MiB), else a snapshot and the entries after it. Both are nil when there is nothing after
// fromSeq yet.
//
// To miss nothing, first take part in OnApply, then call Tail, then drop what comes twice by its Seq.
func (l *Log) Tail(fromSeq uint64) (snapshot *Snapshot, entries []Entry, err error) {
	return l.fsm.tail(fromSeq)
}
