// SPDX-License-Identifier: Apache-2.0

package elastic

import "phalanx"

// Event is something that happened to a daemon. The set is closed.
type Event interface{ event() }

// Read: the daemon has read an entry; State is what it leads to.
type Read struct{ State *State }

// Seen: the trainer's cells on the page, or its life, may have changed.
type Seen struct{ Trainer Trainer }

// PeerVoted: another member's vote has been read.
type PeerVoted struct {
	Rank phalanx.Rank
	Vote Vote
}

// SealAsked: a leader asks for a seal. A boundary of 0 is an ordinary one.
type SealAsked struct {
	Generation phalanx.Generation
	Boundary   phalanx.Step
}

// WorkersLeft: no worker of the generation, or of an older one, is in a segment any more.
type WorkersLeft struct{ Generation phalanx.Generation }

// Formed: the communicators of the generation are formed.
type Formed struct{ Generation phalanx.Generation }

// HealBroken: the bytes of the floor could not be read from any source.
type HealBroken struct {
	Generation phalanx.Generation
	Why        string
}

// Lease: the member's lease began or ran out.
type Lease struct{ Valid bool }

func (Read) event()        {}
func (Seen) event()        {}
func (PeerVoted) event()   {}
func (SealAsked) event()   {}
func (WorkersLeft) event() {}
func (Formed) event()      {}
func (HealBroken) event()  {}
func (Lease) event()       {}

// Trainer is what the page says about the living trainer. Fields of a trainer that is dead, or was replaced, are void: the
// loop passes the zero value.
type Trainer struct {
	Possession
	Request Vote // newest request to vote; zero step: none
	// Healed is the newest result of a heal.
	Healed HealResult
}

// HealResult is what the trainer says after the last byte of a heal.
type HealResult struct {
	Generation phalanx.Generation
	OK         bool
}

// Action is something that the loop does for the machine. The set is closed; they are done in order.
type Action interface{ action() }

// WriteVote writes the vote to the page, which publishes it on this host, and sends it to the others.
type WriteVote struct{ Vote Vote }

// WriteSealed writes the promise not to vote in Generation or before.
type WriteSealed struct{ Generation phalanx.Generation }

// WriteRefusal writes that a not-ok vote or unequal digests are known.
type WriteRefusal struct {
	Generation phalanx.Generation
	Step       phalanx.Step
	Who        phalanx.Rank
	Evidence   phalanx.Evidence
}

// WriteCommit tells the trainer to apply the gradient of step made in Generation: a commit or a roll forward.
type WriteCommit struct {
	Generation phalanx.Generation
	Step       phalanx.Step
}

// SeatAction says what the trainer does in its seat.
type SeatAction uint8

// What a trainer does in its seat. The numbers are those of the control page.
const (
	SeatPark SeatAction = iota
	SeatRun
	SeatHeal
	SeatStop
	SeatFenced
)

// WriteSeat tells the trainer its place in the newest generation.
type WriteSeat struct{ Do SeatAction }

// Abort revokes the collectives of every generation up to this one. WorkersLeft follows.
type Abort struct{ Generation phalanx.Generation }

// Form maps or connects the peers of the newest world. Formed follows.
type Form struct{ Generation phalanx.Generation }

// Heal reads the floor from its source into the trainer.
type Heal struct {
	Generation phalanx.Generation
	Label      phalanx.Label
	Source     Source
}

// StopHealing ends reading and serving for generations before this one.
type StopHealing struct{ Generation phalanx.Generation }

// AnswerSeal sends the promises and the possession to the leader. The loop adds slabs.
type AnswerSeal struct{ Answer Answer }

// Report sends evidence to the leader.
type Report struct{ Evidence phalanx.Evidence }

// Fence ends this incarnation: the trainer is ended, the next incarnation starts.
type Fence struct{ Why string }

// FirstStep tells the leader that this member has seen the first commit of the generation.
type FirstStep struct {
	Generation phalanx.Generation
	Step       phalanx.Step
}

// End ends the daemon: the job is done or has halted for good.
type End struct{ Why string }

func (WriteVote) action()    {}
func (WriteSealed) action()  {}
func (WriteRefusal) action() {}
func (WriteCommit) action()  {}
func (WriteSeat) action()    {}
func (Abort) action()        {}
func (Form) action()         {}
func (Heal) action()         {}
func (StopHealing) action()  {}
func (AnswerSeal) action()   {}
func (Report) action()       {}
func (Fence) action()        {}
func (FirstStep) action()    {}
func (End) action()          {}
