// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Machine is the replicated state.
type Machine interface {
	// Apply is deterministic and called in log order by one goroutine. The response goes to Propose on the leader and
	// to OnApply everywhere. A response that is a [Halter] stops this replica before the next command.
	Apply(command []byte) (response any)
	// Snapshot returns the state as JSON. No Apply runs meanwhile, so it must be quick.
	Snapshot() ([]byte, error)
	// Restore replaces the state by one that Snapshot returned, perhaps of another version of the program.
	Restore(snapshot []byte) error
}

// Halter is a response that stops the replica, for a command that this version of the program does not know: it must not
// be skipped, and no later one may be applied. The error is sent on Failed.
type Halter interface{ Halt() error }

// Entry is one applied command, in order.
type Entry struct {
	Seq      uint64 // counts commands applied since the job began, from 1; the same on all replicas
	Index    uint64 // index in the Raft log; grows, with gaps
	Term     uint64
	Command  []byte // not to be changed
	Response any
}

// ServerAddress is HOST:PORT.
type ServerAddress = string

// StreamLayer carries the connections between servers. The caller makes it (mutual TLS, ALPN raft); Close of the Log
// closes it.
type StreamLayer interface {
	net.Listener
	Dial(address ServerAddress, timeout time.Duration) (net.Conn, error)
}

// Config is what Open needs. Durations of zero mean the default.
type Config struct {
	// Dir holds log.db, which also holds the server id, and a directory of snapshots for that id.
	Dir string
	// JobID names the job; a directory or a snapshot of another job is refused.
	JobID     string
	Machine   Machine
	Transport StreamLayer
	// Addresses gives the present address of a server. A server without one is not dialled. Nil means the addresses
	// given to AddNonvoter.
	Addresses func(serverID string) (addr string, ok bool)
	// LocalAddr is where others reach this server; "" means Transport.Addr.
	LocalAddr string

	Heartbeat     time.Duration // 500 ms: silence after which a follower stands for election
	Election      time.Duration // 500 ms: how long a candidate waits for votes
	Lease         time.Duration // 150 ms: silence of the majority after which a leader steps down
	CommitTimeout time.Duration // 25 ms: followers hear of a commit within 1-2 times this; at most Lease/3
	FastHeartbeat time.Duration // 150 ms: Heartbeat and Election between Hasten and Relax; at least Lease
	StoreDeadline time.Duration // 2 s: a write to the log store that takes longer is a failure of the disk

	// OnApply is called on every replica right after Apply, in order. It must not block. Open may call it.
	OnApply func(Entry)
	// OnRestore is called after a snapshot replaced the state; seq is the last command in it. Open may call it.
	OnRestore func(seq uint64)
	Logger    *slog.Logger
	NoSync    bool // do not fsync; for tests only
	// OpenStore opens or makes the log store at a path; nil is a file of bbolt. An error that is not of the file system
	// means that the store is damaged.
	OpenStore func(path string) (LogStore, error)

	wrapStore      func(LogStore) LogStore // tests inject disk faults here
	canaryInterval time.Duration           // 5 s
}

const (
	snapshotThreshold = 1024 // commands between snapshots
	snapshotTrailing  = 2048 // entries kept after one, so that a short absence needs no snapshot
	snapshotInterval  = 30 * time.Second
	snapshotsKept     = 2

	maxAppendEntries = 64
	rpcTimeout       = time.Second
	rpcPool          = 3 // connections kept to one server: heartbeat, entries, vote

	// caughtUpEntries is how far behind the commit index a server may be to be promoted: one AppendEntries.
	caughtUpEntries = maxAppendEntries

	// defaultWait bounds calls whose context has no deadline.
	defaultWait = 10 * time.Second

	// MaxCommandBytes bounds one command. Commands are small; a large one would delay heartbeats behind it.
	MaxCommandBytes = 4 << 20
)

func (c *Config) setDefaults() {
	setDefault(&c.Heartbeat, 500*time.Millisecond)
	setDefault(&c.Election, c.Heartbeat)
	setDefault(&c.Lease, 150*time.Millisecond)
	setDefault(&c.CommitTimeout, 25*time.Millisecond)
	setDefault(&c.FastHeartbeat, min(c.Heartbeat, max(c.Lease, 150*time.Millisecond)))
	setDefault(&c.StoreDeadline, 2*time.Second)
	setDefault(&c.canaryInterval, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.LocalAddr == "" && c.Transport != nil {
		c.LocalAddr = c.Transport.Addr().String()
	}
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Validate reports what Open would refuse, after defaults.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("Dir is empty"))
	}
	if c.JobID == "" {
		errs = append(errs, errors.New("JobID is empty"))
	}
	if c.Machine == nil {
		errs = append(errs, errors.New("Machine is nil"))
	}
	if c.Transport == nil {
		errs = append(errs, errors.New("Transport is nil"))
	}
	if c.Lease > c.FastHeartbeat {
		errs = append(errs, fmt.Errorf("Lease %v is longer than FastHeartbeat %v: a leader could outlive its successor's election", c.Lease, c.FastHeartbeat))
	}
	if c.FastHeartbeat > c.Heartbeat {
		errs = append(errs, fmt.Errorf("FastHeartbeat %v is longer than Heartbeat %v", c.FastHeartbeat, c.Heartbeat))
	}
	if c.Election < c.Heartbeat {
		errs = append(errs, fmt.Errorf("Election %v is shorter than Heartbeat %v", c.Election, c.Heartbeat))
	}
	if c.CommitTimeout > c.Lease/3 {
		errs = append(errs, fmt.Errorf("CommitTimeout %v is longer than a third of Lease %v", c.CommitTimeout, c.Lease))
	}
	if c.StoreDeadline < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("StoreDeadline %v is shorter than 10ms", c.StoreDeadline))
	}
	return errors.Join(errs...)
}
