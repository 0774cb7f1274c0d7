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
	{planted.OnlyOKCounts, Config{Members: 1, Steps: 2, Generations: 2, Faults: 1, Refusals: true}, false},
}

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
				t.Fatalf("without the bug: %+v", r)
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
