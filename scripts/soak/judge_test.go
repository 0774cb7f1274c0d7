// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"phalanx/scripts/internal/job"
)

// flat is an hour of samples in which nothing grows: two daemons and trainers live through it, the third is another process
// every few minutes. change may spoil a value.
func flat(change func(i int, k series, v float64) float64) []sample {
	var samples []sample
	const n = 200
	for i := range n {
		x := sample{at: time.Duration(i) * 18 * time.Second, peace: i >= n*7/10, values: map[series]float64{}}
		put := func(class, what, quantity string, v float64) {
			k := series{class, what, quantity}
			if change != nil {
				v = change(i, k, v)
			}
			x.values[k] = v
		}
		wave := float64(i%7) * mib / 2 // the collector's rhythm
		for _, what := range []string{"0 pid 7", "1 pid 8", fmt.Sprintf("2 pid %d", 100+i/12)} {
			for _, class := range []string{"daemon", "trainer", "run"} {
				put(class, what, "rss bytes", 40*mib+wave)
				put(class, what, "anon bytes", 20*mib+wave)
				put(class, what, "descriptors", 30)
				put(class, what, "threads", 12)
				put(class, what, "goroutines", 60)
			}
		}
		for _, quantity := range []string{"shm files", "shm bytes", "log files", "log bytes", "raft bytes", "store bytes", "other bytes"} {
			put("host", "", quantity, 20)
		}
		samples = append(samples, x)
	}
	return samples
}

func failed(rows []row) (names []string) {
	for _, r := range rows {
		if !r.ok() {
			names = append(names, strings.Join([]string{r.phase, r.class, r.quantity, r.what}, " "))
		}
	}
	return names
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(i int, k series, v float64) float64
		want   []string
	}{
		{"nothing grows", nil, nil},
		{"one long-lived daemon leaks in peace", func(i int, k series, v float64) float64 {
			if k.what == "1 pid 8" && k.class == "daemon" && k.quantity == "anon bytes" && i > 140 {
				v += float64(i-140) * mib / 2
			}
			return v
		}, []string{"in peace daemon anon bytes 1 pid 8"}},
		{"every new process costs more", func(i int, k series, v float64) float64 {
			if k.class == "daemon" && k.quantity == "rss bytes" && i <= 140 {
				v += float64(i) * mib / 2
			}
			return v
		}, []string{"while disturbed daemon rss bytes "}},
		{"a process that is replaced grows as it warms up", func(i int, k series, v float64) float64 {
			if strings.HasPrefix(k.what, "2") {
				v += float64(i%12) * 100 * mib
			}
			return v
		}, nil},
		{"descriptors", func(i int, k series, v float64) float64 {
			if k.what == "0 pid 7" && k.class == "trainer" && k.quantity == "descriptors" && i > 140 {
				v += float64(i-140) / 2
			}
			return v
		}, []string{"in peace trainer descriptors 0 pid 7"}},
		{"files of old lives in shared memory", func(i int, k series, v float64) float64 {
			if k.quantity == "shm files" {
				v += float64(i) / 4
			}
			return v
		}, []string{"while disturbed host shm files ", "in peace host shm files "}},
		{"more files than there may be from the first on", func(_ int, k series, v float64) float64 {
			if k.quantity == "log files" {
				v += 500
			}
			return v
		}, []string{"while disturbed host log files "}},
		{"what grows by design, and more", func(i int, k series, v float64) float64 {
			switch k.quantity {
			case "raft bytes":
				v += float64(i) / 200 * 12 * mib
			case "log bytes":
				v += float64(i) / 200 * 40 * mib
			}
			return v
		}, []string{"while disturbed host log bytes ", "in peace host log bytes "}},
	} {
		if got := failed(judge(flat(c.change))); strings.Join(got, "; ") != strings.Join(c.want, "; ") {
			t.Errorf("%s: failed %q, want %q", c.name, got, c.want)
		}
	}
}

// What was never sampled is a failure: a process class that was renamed would be judged flat for ever.
func TestJudgeMissesNothing(t *testing.T) {
	for _, r := range judge(nil) {
		if r.ok() {
			t.Errorf("%s of %s is flat without a sample", r.quantity, r.class)
		}
	}
	if text := table(judge(nil)); strings.Count(text, "never seen") != len(limits) {
		t.Errorf("the table does not show what was never seen:\n%s", text)
	}
}

func TestHistory(t *testing.T) {
	var h history
	g := func(n uint64, resume, newest uint64, rewind bool) job.Transition {
		return job.Transition{Generation: job.Generation{Number: n}, ResumeStep: resume, NewestStep: newest, Rewind: rewind}
	}
	h.note(&job.Status{Transitions: []job.Transition{g(1, 0, 0, false), g(2, 5, 6, false)}})
	h.note(&job.Status{Transitions: []job.Transition{g(2, 5, 6, false), g(3, 9, 9, false)}})
	if err := h.check(); err != nil || len(h.seen) != 3 || h.again() != 1 {
		t.Errorf("%d generations, %d steps again, %v", len(h.seen), h.again(), err)
	}
	h.note(&job.Status{Transitions: []job.Transition{g(4, 5, 9, true)}})
	if err := h.check(); err == nil || !strings.Contains(err.Error(), "rewind") || !strings.Contains(err.Error(), "4 steps again") {
		t.Errorf("a rewind of 4 steps: %v", err)
	}
}

// A job that was stopped in order goes on where it was, and nothing else excuses a rewind.
func TestStops(t *testing.T) {
	h := history{seen: []job.Transition{{Generation: job.Generation{Number: 3}, Rewind: true, ResumeStep: 40, Members: []string{"a"}}}}
	if err := h.stopped(&job.Status{Generation: 2, Step: 41}); err == nil {
		t.Error("a step was lost and nobody says so")
	}
	if err := h.stopped(&job.Status{Generation: 3, Step: 4}); err == nil {
		t.Error("a job that did not go on has gone on")
	}
	if err := h.check(); err == nil {
		t.Error("a rewind is excused")
	}
	if err := h.stopped(&job.Status{Generation: 2, Step: 40}); err != nil || h.check() != nil {
		t.Errorf("%v, %v", err, h.check())
	}
}

// No disturbance may cost all copies of the state, and every one is chosen.
func TestDisturbances(t *testing.T) {
	for _, d := range disturbances {
		if d.trainers >= ranks-1 || d.weight < 1 || d.name == "" || d.do == nil {
			t.Errorf("%q: weight %d, costs %d of %d copies", d.name, d.weight, d.trainers, ranks)
		}
	}
}
