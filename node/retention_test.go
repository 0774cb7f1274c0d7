// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
	"phalanx/elastic"
)

// leading is a daemon that leads, with a loop that only answers.
func leading(t *testing.T, store ckpt.Store, cfg Config) (*Daemon, *retention) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &Daemon{cfg: cfg, log: quiet(), ctx: ctx, store: store, posts: make(chan func()), state: elastic.NewState()}
	d.saver = &saver{d: d}
	d.saver.pub = &publisher{d: d}
	d.state.World.Generation = phalanx.Generation{Number: 1}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case f := <-d.posts:
				f()
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return d, &retention{d: d, p: d.saver.pub, generation: d.state.World.Generation}
}

// phases are what became of each number: "" is published.
func phases(t *testing.T, store ckpt.Store) []ckpt.Phase {
	t.Helper()
	records, problems, err := ckpt.List(t.Context(), store, "job")
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	var all []ckpt.Phase
	for _, r := range records {
		if r.Stub != nil {
			all = append(all, r.Stub.At())
		} else {
			all = append(all, "")
		}
	}
	return all
}

func six(t *testing.T) *mem.Store {
	t.Helper()
	store := mem.New()
	for i := range 6 {
		publishStep(t, store, phalanx.Generation{Number: 1}, phalanx.Step(i+1))
	}
	return store
}

func TestLeaderRetains(t *testing.T) {
	store := six(t)
	_, r := leading(t, store, Config{Job: "job", Host: "h", Keep: 2, KeepEvery: 4, GCGrace: time.Hour})
	now := time.Now()
	for _, c := range []struct {
		after time.Duration
		want  []ckpt.Phase
	}{
		{0, []ckpt.Phase{ckpt.Forgotten, ckpt.Forgotten, ckpt.Forgotten, "", "", ""}},
		{time.Hour - 1, []ckpt.Phase{ckpt.Forgotten, ckpt.Forgotten, ckpt.Forgotten, "", "", ""}},
		{time.Hour, []ckpt.Phase{ckpt.Swept, ckpt.Swept, ckpt.Swept, "", "", ""}},
	} {
		if err := r.run(now.Add(c.after)); err != nil {
			t.Fatal(err)
		}
		if got := phases(t, store); !slices.Equal(got, c.want) {
			t.Fatalf("after %s: %q, want %q", c.after, got, c.want)
		}
	}
}

func TestLeaderRetainsWithoutGrace(t *testing.T) {
	store := six(t)
	_, r := leading(t, store, Config{Job: "job", Host: "h", Keep: 3})
	if _, err := ckpt.Pin(t.Context(), store, "job", 1, "ada", "", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := r.run(time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := phases(t, store); !slices.Equal(got, []ckpt.Phase{"", ckpt.Swept, ckpt.Swept, "", "", ""}) {
		t.Fatalf("%q", got)
	}
}

// The floor counts what the job can go back to: not what a rewind left.
func TestLeaderKeepsItsLineage(t *testing.T) {
	store := six(t)
	_, r := leading(t, store, Config{Job: "job", Host: "h", Keep: 1})
	r.lineage = []elastic.RewindRecord{{Generation: phalanx.Generation{Number: 2}, Branch: 1, Source: 3}}
	if err := r.run(time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := phases(t, store); !slices.Equal(got, []ckpt.Phase{ckpt.Swept, "", "", ckpt.Swept, ckpt.Swept, ""}) {
		t.Fatalf("%q", got)
	}
}

// A leader that is deposed, or whose world has changed, changes nothing more, and that is no failure.
func TestDeposedLeaderRetainsNothing(t *testing.T) {
	for name, depose := range map[string]func(*Daemon){
		"another leads":      func(d *Daemon) { d.saver.pub = nil },
		"leads anew":         func(d *Daemon) { d.saver.pub = &publisher{d: d} },
		"another generation": func(d *Daemon) { d.state.World.Generation.Number++ },
	} {
		store := six(t)
		d, r := leading(t, store, Config{Job: "job", Host: "h", Keep: 2})
		depose(d)
		if err := r.run(time.Now()); err != nil {
			t.Fatal(name, err)
		}
		if got := phases(t, store); !slices.Equal(got, make([]ckpt.Phase, 6)) {
			t.Fatalf("%s: %q", name, got)
		}
	}
}

// What the job restores from is held, and a look that read a whole checkpoint is written down.
func TestRestoreHoldsAndLooksAreRecorded(t *testing.T) {
	store := six(t)
	d, r := leading(t, store, Config{Job: "job", Host: "h", Keep: 2, Version: "1.2.3"})
	d.holdForRestore(t.Context(), 3)
	s := elastic.NewState()
	if f := lookIntoStore(d, 1, s); f.Published == nil || f.Published.Commit != 6 {
		t.Fatalf("%+v", f)
	}
	marks, err := ckpt.ReadMarks(t.Context(), store, "job")
	if err != nil || len(marks.Holds[3]) != 1 || marks.Verified[6] == nil || !marks.Verified[6].OK || marks.Verified[6].Version != "1.2.3" || marks.Verified[6].Level != ckpt.LevelData {
		t.Fatalf("%+v, %v", marks, err)
	}
	if err := r.run(time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := phases(t, store); !slices.Equal(got, []ckpt.Phase{ckpt.Swept, ckpt.Swept, "", ckpt.Swept, "", ""}) {
		t.Fatalf("%q", got)
	}
}
