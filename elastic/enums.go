// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"
)

// Phase is the phase of the job. Only State.Apply changes it.
type Phase uint8

// The phases of a job.
const (
	// Idle: no world yet. Left by the first FormGeneration or Rewind.
	Idle Phase = iota
	// Forming: a world is committed and has not committed a step. Entered by FormGeneration and Rewind, left by Activate or
	// by the next of those.
	Forming
	// Running: the world has committed a step. Entered by Activate.
	Running
	// Halted: nobody may vote. Entered by a FormGeneration of too few groups or by Halt; left by a FormGeneration or Rewind
	// that has enough.
	Halted
	// Finished: the last step is committed and published. Final.
	Finished
)

var phaseNames = []string{"idle", "forming", "running", "halted", "finished"}

// Phases lists every phase, for tests that walk them.
var Phases = []Phase{Idle, Forming, Running, Halted, Finished}

func (p Phase) String() string { return nameOf(phaseNames, int(p)) }

// MarshalText prints the phase in lower case.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText prints.
func (p *Phase) UnmarshalText(b []byte) error {
	i, err := indexOf("phase", phaseNames, string(b))
	*p = Phase(i)
	return err
}

// MemberState is the state of a member in the log. Only State.Apply changes it.
type MemberState uint8

// The states of a member.
const (
	// Joining: admitted, its trainer is parked, waits for a place in the next world.
	Joining MemberState = iota
	// Active: in the world.
	Active
	// Spare: ready and not in the world, because the world is full or its group broke.
	Spare
	// Draining: asked to leave; in the world until the next generation. One that alone possesses a coordinate then serves from
	// outside until the first commit.
	Draining
	// Quarantined: kept out until lifted.
	Quarantined
	// Gone: this incarnation is over. The next one may be admitted.
	Gone
)

var memberStateNames = []string{"joining", "active", "spare", "draining", "quarantined", "gone"}

func (m MemberState) String() string { return nameOf(memberStateNames, int(m)) }

// MarshalText prints the state in lower case.
func (m MemberState) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText prints.
func (m *MemberState) UnmarshalText(b []byte) error {
	i, err := indexOf("member state", memberStateNames, string(b))
	*m = MemberState(i)
	return err
}

// LocalState is the state of a daemon's own machine. Only Machine.Step changes it.
type LocalState uint8

// The states of the machine.
const (
	// LocalIdle: not in the world; the trainer is parked.
	LocalIdle LocalState = iota
	// LocalSealing: sealed and answered; waits for the next entry.
	LocalSealing
	// LocalAborting: sealed; workers of the generation are leaving the segments, the answer waits for them.
	LocalAborting
	// LocalForming: in the world of the newest entry; its communicators are being formed.
	LocalForming
	// LocalHealing: formed; the trainer reads the state of the floor.
	LocalHealing
	// LocalReady: formed, the trainer stands at the floor or beyond and may vote.
	LocalReady
	// LocalRunning: has voted in this generation.
	LocalRunning
)

var localNames = []string{"idle", "sealing", "aborting", "forming", "healing", "ready", "running"}

// LocalStates lists every state of the machine, for tests that walk them.
var LocalStates = []LocalState{LocalIdle, LocalSealing, LocalAborting, LocalForming, LocalHealing, LocalReady, LocalRunning}

func (l LocalState) String() string { return nameOf(localNames, int(l)) }

// MarshalText prints the state in lower case.
func (l LocalState) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("unknown(%d)", i)
	}
	return names[i]
}

func indexOf(what string, names []string, s string) (int, error) {
	i := slices.Index(names, s)
	if i < 0 {
		return 0, fmt.Errorf("%s %q is unknown", what, s)
	}
	return i, nil
}
