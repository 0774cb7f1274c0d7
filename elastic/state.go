// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"errors"
	"fmt"
	"slices"

	"phalanx"
	"phalanx/internal/planted"
)

// FormatVersion is the newest version of State in snapshots and of commands in the log that this release reads. What is written
// has the oldest one that can say it.
const FormatVersion = 2

// The versions.
const (
	versionBase   = 1
	versionPinned = 2 // pins, a layout for each coordinate, warm starts
)

// MaxTransitions bounds the history kept in the state.
const MaxTransitions = 256

// MaxRewinds bounds the rewinds that the state names. See Rewound for what makes room.
const MaxRewinds = 128

// MinGone is how many members that are gone the state names at least; it names as many as live, if those are more.
const MinGone = 256

// MaxPublished bounds the published checkpoints that the state names; older ones are found in the store.
const MaxPublished = 64

// State is what the log decides. It runs from the log on every daemon and is never changed in place: Apply returns the next
// one, so a pointer to a State is a snapshot.
type State struct {
	Version      int              `json:"version"`
	FeatureLevel int              `json:"feature_level"`
	Seq          uint64           `json:"seq"` // commands applied, refused ones included
	Phase        Phase            `json:"phase"`
	Halt         *HaltReason      `json:"halt,omitempty"`
	Spec         *phalanx.JobSpec `json:"spec,omitempty"`
	// State is the layout of the training state of each rank, Layouts instead one for each coordinate, of a job whose members are
	// pinned. See LayoutOf.
	State       []phalanx.TensorInfo   `json:"state,omitempty"`
	Layouts     [][]phalanx.TensorInfo `json:"layouts,omitempty"`
	WarmStart   *WarmStart             `json:"warm_start,omitempty"`
	Policy      Policy                 `json:"policy"`
	World       phalanx.World          `json:"world"`
	Branch      int                    `json:"branch"`
	Floor       Floor                  `json:"floor"`
	Source      Source                 `json:"source"` // where those who do not stand at the floor read it
	Activated   bool                   `json:"activated"`
	Members     []Member               `json:"members"`             // by CompareMemberIDs
	Rewinds     []RewindRecord         `json:"rewinds,omitempty"`   // oldest first: both generation and source only rise
	Published   []Published            `json:"published,omitempty"` // oldest first
	Levels      ReachedLevels          `json:"levels"`
	Kill        *Kill                  `json:"kill,omitempty"`
	Transitions []Transition           `json:"transitions,omitempty"`
	Done        *Done                  `json:"done,omitempty"`
}

// Policy is what the user asked for, in members.
type Policy struct {
	Want int `json:"want"` // ranks of a full world
	Min  int `json:"min"`  // fewer and the job halts; rounded up to whole groups
}

// Floor is the resume step of a generation with the label of the state per coordinate. It never falls but by a rewind.
type Floor struct {
	Step   phalanx.Step    `json:"step"`
	Labels []phalanx.Label `json:"labels"` // indexed by coordinate
}

// Label is the label that a member of the given coordinate must hold to stand at the floor.
func (f Floor) Label(coordinate int) phalanx.Label {
	if coordinate >= 0 && coordinate < len(f.Labels) {
		return f.Labels[coordinate]
	}
	return phalanx.Label{Step: f.Step, Coordinate: coordinate}
}

// InitialFloor is step 0, the state that the seed makes.
func InitialFloor(groupSize int) Floor {
	f := Floor{Labels: make([]phalanx.Label, groupSize)}
	for c := range f.Labels {
		f.Labels[c].Coordinate = c
	}
	return f
}

// SourceKind says where the state of the floor is read by those who do not have it.
type SourceKind string

// The kinds of source.
const (
	// FromSeed: the initial state, which every trainer makes from the seed.
	FromSeed SourceKind = "seed"
	// FromWarmStart: the initial state of a job that begins with a checkpoint of another one.
	FromWarmStart SourceKind = "warm_start"
	// FromLive: living trainers of the world, named as holders.
	FromLive SourceKind = "live"
	// FromSlab: copies in host memory that outlived their trainers, named as holders.
	FromSlab SourceKind = "slab"
	// FromStore: a published checkpoint.
	FromStore SourceKind = "store"
)

