// SPDX-License-Identifier: Apache-2.0

package job

import (
	"encoding/json"
	"slices"
)

// Status is the part of `phalanx status --explain --json` that is read here.
type Status struct {
	Generation  uint64       `json:"generation"`
	Phase       string       `json:"phase"`
	Step        uint64       `json:"step"`
	ResumeStep  uint64       `json:"resume_step"`
	Leader      string       `json:"leader"`
	Fresh       bool         `json:"fresh"`
	Raft        Raft         `json:"raft"`
	World       []string     `json:"world"`
	Members     []Member     `json:"members"`
	Transitions []Transition `json:"transitions"`
}

// Raft is how far the log of whoever answers has come.
type Raft struct {
	LastIndex uint64 `json:"last_index"`
}

// Member is one member of the job.
type Member struct {
	Member     string `json:"member"`
	Rank       int    `json:"rank"`
	State      string `json:"state"`
	DaemonPID  int    `json:"daemon_pid"`
	TrainerPID int    `json:"trainer_pid"`
}

// Transition is one change of the world as the job tells it.
type Transition struct {
	Generation Generation  `json:"generation"`
	Cause      string      `json:"cause"`
	Planned    bool        `json:"planned"`
	Rewind     bool        `json:"rewind"`
	Members    []string    `json:"members"`
	Lost       []Incarnate `json:"lost"`
	Healing    []string    `json:"healing"`
	Evidence   []Evidence  `json:"evidence"`
	ResumeStep uint64      `json:"resume_step"`
	NewestStep uint64      `json:"newest_step"`
	UnixNS     int64       `json:"unix_ns"` // when the change was proposed, everybody having sealed
	Seconds    *Seconds    `json:"seconds"` // nil until the first step of the generation is committed
}

// Generation is a bare number in JSON while the authority has not changed hands.
type Generation struct{ Number uint64 }

// UnmarshalJSON reads the bare number.
func (g *Generation) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &g.Number) }

// Incarnate is one life of a member.
type Incarnate struct {
	Member      string `json:"member"`
	Incarnation uint64 `json:"incarnation"`
}

// Evidence is what proved or hinted that a member is gone.
type Evidence struct {
	Kind   string    `json:"kind"`
	About  Incarnate `json:"about"`
	Source string    `json:"source"`
	UnixNS int64     `json:"unix_ns"`
	Detail string    `json:"detail"`
}

// Seconds are the parts of a change, each from the end of the one before it.
type Seconds struct {
	Detect    float64 `json:"detect"`
	Agree     float64 `json:"agree"`
	Seal      float64 `json:"seal"`
	Form      float64 `json:"form"`
	Heal      float64 `json:"heal"`
	FirstStep float64 `json:"first_step"`
}

// Committed is when the first step of the generation was committed, 0 while that is not recorded.
func (t *Transition) Committed() int64 {
	if t.Seconds == nil {
		return 0
	}
	s := t.Seconds
	return t.UnixNS + int64((s.Agree+s.Form+s.Heal+s.FirstStep)*1e9)
}

// Find returns a member, nil when the job does not know it.
func (s *Status) Find(id string) *Member {
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Member == id })
	if i < 0 {
		return nil
	}
	return &s.Members[i]
}

// Whole reports whether a world of that many ranks trains under a leader, each with a living daemon and trainer.
func (s *Status) Whole(ranks int) bool {
	if s.Phase != "running" || len(s.World) != ranks || s.Leader == "" {
		return false
	}
	for _, id := range s.World {
		if m := s.Find(id); m == nil || m.DaemonPID <= 1 || m.TrainerPID <= 1 || m.Rank < 0 {
			return false
		}
	}
	return true
}

// Followers are the members of the world that do not lead, in rank order.
func (s *Status) Followers() []string {
	return slices.DeleteFunc(slices.Clone(s.World), func(id string) bool { return id == s.Leader })
}

// Spares are the members that are ready and in no world.
func (s *Status) Spares() (out []Member) {
	for _, m := range s.Members {
		if m.State == "spare" && m.Rank < 0 && m.TrainerPID > 1 {
			out = append(out, m)
		}
	}
	return out
}
