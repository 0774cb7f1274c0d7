// SPDX-License-Identifier: Apache-2.0

//go:build planted

package elastic

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx/internal/planted"
)

// TestPlantedStories plays what the explorer found of each planted bug, with the bug, by other machinery than the explorer's:
// the story goes as it is written, and its last command breaks a rule or leaves the job where it does not go on.
func TestPlantedStories(t *testing.T) {
	files, err := filepath.Glob("explore/testdata/planted/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			remove := planted.Plant(planted.Bug(name))
			got, wrong := play(string(want))
			if remove() == 0 {
				t.Error("the bug was never reached")
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("the story goes otherwise; look at it and run go test -tags planted ./elastic -run Planted -rewrite\n%s", difference(string(want), got))
			}
			stuck := strings.Contains(string(want), "is not committed")
			if broken := strings.Contains(got, "BROKEN"); broken == stuck {
				t.Errorf("broken %v, stuck %v: %q", broken, stuck, wrong)
			}
			for _, w := range wrong {
				if !strings.Contains(got, "BROKEN: "+w) {
					t.Error(w) // a command that could not be done
				}
			}
		})
	}
}
