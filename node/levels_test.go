// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"phalanx"
)

func TestStagedLevels(t *testing.T) {
	hold := func(member phalanx.MemberID, step phalanx.Step, g uint64, c int) holding {
		return holding{member, member.Host(), phalanx.Label{Step: step, Generation: phalanx.Generation{Number: g}, Coordinate: c}}
	}
	for name, c := range map[string]struct {
		groupSize     int
		have          []holding
		local, memory phalanx.Step
	}{
		"nothing":                  {1, nil, 0, 0},
		"one host":                 {1, []holding{hold("a/0", 5, 1, 0), hold("a/1", 5, 1, 0)}, 5, 0},
		"two hosts":                {1, []holding{hold("a/0", 5, 1, 0), hold("b/0", 5, 1, 0)}, 5, 5},
		"half a group":             {2, []holding{hold("a/0", 5, 1, 0)}, 0, 0},
		"a group":                  {2, []holding{hold("a/0", 5, 1, 0), hold("a/1", 5, 1, 1)}, 5, 0},
		"one coordinate twice":     {2, []holding{hold("a/0", 5, 1, 0), hold("a/1", 5, 1, 1), hold("b/0", 5, 1, 0)}, 5, 0},
		"both twice":               {2, []holding{hold("a/0", 5, 1, 0), hold("a/1", 5, 1, 1), hold("b/0", 5, 1, 0), hold("b/0", 5, 1, 1)}, 5, 5},
		"a newer one on one":       {1, []holding{hold("a/0", 6, 1, 0), hold("b/0", 5, 1, 0), hold("c/0", 5, 1, 0)}, 6, 5},
		"generations do not mix":   {1, []holding{hold("a/0", 5, 1, 0), hold("b/0", 5, 2, 0)}, 5, 0},
		"an older one after those": {1, []holding{hold("a/0", 6, 1, 0), hold("b/0", 6, 1, 0), hold("c/0", 5, 1, 0)}, 6, 6},
	} {
		local, memory := stagedLevels(c.have, c.groupSize)
		if local.Step != c.local || memory.Step != c.memory {
			t.Errorf("%s: local %d, memory %d, want %d and %d", name, local.Step, memory.Step, c.local, c.memory)
		}
	}
}
