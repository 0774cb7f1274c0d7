// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// actors is a job as several processes see it: leaders that save, forget and collect, operators that pin and put back, each
// with its own, maybe old, look at the store, each of whom may be stopped in the middle while the others go on.
type actors struct {
	t     *rapid.T
	outer *testing.T
	inner *mem.Store
	now   time.Time
	depth int

	states  map[ckpt.Attempt]*state // everything that was ever written whole
	pinned  map[uint64]bool         // Pin said so, and nobody has begun to take it away since
	looks   []*ckpt.Inventory       // that somebody still goes by
	steps   int
	done    map[string]int
	failure string
}

const modelGrace = 10 * time.Minute

// store is what an actor works with for one action: an operation may fail, be lost, be the last one of its process, or be a
// place at which it is stopped while others go on.
func (m *actors) store() ckpt.Store {
	if m.depth > 0 {
		return digestTagged{m.inner}
	}
	at := rapid.IntRange(0, 60).Draw(m.t, "fault at")
	kind := rapid.IntRange(0, 5).Draw(m.t, "fault")
	return mem.NewFaulty(digestTagged{m.inner}, func(op mem.Op) mem.Fault {
		if op.Seq != at {
			return mem.Fault{}
		}
		switch kind {
		case 0:
			return mem.Fault{Kill: true}
		case 1:
			return mem.Fault{Kill: true, After: true}
		case 2:
			return mem.Fault{Err: errors.New("no answer")}
		case 3:
			return mem.Fault{Err: ckpt.ErrConflict, After: true}
		case 4: // stopped, and the world goes on
			m.depth++
			for range rapid.IntRange(1, 4).Draw(m.t, "others") {
				m.act()
			}
			m.depth--
		}
		return mem.Fault{}
	})
}

// act does one thing.
func (m *actors) act() {
	names := slices.Sorted(maps.Keys(m.actions()))
	name := rapid.SampledFrom(append(names, "save", "save", "forget", "gc", "wait")).Draw(m.t, "action")
	m.done[name]++
	m.actions()[name]()
}

// failed notes what must not be: an action may run inside of an operation of another, where the test cannot be ended.
func (m *actors) failed(format string, args ...any) {
	m.failure = fmt.Sprintf(format, args...)
}

func (m *actors) number() uint64 {
	return uint64(rapid.IntRange(1, max(m.steps, 1)).Draw(m.t, "number"))
}

// look is a fresh look at the store, or an old one.
func (m *actors) look(s ckpt.Store) *ckpt.Inventory {
	if len(m.looks) > 0 && rapid.IntRange(0, 2).Draw(m.t, "old look") == 0 {
		return rapid.SampledFrom(m.looks).Draw(m.t, "look")
	}
	inv, err := ckpt.TakeInventory(m.outer.Context(), s, "job", nil)
	if err != nil {
		return nil
	}
	m.looks = append(m.looks, inv)
	return inv
}

func (m *actors) actions() map[string]func() {
	ctx := m.outer.Context()
	return map[string]func(){
		"save": func() {
			m.steps++
			a := attempt(m.steps, uint64(1+m.steps/8), uint64(m.steps))
			st := newState(smallLayout()[3:4], uint64(m.steps))
			plan, err := ckpt.NewPlan(0, st.layout, []phalanx.Rank{0}, ckpt.PlanOptions{})
			if err != nil {
				m.failed("%v", err)
				return
			}
			s := m.store()
			ref, err := ckpt.WriteShard(ctx, s, a, 0, plan, st)
			if err != nil {
				return // abandoned, sooner or later
			}
			m.states[a] = st
			_, _ = ckpt.Publish(ctx, s, publication(a, 1), []ckpt.PartRef{ref})
		},
		"forget": func() {
			s := m.store()
			inv := m.look(s)
			if inv == nil {
				return
			}
			p := ckpt.Policy{KeepLast: rapid.IntRange(0, 3).Draw(m.t, "keep"), EverySteps: phalanx.Step(rapid.IntRange(0, 4).Draw(m.t, "every"))}
			_, _ = ckpt.Forget(ctx, s, inv, ckpt.Drops(p.Decide(inv, m.now)), ckpt.ForgetOptions{Now: m.now, Grace: modelGrace})
		},
		"forget one": func() {
			s := m.store()
			if inv := m.look(s); inv != nil {
				_, _ = ckpt.Forget(ctx, s, inv, []ckpt.Drop{{Number: m.number()}}, ckpt.ForgetOptions{Now: m.now, Grace: modelGrace})
			}
		},
		"gc": func() {
			s := m.store()
			if inv := m.look(s); inv != nil {
				_, _ = ckpt.GC(ctx, s, inv, ckpt.GCOptions{Now: m.now, AbandonedGrace: modelGrace})
			}
		},
		"undelete": func() {
			n := m.number()
			if r, err := ckpt.Undelete(ctx, m.store(), "job", n); err == nil && r.Commit == nil {
				m.failed("undeleted %d, and it is %+v", n, r)
			}
		},
		"pin": func() {
			n := m.number()
			if r, err := ckpt.Pin(ctx, m.store(), "job", n, "ada", "", m.now); err == nil {
				if r.Commit == nil {
					m.failed("pinned %d, and it is %+v", n, r)
				}
				m.pinned[n] = true
			}
		},
		"unpin": func() {
			n := m.number()
			delete(m.pinned, n)
			_ = ckpt.Unpin(ctx, m.store(), "job", n)
		},
		"verify": func() {
			if r, err := ckpt.ReadRecord(ctx, m.inner, "job", m.number()); err == nil && r.Commit != nil {
				_ = ckpt.RecordVerified(ctx, m.store(), r, ckpt.LevelData, true, "ada", "1", m.now)
			}
		},
		"wait": func() {
			m.now = m.now.Add(time.Duration(rapid.IntRange(1, 8).Draw(m.t, "minutes")) * time.Minute)
		},
	}
}

