// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

var (
	// ErrHasState is returned by Bootstrap when the server has a term, a log or a snapshot, or when an earlier store of
	// the same directory was set aside: a second group must not be seeded beside the first. Join instead.
	ErrHasState = errors.New("state of the job exists: join instead of bootstrapping")

	// ErrKeyNotFound is what a LogStore's Get returns for a key that was never set. Raft knows it by its text.
	ErrKeyNotFound = raftboltdb.ErrKeyNotFound

	// ErrNoRecord is what a LogStore's GetLog returns for an index that it does not hold.
	ErrNoRecord = raft.ErrLogNotFound

	// ErrOutcomeUnknown says that a command may or may not be committed, now or later. Read the applied commands before
	// proposing it again.
	ErrOutcomeUnknown = errors.New("outcome unknown")

	// ErrLeadershipLost is returned by Propose when leadership ended while the command was under way. It is an
	// ErrOutcomeUnknown.
	ErrLeadershipLost = fmt.Errorf("leadership lost: %w", ErrOutcomeUnknown)

	// ErrNotCaughtUp is returned by Promote and Transfer when no eligible server is close enough to the commit index.
	// Try again after it has received the log.
	ErrNotCaughtUp = errors.New("server has not caught up with the log")

	// ErrNoServer is returned for a server id that is not in the configuration.
	ErrNoServer = errors.New("no such server in the configuration")

	// ErrBusy is returned when another change or transfer is under way.
	ErrBusy = errors.New("another change is under way")

	// ErrClosed is returned after Close or after a failure.
	ErrClosed = errors.New("log is closed")

	// ErrDiskStalled is sent on Failed when a write to the log store did not return within its deadline.
	ErrDiskStalled = errors.New("log store does not answer: check the disk, then restart the daemon")

	// ErrStore is sent on Failed when the log store returned an error.
	ErrStore = errors.New("log store failed: check space and health of the disk, then restart the daemon")

	// ErrTransferStuck is sent on Failed when the library did not end a leadership transfer.
	ErrTransferStuck = errors.New("leadership transfer does not end: restart the daemon")

	// ErrLocked is returned by Open when another process has the log store open.
	ErrLocked = errors.New("log store is in use by another daemon: end it or use another directory")

	// ErrOtherJob is returned by Open when the directory belongs to another job.
	ErrOtherJob = errors.New("log store belongs to another job: use another directory")
)

// ErrNotLeader is returned by what only the leader can do. The command was not taken and may be sent to the leader that
// is named, if one is known.
type ErrNotLeader struct {
	LeaderID   string // "" when no leader is known
	LeaderAddr string // "" when its address is not known
}

func (e ErrNotLeader) Error() string {
	if e.LeaderID == "" {
		return "not the leader, and none is known: try again after an election"
	}
	return fmt.Sprintf("not the leader: ask server %s at %q", e.LeaderID, e.LeaderAddr)
}
