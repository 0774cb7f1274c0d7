// SPDX-License-Identifier: Apache-2.0

package phalanx

import "fmt"

// EvidenceKind says what was seen. Gossip is a hint; only a log entry evicts.
type EvidenceKind string

// The kinds of evidence, with the failure that each one shows.
const (
	// TrainerExited: the kernel of the member's own host reported the end of its training process.
	TrainerExited EvidenceKind = "trainer_exited"
	// DaemonExited: the kernel of the member's own host reported the end of its daemon, or its sockets were reset.
	DaemonExited EvidenceKind = "daemon_exited"
	// HostSilent: the member's kernel answers nobody.
	HostSilent EvidenceKind = "host_silent"
	// Stalled: the process exists and does not run (stopped, starved, swapped).
	Stalled EvidenceKind = "stalled"
	// Hung: the trainer runs and has not made progress by its deadline.
	Hung EvidenceKind = "hung"
	// NotReady: a member of a new generation did not become ready by the deadline of the formation.
	NotReady EvidenceKind = "not_ready"
	// VotedNotOK: a member voted that it does not hold the reduced gradient.
	VotedNotOK EvidenceKind = "voted_not_ok"
	// DigestsUnequal: members with the same coordinate voted with different digests.
	DigestsUnequal EvidenceKind = "digests_unequal"
	// Sealed: a member of the current generation is sealed, so the generation is dead.
	Sealed EvidenceKind = "sealed"
	// Unreachable: the leader has no connection to the member and nothing proves its death.
	Unreachable EvidenceKind = "unreachable"
	// CutOff: the member and another one of its world do not reach each other, although the leader hears both.
	CutOff EvidenceKind = "cut_off"
	// GossipDead: memberlist says dead. A hint only.
	GossipDead EvidenceKind = "gossip_dead"
	// HealFailed: the state read from donors did not verify, or its reading broke off.
	HealFailed EvidenceKind = "heal_failed"
	// Asked: an operator or a signal asked for it (drain, resize, stop).
	Asked EvidenceKind = "asked"
)

// Evidence is what proves, or hints at, a failure: about whom, seen by whom, when, in words.
type Evidence struct {
	Kind    EvidenceKind `json:"kind"`
	About   Incarnate    `json:"about"`
	Source  MemberID     `json:"source"`
	UnixNS  int64        `json:"unix_ns"` // when it was seen, by the source's clock
	Step    Step         `json:"step,omitempty"`
	Slot    Slot         `json:"slot,omitempty"`
	Working bool         `json:"working,omitempty"` // Step and Slot name the slot that was being computed
	Detail  string       `json:"detail,omitempty"`
}

func (e Evidence) String() string {
	s := fmt.Sprintf("%s %s (seen by %s)", e.About, e.Kind, e.Source)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}
