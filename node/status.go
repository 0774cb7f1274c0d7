// SPDX-License-Identifier: Apache-2.0

package node

import (
	"phalanx"
	"phalanx/consensus"
	"phalanx/elastic"
)

// Status is what GET /v1/status answers and `phalanx status --json` prints. Fields are only ever added.
type Status struct {
	Job         string               `json:"job"`
	Generation  uint64               `json:"generation"` // the number; the pair is (authority_epoch, generation)
	Epoch       uint32               `json:"authority_epoch"`
	Branch      int                  `json:"branch"`
	Phase       string               `json:"phase"`
	Halt        string               `json:"halt,omitempty"`
	Step        phalanx.Step         `json:"step"` // newest step that this daemon knows to be committed
	LastStep    phalanx.Step         `json:"last_step,omitempty"`
	Leader      phalanx.MemberID     `json:"leader"`
	World       []phalanx.MemberID   `json:"world"` // in rank order
	GroupSize   int                  `json:"group_size"`
	Slots       int                  `json:"slots"`
	Efficiency  float64              `json:"efficiency"` // of the present deal
	Floor       phalanx.Step         `json:"resume_step"`
	Published   *PublishedStatus     `json:"published,omitempty"` // newest
	Saves       *SavesStatus         `json:"saves,omitempty"`
	Members     []MemberStatus       `json:"members"`
	Raft        consensus.Status     `json:"raft"`
	AnsweredBy  phalanx.MemberID     `json:"answered_by"`
	Fresh       bool                 `json:"fresh"` // answered by the leader; false: only what this daemon knows
	Notes       []string             `json:"notes,omitempty"`
	Warm        *WarmState           `json:"warm,omitempty"`        // of the asking host; added by the command line
	Transitions []elastic.Transition `json:"transitions,omitempty"` // with ?explain=1
}

// PublishedStatus is the newest published checkpoint.
type PublishedStatus struct {
	Step   phalanx.Step `json:"step"`
	Folder string       `json:"folder"`
	UnixNS int64        `json:"unix_ns"`
}

// SavesStatus is how saves go.
type SavesStatus struct {
	// RecoveryPoint is the newest durable step, 0 for none, and its age, or that of this run before the first one.
	RecoveryPoint phalanx.Step `json:"recovery_point_step"`
	Age           float64      `json:"recovery_point_age_seconds"`
	Failures      int          `json:"consecutive_failures"`
	Trouble       string       `json:"last_trouble,omitempty"` // of the newest save that failed
	Policy        string       `json:"policy"`                 // --save-failure
	Levels        LevelsStatus `json:"levels"`
	Under         []SaveStatus `json:"under_way,omitempty"` // by step; known to the leader alone
	Skipped       SkippedSaves `json:"skipped"`             // as the leader told it with the last save
}

// LevelsStatus are the newest steps that have reached a level: in host memory that outlives trainers, in that of two hosts,
// published.
type LevelsStatus struct {
	Local   *LevelStatus `json:"local,omitempty"`
	Memory  *LevelStatus `json:"memory,omitempty"`
	Durable *LevelStatus `json:"durable,omitempty"`
}

// LevelStatus is one of them.
type LevelStatus struct {
	Step phalanx.Step `json:"step"`
	Age  float64      `json:"age_seconds"` // since it was reached
	// Held: it is at this level now, or a newer step is. The next save overwrites slabs. Known to the leader alone.
	Held bool `json:"held"`
}

// SaveStatus is a save under way.
type SaveStatus struct {
	Step      phalanx.Step `json:"step"`
	Waiting   bool         `json:"waiting,omitempty"` // announced; the step is not there yet
	Shares    int          `json:"shares"`
	Stored    int          `json:"shares_stored"`
	TakenOver int          `json:"shares_taken_over,omitempty"`
	Seconds   float64      `json:"seconds"`
}

// MemberStatus is one member in Status.
type MemberStatus struct {
	Member      phalanx.MemberID    `json:"member"`
	Incarnation phalanx.Incarnation `json:"incarnation"`
	Host        string              `json:"host"`
	Rank        int                 `json:"rank"` // -1: not in the world
	State       string              `json:"state"`
	Local       string              `json:"local,omitempty"` // its own machine's state
	Role        string              `json:"role"`            // voter, standby or watcher
	DaemonPID   int                 `json:"daemon_pid"`
	TrainerPID  int                 `json:"trainer_pid"`
	Slots       []int               `json:"slots"` // first, end (excluded); empty when not in the world
	Step        phalanx.Step        `json:"step"`
	Why         string              `json:"why,omitempty"`
	HealSeconds float64             `json:"heal_seconds_expected,omitempty"` // bytes left ÷ rate
	HostBytes   int64               `json:"host_bytes,omitempty"`            // of host memory, besides the trainer's own
	Slabs       int                 `json:"slabs,omitempty"`                 // states that can be staged by turns
}

// DaemonFile is DIR/members/I/daemon.json: where the living daemon of a member is reached on this host.
type DaemonFile struct {
	phalanx.Incarnate
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // start time in clock ticks since boot
	Socket string `json:"socket"`
	Addr   string `json:"addr"` // IP:PORT of its TCP port
}
