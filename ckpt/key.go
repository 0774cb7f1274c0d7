// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"fmt"
	"strconv"
	"strings"

	"phalanx"
)

// Attempt is one try to save one step. Every attempt writes into a folder of its own, so nothing that a dead attempt does
// late can touch another one.
type Attempt struct {
	Job        string             // one key element
	Step       phalanx.Step       // the state that is saved is the one after this step
	Generation phalanx.Generation // in which the save was announced
	Term       uint64             // Raft term of the leader that announced it
	Counter    uint64             // counts that leader's attempts
}

// Name is the last element of the attempt's folder: step-STEP-gGENERATION-aTERM.COUNTER.
func (a Attempt) Name() string {
	return fmt.Sprintf("step-%d-g%s-a%d.%d", a.Step, a.Generation, a.Term, a.Counter)
}

// Folder is the prefix of the attempt's keys, without a slash at the end.
func (a Attempt) Folder() string { return a.Job + "/" + a.Name() }

// Validate reports why the attempt cannot be used in keys.
func (a Attempt) Validate() error { return validJob(a.Job) }

// ParseAttempt reads what Name prints.
func ParseAttempt(job, name string) (Attempt, error) {
	fail := func() (Attempt, error) {
		return Attempt{}, fmt.Errorf("attempt folder %.80q: want step-STEP-gGENERATION-aTERM.COUNTER", name)
	}
	rest, ok := strings.CutPrefix(name, "step-")
	if !ok {
		return fail()
	}
	step, rest, ok := strings.Cut(rest, "-g")
	if !ok {
		return fail()
	}
	generation, rest, ok := strings.Cut(rest, "-a")
	if !ok {
		return fail()
	}
	term, counter, ok := strings.Cut(rest, ".")
	if !ok {
		return fail()
	}
	g, err := phalanx.ParseGeneration(generation)
	if err != nil {
		return fail()
	}
	a := Attempt{Job: job, Generation: g}
	for _, field := range []struct {
		text string
		to   *uint64
	}{{step, (*uint64)(&a.Step)}, {term, &a.Term}, {counter, &a.Counter}} {
		if *field.to, err = strconv.ParseUint(field.text, 10, 64); err != nil {
			return fail()
		}
	}
	if a.Name() != name { // "007" and "+7" are other names
		return fail()
	}
	return a, nil
}

func validJob(job string) error {
	if strings.Contains(job, "/") {
		return fmt.Errorf("job %.60q: a job is one key element, without slashes", job)
	}
	if err := ValidKey(job); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	return nil
}

// commitsPrefix is where the commit objects of a job are.
func commitsPrefix(job string) string { return job + "/commits/" }

// CommitKey is the key of a commit object. Numbers begin with 1 and have no gaps.
func CommitKey(job string, number uint64) string {
	return fmt.Sprintf("%s%012d.json", commitsPrefix(job), number)
}

// parseCommitKey returns the number in the key of a commit object.
func parseCommitKey(job, key string) (uint64, bool) {
	text, ok := strings.CutPrefix(key, commitsPrefix(job))
	if !ok {
		return 0, false
	}
	text, ok = strings.CutSuffix(text, ".json")
	if !ok || len(text) < 12 {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || CommitKey(job, n) != key {
		return 0, false
	}
	return n, true
}

// partName is the name of a rank's part file in the attempt's folder.
func partName(rank phalanx.Rank) string { return fmt.Sprintf("part-%d.json", rank) }
