// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/client/wire"
	"phalanx/consensus"
	"phalanx/elastic"
)

// Config is what a daemon is started with. Flags and environment are read in cmd alone.
type Config struct {
	Job       string
	Dir       string // state of this host's members; one job per directory
	Store     string // URL or directory of the checkpoint store
	Host      string // makes MemberID = Host/Index
	Index     int
	Policy    elastic.Policy
	Bind      string // IP to listen on; loopback without a key for others
	Port      int    // 0: the port of the last start, else any
	Advertise string // IP that others dial; "" is Bind
	Join      []string
	Key       JobKey
	Bootstrap bool // may found the job's group when no state exists and nobody answers
	SaveEvery Interval
	// SaveFailure says what becomes of the job when saves fail; zero: it goes on.
	SaveFailure SaveFailure
	CopyRate    int64 // bytes a second that this member reads for a copy of another host's slab; 0: any
	Slabs       int   // whole states that a member stages by turns, 1 or 2; 0: 1
	MaxHost     int64 // bytes of memory that the members of this host may use besides the trainers' own; 0: any

	Keep      int           // newest checkpoints to keep
	KeepEvery phalanx.Step  // keep those whose step is a multiple as well; 0: no such rule
	KeepTime  time.Duration // and the first in each window of this length; 0: no such rule
	GCGrace   time.Duration // how long the data of forgotten and abandoned ones stay
	KeepLogs  int           // lives of the member whose output is kept; 0: all
	Resume    string        // auto, never or a step
	// WarmStart is what a new job begins with, nil for what the seed makes.
	WarmStart *elastic.WarmStart
	MaxStarts int // starts of the trainer without a committed step since the last one
	Hang      time.Duration
	Start     time.Duration
	Grace     time.Duration
	Health    string // command that runs before each start of the trainer
	Plain     bool   // no step protocol
	Warm      int    // processes that run starts ahead on this host; 0: none
	Role      string // ROLE_NAME of the trainers; "" is default
	Command   []string
	LocalSize int // members on this host
	ShmDir    string
	Memory    wire.Memory                                   // of the host; nil is shared memory in ShmDir
	Network   Network                                       // nil is the machine's
	System    System                                        // nil is the machine's
	Objects   ckpt.Store                                    // nil is what Store names
	OpenLog   func(path string) (consensus.LogStore, error) // of Raft; nil is a file of bbolt
	Version   string
	Started   time.Time // when phalanx run was started; a halt that is older does not end this start
	Log       *slog.Logger
}

// Interval is a save interval: every so many steps, or every so much time. Zero is neither.
type Interval struct {
	Steps phalanx.Step  `json:"steps,omitempty"`
	Every time.Duration `json:"every,omitempty"`
}

// SaveFailure is when failing saves end the job: when so many in a row have failed, or when the recovery point is so old. Zero is
// never.
type SaveFailure struct {
	After int           `json:"after,omitempty"`
	Older time.Duration `json:"older,omitempty"`
}

// Member is the id of the daemon's member.
func (c *Config) Member() phalanx.MemberID { return phalanx.NewMemberID(c.Host, c.Index) }

// MaxLocal is how many members one host can have: each has two bells of the host.
const MaxLocal = wire.BellLines / 2

// Validate reports the first thing that makes the configuration unusable.
func (c *Config) Validate() error {
	switch {
	case c.Job == "" || strings.ContainsAny(c.Job, "/\x00 "):
		return fmt.Errorf("job name %q: use letters, digits, dots and dashes (--job)", c.Job)
	case c.Dir == "" || !filepath.IsAbs(c.Dir):
		return fmt.Errorf("directory %q must be absolute (--dir)", c.Dir)
	case !c.Member().Valid():
		return fmt.Errorf("host name %q: use letters, digits, dots, dashes and underscores (--host)", c.Host)
	case c.LocalSize < 1 || c.LocalSize > MaxLocal || c.Index < 0 || c.Index >= c.LocalSize:
		return fmt.Errorf("member %d of %d on this host: a host has 1 to %d members (--nproc, --spares)", c.Index, c.LocalSize, MaxLocal)
	case len(c.Command) == 0:
		return errors.New("no command for the trainer: phalanx run [flags] -- CMD")
	case c.Policy.Want < 1 || c.Policy.Min < 1 || c.Policy.Min > c.Policy.Want:
		return fmt.Errorf("%d members wanted, at least %d: the minimum is from 1 to the members of a full world (--nproc, --nnodes, --min)", c.Policy.Want, c.Policy.Min)
	case net.ParseIP(c.Bind) == nil:
		return fmt.Errorf("bind address %q is no IP address (--bind, --interface)", c.Bind)
	case c.Keep < 1:
		return fmt.Errorf("keep %d checkpoints: keep at least one (--keep)", c.Keep)
	case c.KeepTime < 0 || c.GCGrace < 0:
		return fmt.Errorf("keep-time %s, gc-grace %s: give 0 or more (--keep-time, --gc-grace)", c.KeepTime, c.GCGrace)
	}
	return nil
}

// Outcome is how a daemon ended. It is left in the member's directory for run, which also outlives daemons it did not start.
type Outcome struct {
	Code       int                `json:"code"` // exit code of the job as this daemon sees it
	Reason     string             `json:"reason,omitempty"`
	Hint       string             `json:"hint,omitempty"`
	Step       phalanx.Step       `json:"step"`
	Generation phalanx.Generation `json:"generation"`
	Digest     phalanx.Digest     `json:"digest"`
	Done       bool               `json:"done"`
}

// The exit codes of the command line that a daemon can end with.
const (
	CodeOK        = 0
	CodeFailed    = 1
	CodeUsage     = 2
	CodeNotFound  = 3
	CodeNoQuorum  = 4
	CodeIntegrity = 5
	CodeTimeout   = 6
	CodeUnsaved   = 7 // unpublished or incomplete
	CodeNewer     = 8 // written by a newer release
	CodeLocked    = 9
	CodeAuth      = 10
	CodePreempted = 75
	CodeInterrupt = 130
)

// Problem is an error for the operator: what failed, what to do next, and the exit code.
type Problem struct {
	Code int
	Err  error
	Hint string
}

func (p *Problem) Error() string {
	if p.Hint == "" {
		return p.Err.Error()
	}
	return p.Err.Error() + "; " + p.Hint
}

// Unwrap gives the cause.
func (p *Problem) Unwrap() error { return p.Err }
