// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"phalanx"
	"phalanx/chaos/internal/ask"
	"phalanx/chaos/netns"
	"phalanx/elastic"
	"phalanx/node"
)

// watch asks every host all the time, keeps what the job says of itself, and judges it at the end.
type watch struct {
	c    *cluster
	stop context.CancelFunc
	over sync.WaitGroup

	mu     sync.Mutex
	said   map[phalanx.Generation]map[string]elastic.Transition // by host
	pids   map[phalanx.Incarnate]int                            // of trainers
	daemon map[phalanx.MemberID]int
	killed map[int]bool // by the test
	faults []string
}

const askTime = 2 * time.Second

func newWatch(c *cluster) *watch {
	ctx, stop := context.WithCancel(c.t.Context())
	w := &watch{c: c, stop: stop, said: map[phalanx.Generation]map[string]elastic.Transition{}, pids: map[phalanx.Incarnate]int{},
		daemon: map[phalanx.MemberID]int{}, killed: map[int]bool{}}
	for _, h := range c.hosts {
		w.over.Go(func() {
			for ctx.Err() == nil {
				_, _ = w.ask(h) // it has not begun, is away or has ended
				select {
				case <-time.After(2 * pollTime):
				case <-ctx.Done():
				}
			}
		})
	}
	return w
}

func (w *watch) end() {
	w.stop()
	w.over.Wait()
}

// ask asks the daemons of a host in turn.
func (w *watch) ask(h *netns.Host) (*node.Status, error) {
	var errs []error
	for i := range w.c.nproc {
		s, err := ask.Daemon(context.Background(), w.c.home(h), i, askTime)
		if err == nil {
			w.note(h, s)
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// killing notes that a process is about to be killed by the test.
func (w *watch) killing(pids ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, pid := range pids {
		w.killed[pid] = true
	}
}

func (w *watch) rebooting(h *netns.Host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.c.members(h) {
		w.killed[w.daemon[id]] = true
	}
}

func (w *watch) note(h *netns.Host, s *node.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tr := range s.Transitions {
		by := w.said[tr.Generation]
		if by == nil {
			by = map[string]elastic.Transition{}
			w.said[tr.Generation] = by
		}
		if old, ok := by[h.Name]; ok && old.Seconds != nil && tr.Seconds == nil {
			continue // an answer that was overtaken by a later one
		}
		by[h.Name] = tr
	}
	if !s.Fresh {
		return // a daemon without the leader knows pids of the past
	}
	for _, m := range s.Members {
		who := phalanx.Incarnate{Member: m.Member, Incarnation: m.Incarnation}
		if old := w.pids[who]; m.TrainerPID > 1 && m.State != "gone" {
			if old != 0 && old != m.TrainerPID {
				w.faults = append(w.faults, fmt.Sprintf("%s had two trainers: pids %d and %d", who, old, m.TrainerPID))
			}
			w.pids[who] = m.TrainerPID
		}
		if old := w.daemon[m.Member]; m.DaemonPID > 1 {
			if old != 0 && old != m.DaemonPID && !w.killed[old] {
				w.faults = append(w.faults, fmt.Sprintf("the daemon of %s was not killed and was replaced: pids %d and %d", m.Member, old, m.DaemonPID))
			}
			w.daemon[m.Member] = m.DaemonPID
		}
	}
}

// history is what the hosts say, oldest first. Where they differ is a fault.
func (w *watch) history() []elastic.Transition {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []elastic.Transition
	for _, g := range slices.SortedFunc(maps.Keys(w.said), phalanx.Generation.Compare) {
		hosts := slices.Sorted(maps.Keys(w.said[g]))
		first := w.said[g][hosts[0]]
		for _, h := range hosts[1:] {
			if other := w.said[g][h]; !sameTransition(first, other) {
				w.faults = append(w.faults, fmt.Sprintf("generation %s is %+v on host %s and %+v on host %s", g, first, hosts[0], other, h))
			}
		}
		out = append(out, first)
	}
	return out
}

// sameTransition leaves out how long it took: hosts read that at different times.
func sameTransition(a, b elastic.Transition) bool {
	a.Seconds, b.Seconds = nil, nil
	return reflect.DeepEqual(a, b)
}

// judge fails the test for all that must not be seen in a job that a network disturbed: two worlds that trained one step, hosts
// that do not agree on what happened, going back to a checkpoint, restarts that nothing explains.
func (w *watch) judge() {
	t := w.c.t
	t.Helper()
	history := w.history()
	for _, f := range w.faults {
		t.Error(f)
	}
	lost := map[phalanx.MemberID]int{}
	for i, tr := range history {
		if tr.Rewind || tr.Newest > tr.ResumeStep+1 {
			t.Errorf("generation %s resumes at step %d after %d, rewind %v: holders of the state lived", tr.Generation, tr.ResumeStep, tr.Newest, tr.Rewind)
		}
		if i > 0 && tr.ResumeStep < history[i-1].ResumeStep {
			t.Errorf("generation %s resumes at step %d, below the floor %d of the one before", tr.Generation, tr.ResumeStep, history[i-1].ResumeStep)
		}
		if i > 0 && tr.Generation != history[i-1].Generation.Next() {
			t.Errorf("generation %s follows %s in the history", tr.Generation, history[i-1].Generation)
		}
		if i > 0 && !tr.Planned && len(tr.Evidence) == 0 {
			t.Errorf("generation %s has no reason: %+v", tr.Generation, tr)
		}
		for _, who := range tr.Lost {
			lost[who.Member]++
		}
	}
	for _, h := range w.c.hosts {
		for i, id := range w.c.members(h) {
			logs, _ := filepath.Glob(filepath.Join(w.c.home(h), "log", fmt.Sprintf("%s.%d.*.log", h.Name, i)))
			if len(logs) < 1 || len(logs) > 1+lost[id] {
				t.Errorf("the trainer of %s was started %d times; the world lost it %d times", id, len(logs), lost[id])
			}
		}
	}
	if err := judgeRecords(w.c, history); err != nil {
		t.Error(err)
	}
	if t.Failed() || len(history) > 1 {
		t.Logf("history:\n%s", w)
	}
}

func (w *watch) String() string { return ask.Lines(w.history()) }
