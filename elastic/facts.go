// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"slices"

	"phalanx"
)

// Facts is what the leader knows beside the log. The loop fills it and turns expired deadlines into facts; the planner
// compares no times.
type Facts struct {
	// Leader is the source of what the leader itself saw, such as silence.
	Leader  phalanx.MemberID
	Members []MemberFact // by CompareMemberIDs, one per member that is connected or in the world
	Round   Round
	// Reasons are the evidence for which the round's seal was asked. It may be withdrawn before the round ends, and is the reason
	// all the same.
	Reasons []phalanx.Evidence
	// Store says what the checkpoint store holds; Known is false until the leader has looked.
	Store StoreFact
	// JoinClosed: the window for the first world, or for growing one, is over; go on with those that are there.
	JoinClosed bool
	// LeaseOut: ten seconds have passed since the later of the leader's own election and its last grant to any member of the
	// world that has not answered.
	LeaseOut bool
	// Boundary is the step that the next planned seal should name: ahead of every vote that the leader has heard.
	Boundary phalanx.Step
	// Stop: the job was asked to stop; all members are drained after a save.
	Stop bool
	// Restarted: the job was started again after the halt that ended it.
	Restarted bool
	// UnixNS is stamped into the commands. It is recorded, never compared.
	UnixNS int64
}

// MemberFact is what the leader knows about one life of one member.
type MemberFact struct {
	phalanx.Incarnate
	Host      string
	Connected bool
	Ready     bool // its trainer said hello, waits in its first Begin and is not known to the log yet, or still waits
	// Pin is where alone its trainer may sit, and Layout that of its state, as far as the log has none to compare with.
	Pin        phalanx.Pin
	Layout     []phalanx.TensorInfo
	Possession Possession
	Slabs      []phalanx.Label
	// Dead: proven by the kernel of the member's own host, or another boot id was seen.
	Dead bool
	// Silent: no answer by its deadline (1 s; its grace included).
	Silent bool
	// InGrace: the daemon died beside a living trainer and may still come back.
	InGrace bool
	// Apart: outside of the world, and it would not be reached by all who are in it.
	Apart    bool
	Failed   bool               // gave up starting its trainer
	Leaving  bool               // asked to leave by its host
	Finished bool               // its trainer wrote done for the last step and has ended
	Digest   phalanx.Digest     // of the parameters, with Finished
	Evidence []phalanx.Evidence // against the current generation
	Answer   *Answer            // to the seal of the current generation
	// Sealed is the newest generation that it has sealed, by its own report.
	Sealed phalanx.Generation
}

// Round is the seal round that the leader has asked for in the current generation.
type Round struct {
	Asked    bool
	Planned  bool
	Boundary phalanx.Step
	// Late: the boundary was not reached by its deadline.
	Late bool
}

// StoreFact is what the checkpoint store holds.
type StoreFact struct {
	Known      bool
	Published  *Published // newest restorable of this job, nil for none
	Unreadable []uint64   // commit numbers that the log calls published and that cannot be read
	OtherJob   string     // why what is published is not of this training, "" when it is
	Warm       WarmFact   // of a job with a warm start for which nothing is published
}

// Fact returns the fact about a member, nil when there is none.
func (f *Facts) Fact(id phalanx.MemberID) *MemberFact {
	i := slices.IndexFunc(f.Members, func(m MemberFact) bool { return m.Member == id })
	if i < 0 {
		return nil
	}
	return &f.Members[i]
}
