// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"testing"
	"time"
)

func TestThin(t *testing.T) {
	for _, c := range []Config{
		{Name: "two", Members: 2, Steps: 1, Generations: 3, Faults: 1, Deaths: true},
		{Name: "three", Members: 3, Steps: 1, Generations: 2, Faults: 1, Deaths: true, MaxStates: 3000},
	} {
		for _, n := range []int{1, 2} {
			c.Workers = n
			start := time.Now()
			r, _, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d states, %d transitions, depth %d, whole %v, %s", c.Name, r.States, r.Transitions, r.Depth, r.Whole, time.Since(start))
			if r.Violation != nil {
				t.Fatalf("%s (stuck %v)\n%s", r.Violation.What, r.Violation.Stuck, r.Violation.Story)
			}
		}
	}
}
