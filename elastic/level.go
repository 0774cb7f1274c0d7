// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"

	"phalanx"
)

// Level is how much the staged state of a step survives. What is durable beyond any host is published: PublishCheckpoint.
type Level string

// The levels of a staged state, each including the one before.
const (
	// LevelLocal: each coordinate is whole in host memory that outlives its trainer.
	LevelLocal Level = "local"
	// LevelMemory: and each is so on two hosts at least; any one of them may be lost.
	LevelMemory Level = "memory"
)

// Levels lists every level, for tests that walk them.
var Levels = []Level{LevelLocal, LevelMemory}

// ReachedLevels are the newest steps of the lineage that have reached a level. They record what was, for those who look from
// outside: the next save overwrites slabs, and hosts are lost. What is there now is for the members to report, and the planner
// goes by that alone.
type ReachedLevels struct {
	Local  *Reached `json:"local,omitempty"`
	Memory *Reached `json:"memory,omitempty"`
}

// Reached is a step that has reached a level.
type Reached struct {
	Step       phalanx.Step       `json:"step"`
	Generation phalanx.Generation `json:"generation"` // that made the step
	UnixNS     int64              `json:"unix_ns"`
}

// label is what tells whether the step is of the lineage.
func (r *Reached) label() phalanx.Label {
	return phalanx.Label{Step: r.Step, Generation: r.Generation}
}

// ReachLevel records, beside the path, that the staged state of a step has reached a level.
type ReachLevel struct {
	Level Level `json:"level"`
	Reached
}

func (ReachLevel) kind() string { return "reach_level" }

func (s *State) reach(c ReachLevel) error {
	if s.World.Generation.IsZero() || s.ended() || c.Level != LevelLocal && c.Level != LevelMemory || c.Step == 0 {
		return fmt.Errorf("step %d at level %q: %w", c.Step, c.Level, ErrIllegal)
	}
	if s.World.Generation.Less(c.Generation) || c.Generation.IsZero() || !s.OfLineage(c.label()) {
		return fmt.Errorf("%s at level %s: %w", c.label(), c.Level, ErrLineage)
	}
	r := c.Reached
	if c.Level == LevelMemory {
		if old := s.Levels.Memory; old != nil && old.Step >= c.Step {
			return fmt.Errorf("step %d at level %s after step %d: %w", c.Step, c.Level, old.Step, ErrIllegal)
		}
		s.Levels.Memory = &r
	}
	switch old := s.Levels.Local; {
	case old == nil || old.Step < c.Step:
		s.Levels.Local = &r
	case c.Level == LevelLocal:
		return fmt.Errorf("step %d at level %s after step %d: %w", c.Step, c.Level, old.Step, ErrIllegal)
	}
	return nil
}

// abandonLevels forgets what a rewind abandons. What is in the memory of two hosts is in that of one.
func (s *State) abandonLevels() {
	if r := s.Levels.Memory; r != nil && !s.OfLineage(r.label()) {
		s.Levels.Memory = nil
	}
	if r := s.Levels.Local; r != nil && !s.OfLineage(r.label()) {
		s.Levels.Local = s.Levels.Memory
	}
}