// check compares the store with what must hold after whatever was done.
func (m *actors) check() {
	if m.failure != "" {
		m.t.Fatal(m.failure)
	}
	ctx := m.outer.Context()
	records, problems, err := ckpt.List(ctx, m.inner, "job")
	if err != nil || len(problems) > 0 {
		m.t.Fatal(problems, err)
	}
	published := 0
	var newest ckpt.Attempt
	for _, r := range records {
		newest = r.Attempt()
		st := m.states[r.Attempt()]
		if st == nil {
			m.t.Fatalf("%d is published, and was never written whole", r.Number)
		}
		switch {
		case r.Commit != nil:
			published++
			m.restores(r.Commit, st)
		case r.Stub.At() == ckpt.Forgotten:
			// Whatever hit it, nobody has begun to delete anything of it.
			m.restores(r.Stub.Inside(), st)
		default:
			if m.pinned[r.Number] {
				m.t.Fatalf("%d is pinned and its data are gone", r.Number)
			}
			if until := time.Unix(0, r.Stub.UntilUnixNS); until.After(m.now) {
				m.t.Fatalf("%d was promised until %s and is gone at %s", r.Number, until, m.now)
			}
		}
	}
	if published < min(ckpt.MinDurable, len(records)) {
		m.t.Fatalf("%d of %d are published", published, len(records))
	}
	if f, err := ckpt.Latest(ctx, m.inner, "job"); len(records) > 0 && (err != nil || f.Record.Attempt() != newest || len(f.Problems) > 0) {
		m.t.Fatalf("the newest is %+v, %v", f, err)
	}
	m.untouched(newest)
}

// untouched: nobody deletes what may still be published.
func (m *actors) untouched(newest ckpt.Attempt) {
	for a := range m.states {
		g := a.Generation.Compare(newest.Generation)
		if newest.Job != "" && (g < 0 || g == 0 && a.Step <= newest.Step) {
			continue
		}
		if all, err := ckpt.ListAll(m.outer.Context(), m.inner, a.Folder()+"/"); err != nil || len(all) < 2 {
			m.t.Fatalf("%s may still be published and has %d objects: %v", a.Name(), len(all), err)
		}
	}
}

func (m *actors) restores(c *ckpt.Commit, want *state) {
	cp, err := ckpt.Open(m.outer.Context(), m.inner, c)
	if err != nil {
		m.t.Fatal(err)
	}
	report, err := cp.VerifyAll(m.outer.Context(), nil)
	if err != nil || report.Err() != nil {
		m.t.Fatal(err, report.Err())
	}
	if got := cp.State(0).Manifest.StateDigest; got != want.digest() {
		m.t.Fatalf("checkpoint %d has digest %s, written was %s", c.Number, got, want.digest())
	}
}

// TestRandomRetention lets any of these do anything in any order.
func TestRandomRetention(t *testing.T) {
	total := map[string]int{}
	swept, undeleted := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		m := &actors{t: rt, outer: t, inner: mem.New(), now: noon, states: map[ckpt.Attempt]*state{}, pinned: map[uint64]bool{}, done: total}
		for range 4 {
			m.depth++ // without faults
			m.actions()["save"]()
			m.depth--
		}
		for range rapid.IntRange(1, 60).Draw(rt, "actions") {
			m.act()
			m.check()
		}
		records, _, err := ckpt.List(t.Context(), m.inner, "job")
		if err != nil {
			rt.Fatal(err)
		}
		for _, r := range records {
			if r.Stub != nil && r.Stub.At() == ckpt.Swept {
				swept++
			} else if r.Stub != nil {
				undeleted++
			}
		}
	})
	// A short run of a few sequences may miss one of the ends.
	if !testing.Short() && (swept == 0 || undeleted == 0) {
		t.Fatalf("%d swept, %d forgotten at the end after %v: the test does not come far enough", swept, undeleted, fmt.Sprint(total))
	}
	t.Logf("%d swept, %d forgotten or sweeping at the end after %v", swept, undeleted, total)
}
