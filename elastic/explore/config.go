// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"strings"

	"phalanx"
)

// Config bounds an exploration: who is there, how far it goes, and what may happen beside the ordinary acts. Ordinary are, for
// each member in any order: to read the log, to vote, to hear votes, to apply what was decided, to heal, to be asked for a
// seal by some leader; and for any leader, to form the next generation from any answers. Messages arrive late or never.
type Config struct {
	Name    string
	Members int // that exist
	Joiners int // of them, the last ones, that start at any time instead of being in the first world
	Group   int // group size, 1 when 0
	Want    int // ranks of a full world, Members when 0
	Min     int // ranks that may train, Group when 0
	// Pinned: each member sits at one coordinate alone, the members in order at 0 to Group − 1 and around.
	Pinned bool

	// Before is what happens before the exploration begins, in the words of the stories without "> ": each is what one event is
	// told as, its lines joined by "; ", or "run to STEP". The bounds count from there.
	Before []string

	Steps       phalanx.Step // nobody votes for later ones
	Generations int          // formed at most
	Faults      int          // at most

	// What counts as a fault.
	Deaths   bool // a trainer dies; a host is lost with its page
	Daemons  bool // a daemon dies and comes back, or not, and finds its page
	Refusals bool // a vote is not ok; a gradient is wrong
	Leases   bool // a member's lease runs out
	Breaks   bool // a heal breaks off
	Insists  bool // a trainer asks again, for the opposite of its vote

	// What happens at no cost.
	Heals   bool // heals take time: other things happen between their begin and their end
	Planned bool // a leader names a boundary
	Wishes  int  // of an operator, at most
	Wish    Wish // which ones
	Opening bool // begins with an empty log: members start at any time
	Finish  bool // the last step ends the job
	Publish int  // checkpoints at most
	Reach   int  // entries at most that tell of a level
	Late    int  // entries at most that late leaders have computed and not proposed yet
	Fine    bool // forming, leaving and the optimizer take time too, and each vote is heard by itself

	// LenientPromises lets a broken promise pass until the world has decided otherwise because of it.
	LenientPromises bool
	// SafetyOnly leaves out whether the next step is committed from every state.
	SafetyOnly bool
	// Distinct keeps states apart that differ in the names of their members alone.
	Distinct bool

	MaxStates int // the level in which this many states are exceeded is the last one; 0 for no bound
	MaxDepth  int // levels; 0 for no bound
	Workers   int // 1 when 0. The result does not depend on it
	// Progress is called after each level. The exploration ends when it returns false.
	Progress func(depth, states, frontier int) bool
}

// Wish is a set of what an operator asks for.
type Wish uint8

// What an operator asks for.
const (
	Resizes Wish = 1 << iota
	Drains
	Quarantines // and lifts them
	Stops       // and starts the job again
	Leaves      // by the member's own host
	Rewinds     // to the newest checkpoint
	AllWishes   = Resizes | Drains | Quarantines | Stops | Leaves | Rewinds
)

func (c *Config) defaults() error {
	c.Group, c.Workers = max(1, c.Group), max(1, c.Workers)
	if c.Want == 0 {
		c.Want = c.Members
	}
	c.Min = max(c.Min, c.Group)
	c.Distinct = c.Distinct || c.Pinned // a name says the coordinate
	switch {
	case c.Members < 1 || c.Members > maxMembers:
		return fmt.Errorf("configuration %s has %d members; between 1 and %d are possible", c.Name, c.Members, maxMembers)
	case !c.Opening && (c.Joiners < 0 || c.Members-c.Joiners < c.Group):
		return fmt.Errorf("configuration %s has %d members, of which %d join later: the first world needs a whole group of %d", c.Name, c.Members, c.Joiners, c.Group)
	case c.Steps+3 > maxSteps:
		return fmt.Errorf("configuration %s has %d steps; at most %d are possible", c.Name, c.Steps, maxSteps-3)
	}
	return nil
}

// Bounds says what is explored, in a few words.
func (c Config) Bounds() string {
	words := []string{fmt.Sprintf("%d members", c.Members)}
	if c.Joiners > 0 {
		words[0] += fmt.Sprintf(" of which %d join", c.Joiners)
	}
	if c.Group > 1 {
		words = append(words, fmt.Sprintf("G = %d", c.Group))
	}
	if c.Pinned {
		words = append(words, "pinned")
	}
	words = append(words, fmt.Sprintf("%d steps, %d generations", c.Steps, c.Generations))
	var kinds []string
	for _, k := range []struct {
		on   bool
		name string
	}{{c.Deaths, "deaths"}, {c.Daemons, "daemons"}, {c.Refusals, "refusals"}, {c.Leases, "leases"}, {c.Breaks, "broken heals"}, {c.Insists, "votes asked again"}} {
		if k.on {
			kinds = append(kinds, k.name)
		}
	}
	if c.Faults > 0 {
		words = append(words, fmt.Sprintf("%d faults (%s)", c.Faults, strings.Join(kinds, ", ")))
	}
	for _, k := range []struct {
		on   bool
		name string
	}{{c.Planned, "planned changes"}, {c.Publish > 0, fmt.Sprintf("%d checkpoints", c.Publish)}, {c.Reach > 0, fmt.Sprintf("%d levels", c.Reach)}, {c.Late > 0, fmt.Sprintf("%d late entries", c.Late)},
		{c.Wishes > 0, fmt.Sprintf("%d wishes", c.Wishes)}, {c.Opening, "from an empty log"}, {c.Finish, "to the end"},
		{c.Heals && !c.Fine, "heals take time"}, {c.Fine, "everything takes time"}} {
		if k.on {
			words = append(words, k.name)
		}
	}
	return strings.Join(words, ", ")
}

// Result says in a few words how it ended.
func (r *Report) Result() string {
	switch {
	case r.Violation != nil && r.Violation.Stuck:
		return "STUCK: " + r.Violation.What
	case r.Violation != nil:
		return "BROKEN: " + r.Violation.What
	case r.Whole:
		return "whole"
	}
	return fmt.Sprintf("cut at depth %d", r.Depth)
}

// Report is what an exploration found.
type Report struct {
	Config      Config
	States      int
	Transitions int64
	Depth       int
	Whole       bool // every state within the bounds was visited
	Violation   *Violation
}

// Violation is a rule that was broken, or a state from which the next step is not committed without further faults.
type Violation struct {
	What  string
	Stuck bool
	// Story is the shortest way there, in the language of the stories in elastic/testdata.
	Story string
	Depth int
}