// Source is where the state of the floor is read.
type Source struct {
	Kind    SourceKind         `json:"kind"`
	Holders []phalanx.MemberID `json:"holders,omitempty"`
	Commit  uint64             `json:"commit,omitempty"` // number of the commit object, for FromStore
}

// Member is one member as the log knows it.
type Member struct {
	phalanx.Incarnate
	State      MemberState `json:"state"`
	Host       string      `json:"host"`
	Coordinate int         `json:"coordinate"`    // of the state it held last; -1 when it never had one
	Pin        phalanx.Pin `json:"pin,omitempty"` // where alone it may sit; that of its last life, once gone
	Why        string      `json:"why,omitempty"`
	Quarantine bool        `json:"quarantine,omitempty"` // of the member, through all its lives, until lifted
	Drained    bool        `json:"drained,omitempty"`    // this life was asked to leave: once gone, its daemon starts no other
	Went       uint64      `json:"went,omitempty"`       // Seq of the entry by which it went, while it is gone
}

// RewindRecord names a branch of the lineage: everything above Source that was made before Generation is abandoned.
type RewindRecord struct {
	Generation phalanx.Generation `json:"generation"`
	Branch     int                `json:"branch"`
	Source     phalanx.Step       `json:"source"`
	From       SourceKind         `json:"from"`
	Why        string             `json:"why"`
}

// Published is a checkpoint that can be restored for ever.
type Published struct {
	Step       phalanx.Step       `json:"step"`
	Generation phalanx.Generation `json:"generation"` // that made the step
	Branch     int                `json:"branch"`
	Labels     []phalanx.Label    `json:"labels"`
	Commit     uint64             `json:"commit"`
	Folder     string             `json:"folder"`
	UnixNS     int64              `json:"unix_ns"`
}

// Kill remembers the slot that was being computed by the trainer that died last, to find a sample that kills.
type Kill struct {
	Step phalanx.Step      `json:"step"`
	Slot phalanx.Slot      `json:"slot"`
	Who  phalanx.Incarnate `json:"who"`
}

// HaltReason says why nobody may vote.
type HaltReason struct {
	Kind   HaltKind `json:"kind"`
	Words  string   `json:"words"`
	UnixNS int64    `json:"unix_ns,omitempty"` // when, by the leader's clock
}

// HaltKind tells a halt that ends by itself from one that does not.
type HaltKind string

// The kinds of halt.
const (
	// BelowMinimum ends when enough members are ready again.
	BelowMinimum HaltKind = "below_minimum"
	// Poison is a sample that killed two incarnations; the job ends.
	Poison HaltKind = "poison"
	// CrashLoop means that too few members can be started at all; the job ends.
	CrashLoop HaltKind = "crash_loop"
	// Unreadable means that checkpoints were published and no state of the job can be read any more; the job ends.
	Unreadable HaltKind = "unreadable"
	// OtherJob means that what the store holds under the job's name is of another training, or goes beyond this one; the job ends
	// before its first step.
	OtherJob HaltKind = "other_job"
	// Misfit means that the checkpoint that the job is to begin with cannot be read or has other tensors; the job ends before its first
	// step.
	Misfit HaltKind = "misfit"
	// Fenced means that another run publishes into the store under the job's name, so that nothing of this one can be saved any
	// more; the job ends.
	Fenced HaltKind = "fenced"
	// StoppedByOperator is a stop that was asked for: the job ends and resumes with the next run.
	StoppedByOperator HaltKind = "stopped"
	// StoppedUnsaved is such a stop whose last save was not durable when the grace was over.
	StoppedUnsaved HaltKind = "stopped_unsaved"
	// SavesFail means that saves did not become durable for as long as the user allows; the job ends and resumes with the next run.
	SavesFail HaltKind = "saves_fail"
)

// Ends reports whether the run is over when the job halts for this reason.
func (k HaltKind) Ends() bool { return k != BelowMinimum }

