// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/storewrap"
)

// troubleAfter is how long tries must have failed before status says so. Single failures are tried again and are nobody's business,
// and a store that refused one thing and was not asked since is not known to be in trouble.
const troubleAfter = 2 * time.Second

// storeTrouble remembers what a store says while nothing comes through. Operations are tried again for minutes, and until then
// nothing has failed: without this nobody would know what a save waits for. Stores observe it from many goroutines.
type storeTrouble struct {
	mu    sync.Mutex
	since time.Time // of the first failure after the newest success; zero: there is none
	last  time.Time // of the newest one
	words string    // and what it said
}

// Observe implements storewrap.Observer.
func (t *storeTrouble) Observe(s storewrap.Sample) { t.observe(time.Now(), s.Err) }

func (t *storeTrouble) observe(now time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, ckpt.ErrExists), errors.Is(err, ckpt.ErrNotFound): // an answer like another
		t.since, t.words = time.Time{}, ""
	case errors.Is(err, context.Canceled): // given up here
	default:
		if t.since.IsZero() {
			t.since = now
		}
		t.last, t.words = now, err.Error()
	}
}

// says is for how long nothing has come through, and why, "" while all is well.
func (t *storeTrouble) says(now time.Time) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() || t.last.Sub(t.since) < troubleAfter {
		return ""
	}
	return fmt.Sprintf("%s: %s", now.Sub(t.since).Truncate(time.Second), t.words)
}

// observers tell each of them.
type observers []storewrap.Observer

// Observe implements storewrap.Observer.
func (o observers) Observe(s storewrap.Sample) {
	for _, x := range o {
		x.Observe(s)
	}
}

// storeTroubles says whose requests the store does not carry out: of this member, and from the leader of all. One of them
// speaks for the others, which mostly say the same.
func (d *Daemon) storeTroubles(now time.Time) []string {
	says := map[phalanx.MemberID]string{d.me(): d.trouble.says(now)}
	if d.lead != nil {
		for id, v := range d.lead.members {
			if v.report != nil && v.conn != nil {
				says[id] = v.report.Store
			}
		}
	}
	return storeNotes(says)
}

func storeNotes(says map[phalanx.MemberID]string) []string {
	var who []phalanx.MemberID
	for id, words := range says {
		if words != "" {
			who = append(who, id)
		}
	}
	if len(who) == 0 {
		return nil
	}
	slices.SortFunc(who, phalanx.CompareMemberIDs)
	others := ""
	if n := len(who) - 1; n > 0 {
		others = fmt.Sprintf(" and %d more", n)
	}
	return []string{fmt.Sprintf("the store has carried out nothing for %s%s for %s", who[0], others, says[who[0]])}
}
