// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"phalanx/node"
)

// onceAs makes the trainers of this job run an other command in the first life of member h/INDEX.
func (j *job) onceAs(index int, other ...string) {
	j.t.Helper()
	mark := filepath.Join(filepath.Dir(j.dir), "mark")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$LOCAL_RANK\" = %d ] && mkdir %s 2>/dev/null; then exec %s; fi\nexec %s\n", index, mark, strings.Join(other, " "), strings.Join(j.cmd, " "))
	name := filepath.Join(filepath.Dir(j.dir), "once")
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		j.t.Fatal(err)
	}
	j.cmd = []string{name}
}

// TestP6NothingWaitsForEver: who never speaks and who never moves are found, named and, if they were some of many, replaced.
func TestP6NothingWaitsForEver(t *testing.T) {
	t.Parallel()
	t.Run("no hello", func(t *testing.T) {
		j := newJob(t, 2, 50, time.Millisecond, "--fault-no-hello")
		j.run("--start-timeout", "2s")
		j.refused(node.CodeTimeout, "--plain", "--start-timeout")
	})
	t.Run("hang", func(t *testing.T) {
		j := newJob(t, 3, 60, 10*time.Millisecond)
		j.onceAs(2, append(append([]string{program("phalanx-lm")}, j.train...), "--step-floor", "1h")...)
		j.run("--hang-timeout", "3s")
		j.until("the hanging trainer is replaced", func(s *node.Status) bool {
			for _, m := range s.Members {
				if m.Member == "h/2" && m.Incarnation == 1 {
					j.hit(m.TrainerPID, "it hangs")
				}
				if m.Member == "h/2" && m.Rank >= 0 && m.Incarnation > 1 {
					return true
				}
			}
			return false
		})
		j.finish()
		hung := false
		for _, x := range j.ordered() {
			for _, e := range x.Evidence {
				hung = hung || e.Kind == "hung" && e.About.Member == "h/2"
			}
		}
		if !hung {
			t.Error("no generation rests on the evidence that h/2 hung")
		}
	})
}
