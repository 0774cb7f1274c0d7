// SPDX-License-Identifier: Apache-2.0

//go:build planted

package explore

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx/internal/planted"
)

var rewrite = flag.Bool("rewrite", false, "write the stories that are found now")

// bugs are the configurations in which each planted bug shows.
var bugs = []struct {
	bug    planted.Bug
	config Config
	stuck  bool
}{
	{planted.ResumeApplied, Config{Members: 2, Steps: 1, Generations: 2}, false},
	{planted.FloorForgotten, Config{Members: 2, Steps: 1, Generations: 3}, false},
	{planted.BaseUnchecked, Config{Members: 2, Steps: 1, Generations: 3, Late: 1}, false},
	{planted.SealForgotten, Config{Members: 2, Steps: 1, Generations: 2, Faults: 1, Daemons: true, LenientPromises: true}, false},
	{planted.VoteBeforePage, Config{Members: 2, Steps: 1, Generations: 2, Faults: 1, Daemons: true, LenientPromises: true}, false},
	{planted.VoteChanges, Config{Members: 2, Steps: 1, Generations: 2, Faults: 1, Insists: true, LenientPromises: true}, false},
	{planted.NoLabel, Config{Members: 2, Steps: 2, Generations: 2, Deaths: true, Wish: Resizes, Planned: true, Before: abandoned}, false},
	{planted.NoCoordinate, Config{Members: 4, Group: 2, Min: 2, Steps: 2, Generations: 2, Deaths: true, Before: []string{
		"run to 1", "kill d/0", "ask a/0; do leave a/0", "ask b/0; do leave b/0", "ask c/0; do leave c/0", "ask d/0; do leave d/0",
		"draft A a/0 b/0 c/0 d/0; commit A", "kill b/0"}}, false},
	{planted.RewindAnywhere, Config{Members: 2, Steps: 2, Generations: 2, Deaths: true, Wish: Resizes, Planned: true, Before: abandoned}, false},
	{planted.OnlyBelowHeals, Config{Members: 3, Group: 2, Steps: 2, Generations: 2, Deaths: true, Before: []string{"run to 1", "kill b/0"}}, false},
	{planted.HealUnmarked, Config{Members: 2, Joiners: 1, Steps: 1, Generations: 3, Faults: 1, Deaths: true, Planned: true, Heals: true}, false},
	{planted.RewindBelowPublished, Config{Members: 2, Joiners: 1, Steps: 1, Generations: 2, Faults: 1, Leases: true, Late: 1, Publish: 1}, false},
	{planted.BoundaryUnnamed, Config{Members: 3, Joiners: 1, Steps: 1, Generations: 2, Planned: true}, true},
	{planted.SealNoEvidence, Config{Members: 2, Steps: 1, Generations: 2}, true},
	{planted.SealIgnored, Config{Members: 2, Steps: 1, Generations: 3, LenientPromises: true}, false},
	{planted.CommitShort, Config{Members: 2, Steps: 1, Generations: 2}, false},
	{planted.GenerationReused, Config{Members: 2, Steps: 1, Generations: 2}, false},
	{planted.OnlyOKCounts, Config{Members: 1, Steps: 2, Generations: 2, Faults: 1, Refusals: true}, false},
}

// abandoned leaves b with step 1 of a branch that a rewind has abandoned, because it was a spare that no leader heard of, while
// the next life of a has made its own step 1 and is lost.
var abandoned = []string{"run to 1", "resize 1", "boundary 1; lead", "do seal a/0; do leave a/0", "do seal b/0; do leave b/0", "lead",
	"lose a/0", "draft A; commit A", "start a/0", "lead", "draft A a/0; commit A", "do read read a/0; do leave form a/0", "do compute a/0",
	"do apply applied a/0", "kill a/0"}

// TestPlanted finds each weakened rule by a shortest story, which is kept beside this file with what it shows. The same
// configuration without the bug has no violation.
func TestPlanted(t *testing.T) {
	for _, b := range bugs {
		t.Run(string(b.bug), func(t *testing.T) {
			c := b.config
			c.Name, c.Workers = string(b.bug), 2
			r, _, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Whole || r.Violation != nil {
				t.Fatalf("without the bug: %+v", r.Violation)
			}
			remove := planted.Plant(b.bug)
			c.SafetyOnly = !b.stuck
			bad, _, err := Run(c)
			if remove() == 0 {
				t.Error("the bug was never reached")
			}
			if err != nil {
				t.Fatal(err)
			}
			if bad.Violation == nil {
				t.Fatalf("%d states with the bug and no violation", bad.States)
			}
			t.Logf("%d states without, %d until it was found at depth %d: %s", r.States, bad.States, bad.Violation.Depth, bad.Violation.What)
			if bad.Violation.Stuck != b.stuck {
				t.Errorf("stuck: %v, want %v", bad.Violation.Stuck, b.stuck)
			}
			file := filepath.Join("testdata", "planted", string(b.bug)+".txt")
			if *rewrite {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(bad.Violation.Story), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := commands(bad.Violation.Story); got != commands(string(want)) {
				t.Errorf("another story is found; look at it, run go test -tags planted ./elastic/explore -run Planted -rewrite, and the same in ./elastic\n%s", bad.Violation.Story)
			}
		})
	}
}

// commands are the lines of a story without what they show.
func commands(story string) string {
	var out strings.Builder
	for line := range strings.Lines(story) {
		if !strings.HasPrefix(line, "  ") {
			out.WriteString(line)
		}
	}
	return out.String()
}
