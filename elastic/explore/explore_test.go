// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// beyond are the lines of the tables in elastic/doc.go that the configurations do not reach, with the reason. One that is
// reached must not stand here.
var beyond = map[string]string{
	"ended AdmitMembers": "the planner proposes nothing but Resume once the job has ended; only a late leader's entry would",
	"ended EvictMembers": "as above",
	"idle Rewind":        "begins from a checkpoint of an earlier log; the explorer's store begins empty",

	"active Rewind spare":           "a leftover of a broken group needs two groups, one of them whole, and a rewind: beyond these bounds",
	"draining EvictMembers gone":    "a donor that leaves and is lost while others heal from it: beyond these bounds",
	"draining FormGeneration spare": "a donor that leaves when too few are left: beyond these bounds",
	"draining Activate quarantined": "a donor in quarantine that alone possesses a coordinate: beyond these bounds",

	"draining Rewind quarantined": "a quarantine, a loss and a rewind: one level beyond the cut",
	"idle SealAsked idle":         "leaders ask nobody outside of the world",
	"idle Formed idle":            "forming is given up before a member reads that it has no seat",
	"idle HealBroken idle":        "a heal ends with its generation",
	"healing Formed healing":      "Form is answered once",
	"ready Formed ready":          "Form is answered once",
	"running Formed running":      "Form is answered once",
	"ready HealBroken ready":      "a heal that has ended does not break",
	"running HealBroken running":  "a heal that has ended does not break",
	"sealing WorkersLeft sealing": "workers leave once for each Abort",
}

// TestConfigs explores every configuration: no rule breaks, the next step is committed from every state, and together they
// reach every line of the tables in elastic/doc.go and no change of a member that is not written there.
func TestConfigs(t *testing.T) {
	all := NewCoverage()
	for _, c := range Configs() {
		c.Workers = 2
		start := time.Now()
		r, cover, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		all.Add(cover)
		t.Logf("%s: %d states, %d transitions, depth %d, %s, %s", c.Name, r.States, r.Transitions, r.Depth, r.Result(), time.Since(start).Round(time.Millisecond))
		if r.Violation != nil {
			t.Errorf("%s\n%s", r.Result(), r.Violation.Story)
		}
		if !r.Whole && c.MaxStates == 0 {
			t.Errorf("%s is not whole", c.Name)
		}
	}
	checkCoverage(t, all.Lines())
}

func checkCoverage(t *testing.T, reached []string) {
	t.Helper()
	written, legal := tables(t)
	for _, line := range written {
		if _, known := beyond[line]; known == slices.Contains(reached, line) {
			if known {
				t.Errorf("%q is reached and must not stand among those that are not", line)
			} else {
				t.Errorf("no configuration reaches %q", line)
			}
		}
	}
	for line, why := range beyond {
		if !slices.Contains(written, line) {
			t.Errorf("elastic/doc.go has no line %q (%s)", line, why)
		}
	}
	for _, line := range reached {
		if words := strings.Fields(line); legal(words) && !slices.Contains(written, line) {
			t.Errorf("%q happens and elastic/doc.go does not say so", line)
		}
	}
}

// tables reads the lines of the three tables in elastic/doc.go: commands that a phase accepts, changes of a member, events of
// a machine. legal says whether what was reached belongs to a table that lists everything that may happen: in another place
// than the third table's an event may lead to another state.
func tables(t *testing.T) (written []string, legal func([]string) bool) {
	t.Helper()
	text, err := os.ReadFile("../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var phases []string
	table, counts := "", map[string]int{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "//"))
		switch {
		case len(words) == 0:
			table = ""
		case words[0] == "command" && len(words) == 7:
			table, phases = "phase", words[1:]
		case slices.Equal(words, []string{"from", "command", "to"}):
			table = "member"
		case words[0] == "state" && len(words) == 4:
			table = "machine"
		case table == "phase":
			for i, outcome := range words[1:] {
				if outcome == "ok" {
					written = append(written, phases[i]+" "+words[0])
				}
			}
			counts[table]++
		case table != "":
			written = append(written, strings.Join(words[:3], " "))
			counts[table]++
		}
	}
	if counts["phase"] != 14 || counts["member"] < 30 || counts["machine"] != 56 {
		t.Fatalf("the tables of elastic/doc.go have %v lines", counts)
	}
	return written, func(words []string) bool { return len(words) == 2 || !slices.Contains(eventNames, words[1]) }
}

// TestDeterministic: the result depends neither on the number of goroutines nor on the run.
func TestDeterministic(t *testing.T) {
	c := Config{Name: "deterministic", Members: 3, Joiners: 1, Steps: 1, Generations: 2, Faults: 1, Deaths: true, Planned: true, MaxStates: 3000}
	var first Report
	for n := 1; n <= 3; n++ {
		c.Workers = n
		r, _, err := Run(c)
		if err != nil || r.Violation != nil {
			t.Fatal(r, err)
		}
		if n == 1 {
			first = r
		}
		if r.States != first.States || r.Transitions != first.Transitions || r.Depth != first.Depth {
			t.Errorf("%d goroutines: %d states, %d transitions, depth %d; one: %d, %d, %d", n, r.States, r.Transitions, r.Depth, first.States, first.Transitions, first.Depth)
		}
	}
}

// TestNamesDoNotMatter: merging states that differ in the names of their members alone leaves as many levels, and states of
// which each stands for at most as many as there are orders.
func TestNamesDoNotMatter(t *testing.T) {
	c := Config{Name: "names", Members: 3, Steps: 1, Generations: 2}
	merged, _, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Distinct = true
	distinct, _, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	if !merged.Whole || !distinct.Whole || merged.Violation != nil || distinct.Violation != nil {
		t.Fatalf("merged %s, distinct %s", merged.Result(), distinct.Result())
	}
	if merged.Depth != distinct.Depth || merged.States >= distinct.States || distinct.States > 6*merged.States {
		t.Errorf("merged: %d states to depth %d, distinct: %d to depth %d", merged.States, merged.Depth, distinct.States, distinct.Depth)
	}
}
