// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"slices"
	"strings"
	"time"

	"phalanx/cmd/phalanx/internal/control"
)

// askNotes is how often the job is asked for what hinders it.
const askNotes = 5 * time.Second

// tellNotes prints what status says hinders the job, once it has said so twice, and that it is over. Who looks at the run alone
// would else see a job that stands still without a word.
func (s *supervisor) tellNotes(ctx context.Context) {
	tick := time.NewTicker(askNotes)
	defer tick.Stop()
	var n, disk notes
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.print(disk.heard(fullNotes(s.dir)))
		asked, cancel := context.WithTimeout(ctx, lookTimeout)
		status, err := control.AnyStatus(asked, s.dir, false)
		cancel()
		if err != nil {
			continue // nobody lives, or has time to answer: the end of a daemon is told otherwise
		}
		s.print(n.heard(status.Notes))
	}
}

func (s *supervisor) print(begun, over []string) {
	for _, words := range begun {
		s.Log.Warn("note", "words", words)
	}
	for _, words := range over {
		s.Log.Info("no longer so", "note", words)
	}
}

// fullNotes is what run sees by itself: the daemons may not be able to say it.
func fullNotes(dir string) []string {
	if why := full(dir); why != "" {
		return []string{why}
	}
	return nil
}

// notes remembers what was said. The same note with other numbers is the same.
type notes struct {
	before []string // of the last answer, without numbers
	told   map[string]string
}

// heard returns what is to be told: notes that were said in the answer before, too, and were not told yet, and those that were
// told and are said no more.
func (n *notes) heard(now []string) (begun, over []string) {
	if n.told == nil {
		n.told = map[string]string{}
	}
	var said []string
	for _, words := range now {
		key := withoutNumbers(words)
		said = append(said, key)
		if _, told := n.told[key]; !told && slices.Contains(n.before, key) {
			n.told[key] = words
			begun = append(begun, words)
		}
	}
	for key, words := range n.told {
		if !slices.Contains(said, key) && !slices.Contains(n.before, key) { // gone twice, as it was said twice
			delete(n.told, key)
			over = append(over, words)
		}
	}
	slices.Sort(over)
	n.before = said
	return begun, over
}

func withoutNumbers(words string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, words)
}
