// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"phalanx/elastic"
)

// Coverage is which lines of the tables in elastic/doc.go were reached.
type Coverage struct {
	mu    sync.Mutex
	lines map[string]struct{}
	local [7][8][7]atomic.Bool // state, event, state
}

// NewCoverage is one that has reached nothing.
func NewCoverage() *Coverage { return &Coverage{lines: map[string]struct{}{}} }

// Add puts what another has reached in.
func (c *Coverage) Add(o *Coverage) {
	for line := range o.lines {
		c.lines[line] = struct{}{}
	}
	for i := range c.local {
		for j := range c.local[i] {
			for k := range c.local[i][j] {
				if o.local[i][j][k].Load() {
					c.local[i][j][k].Store(true)
				}
			}
		}
	}
}

// Lines are what was reached: "PHASE COMMAND", "STATE → STATE by COMMAND" of a member and "STATE EVENT STATE" of a machine.
func (c *Coverage) Lines() []string {
	var out []string
	for before := range c.local {
		for event := range c.local[before] {
			for after := range c.local[before][event] {
				if c.local[before][event][after].Load() {
					out = append(out, elastic.LocalState(before).String()+" "+eventNames[event]+" "+elastic.LocalState(after).String())
				}
			}
		}
	}
	for line := range c.lines {
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func (c *Coverage) note(words ...string) {
	line := strings.Join(words, " ")
	c.mu.Lock()
	c.lines[line] = struct{}{}
	c.mu.Unlock()
}

// step notes what an event did to a machine.
func (c *Coverage) step(before elastic.LocalState, ev elastic.Event, after elastic.LocalState) {
	if hit := &c.local[before][eventNumber(ev)][after]; !hit.Load() {
		hit.Store(true)
	}
}

// entry notes an entry that was accepted.
func (c *Coverage) entry(before, after *elastic.State, command elastic.Command, err error) {
	if err != nil {
		return
	}
	name := reflect.TypeOf(command).Name()
	phase := before.Phase.String()
	if ends(before) && before.Phase == elastic.Halted {
		phase = "ended"
	}
	c.note(phase, name)
	for i := range after.Members {
		m := &after.Members[i]
		was := "(unknown)"
		if old := before.Member(m.Member); old != nil {
			was = old.State.String()
		}
		if is := m.State.String(); is != was {
			c.note(was, name, is)
		}
	}
}

var eventNames = []string{"Read", "Seen", "PeerVoted", "SealAsked", "WorkersLeft", "Formed", "HealBroken", "Lease"}

func eventNumber(ev elastic.Event) int {
	switch ev.(type) {
	case elastic.Read:
		return 0
	case elastic.Seen:
		return 1
	case elastic.PeerVoted:
		return 2
	case elastic.SealAsked:
		return 3
	case elastic.WorkersLeft:
		return 4
	case elastic.Formed:
		return 5
	case elastic.HealBroken:
		return 6
	case elastic.Lease:
		return 7
	}
	return -1
}
