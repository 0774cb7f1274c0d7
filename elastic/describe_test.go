// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"strings"
)

func describe(a Answer) string {
	var words []string
	switch {
	case a.Unread:
		words = append(words, "unread")
	case a.Vote == nil:
		words = append(words, "no vote")
	case a.Vote.OK:
		words = append(words, fmt.Sprintf("voted %d", a.Vote.Step))
	default:
		words = append(words, fmt.Sprintf("voted %d not ok", a.Vote.Step))
	}
	if a.Refused > 0 {
		words = append(words, fmt.Sprintf("knows a refusal of %d", a.Refused))
	}
	switch p := a.Possession; {
	case !p.Trainer:
		words = append(words, "no trainer")
	case !p.Holds:
		words = append(words, "no state")
	default:
		words = append(words, fmt.Sprintf("at %d", p.Label.Step))
		if p.Gradient.Step > p.Label.Step {
			words = append(words, fmt.Sprintf("has gradient %d", p.Gradient.Step))
		}
	}
	return strings.Join(words, ", ")
}

func describeCommand(c Command, after *State) string {
	switch c := c.(type) {
	case AdmitMembers:
		var names []string
		for _, a := range c.Members {
			names = append(names, a.Incarnate.String())
		}
		return "admit " + strings.Join(names, " ")
	case EvictMembers:
		return "evict " + c.Evictions[0].Evidence.String()
	case FormGeneration:
		return describeWorld("form", c, after)
	case Rewind:
		return describeWorld(fmt.Sprintf("REWIND to branch %d,", c.Branch), c.FormGeneration, after)
	case Activate:
		return fmt.Sprintf("activate %s", c.Generation)
	case PublishCheckpoint:
		return fmt.Sprintf("publish step %d as commit %d", c.Step, c.Commit)
	case ReachLevel:
		return fmt.Sprintf("step %d reaches level %s", c.Step, c.Level)
	case Drain:
		return fmt.Sprintf("drain %s: %s is %s", c.Member, c.Member, after.Member(c.Member).State)
	case Halt:
		return fmt.Sprintf("halt: %s", c.Reason.Words)
	}
	return c.kind()
}

func describeWorld(verb string, c FormGeneration, after *State) string {
	names := make([]string, 0, c.World.Size())
	for _, seat := range c.World.Seats {
		names = append(names, string(seat.Member))
	}
	text := fmt.Sprintf("%s %s of [%s] at step %d from %s", verb, c.World.Generation, strings.Join(names, " "), c.Floor.Step, c.Source.Kind)
	if len(c.Source.Holders) > 0 {
		text += fmt.Sprintf(" %v", c.Source.Holders)
	}
	if after.Phase == Halted {
		text += ", HALTED: " + after.Halt.Words
	}
	return text + ": " + c.Cause
}