// Transition is one change of the world with its evidence and how long each part took.
type Transition struct {
	Generation phalanx.Generation  `json:"generation"`
	Cause      string              `json:"cause"`
	Planned    bool                `json:"planned,omitempty"`
	Rewind     bool                `json:"rewind,omitempty"`
	Branch     int                 `json:"branch"`
	Members    []phalanx.MemberID  `json:"members"`
	Lost       []phalanx.Incarnate `json:"lost,omitempty"`
	Healing    []phalanx.MemberID  `json:"healing,omitempty"` // members that read the state of the floor
	Evidence   []phalanx.Evidence  `json:"evidence,omitempty"`
	ResumeStep phalanx.Step        `json:"resume_step"`
	Newest     phalanx.Step        `json:"newest_step"` // newest step that anybody had voted for
	Seconds    *Seconds            `json:"seconds,omitempty"`
	UnixNS     int64               `json:"unix_ns"`
}

// Seconds is how long the parts of a transition took.
type Seconds struct {
	Detect    float64 `json:"detect"`
	Agree     float64 `json:"agree"`
	Seal      float64 `json:"seal"`
	Form      float64 `json:"form"`
	Heal      float64 `json:"heal"`
	FirstStep float64 `json:"first_step"`
}

// NewState is the state before the first command.
func NewState() *State {
	return &State{Version: versionBase, FeatureLevel: versionBase, Phase: Idle}
}

// Member returns the member with this id, nil when the log does not know it.
func (s *State) Member(id phalanx.MemberID) *Member {
	i, ok := slices.BinarySearchFunc(s.Members, id, func(m Member, id phalanx.MemberID) int {
		return phalanx.CompareMemberIDs(m.Member, id)
	})
	if !ok {
		return nil
	}
	return &s.Members[i]
}

// Living reports whether exactly this life of a member is known and not gone.
func (s *State) Living(i phalanx.Incarnate) bool {
	m := s.Member(i.Member)
	return m != nil && m.Incarnation == i.Incarnation && m.State != Gone
}

// names reports whether exactly this life of a member is known, gone or not.
func (s *State) names(i phalanx.Incarnate) bool {
	m := s.Member(i.Member)
	return m != nil && m.Incarnation == i.Incarnation
}

// GroupSize is the committed group size, 1 before the spec is.
func (s *State) GroupSize() int {
	if s.Spec == nil || s.Spec.GroupSize < 1 {
		return 1
	}
	return s.Spec.GroupSize
}

// MinGroups is the fewest replica groups that may train.
func (s *State) MinGroups() int { return max(1, (s.Policy.Min+s.GroupSize()-1)/s.GroupSize()) }

// WantGroups is the number of replica groups of a full world, bounded by the slots.
func (s *State) WantGroups() int {
	want := max(1, s.Policy.Want/s.GroupSize())
	if s.Spec != nil && s.Spec.Slots < want {
		want = s.Spec.Slots
	}
	return want
}

// NextGeneration is the generation after the current one and after every generation that made the floor. The second matters
// for the first world of a new log that goes on from a checkpoint of an older one: its labels must not come again.
func (s *State) NextGeneration(f Floor) phalanx.Generation {
	g := s.World.Generation
	for _, l := range f.Labels {
		if g.Less(l.Generation) {
			g = l.Generation
		}
	}
	if planted.On(planted.GenerationReused) && !g.IsZero() {
		return g
	}
	return g.Next()
}

// Validate reports whether a state that was read from outside is one that this release understands and that a log can have
// led to.
func (s *State) Validate() error {
	if s.Version < versionBase || s.Version > FormatVersion {
		return fmt.Errorf("state of version %d, this release reads up to %d: upgrade this daemon: %w", s.Version, FormatVersion, errors.ErrUnsupported)
	}
	if err := Check(s); err != nil {
		return fmt.Errorf("state after %d commands: %w", s.Seq, err)
	}
	return nil
}

// clone copies everything that Apply may change.
func (s *State) clone() *State {
	t := *s
	t.World = s.World.Clone()
	t.Members = slices.Clone(s.Members)
	t.Layouts = slices.Clone(s.Layouts)
	t.Rewinds = slices.Clone(s.Rewinds)
	t.Published = slices.Clone(s.Published)
	t.Transitions = slices.Clone(s.Transitions)
	return &t
}

// NewestPublished returns the newest published checkpoint of the lineage, nil when there is none.
func (s *State) NewestPublished() *Published {
	var newest *Published
	for i := range s.Published {
		p := &s.Published[i]
		if len(p.Labels) > 0 && s.OfLineage(p.Labels[0]) && (newest == nil || p.Step >= newest.Step) {
			newest = p
		}
	}
	return newest
}
