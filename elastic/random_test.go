// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
)

// mishaps are what a random run does to a member beside its own acts. They return false when they do not fit.
var mishaps = map[string]func(*sim, *simMember) bool{
	"kill": func(s *sim, m *simMember) bool {
		if !m.trainer.Trainer {
			return false
		}
		s.stop(m)
		return true
	},
	"kill daemon": func(_ *sim, m *simMember) bool {
		if m.down || m.lost || m.fenced {
			return false
		}
		m.down, m.grace, m.evidence = true, m.trainer.Trainer, nil
		return true
	},
	"grace over": func(_ *sim, m *simMember) bool {
		over := m.grace
		m.grace = false
		return over
	},
	"restart": func(s *sim, m *simMember) bool {
		if !m.down || m.lost {
			return false
		}
		s.restart(m)
		return true
	},
	"lose": func(_ *sim, m *simMember) bool {
		if m.lost {
			return false
		}
		m.lost, m.trainer, m.history = true, Trainer{}, nil
		return true
	},
	"cut": func(_ *sim, m *simMember) bool {
		cut := !m.mute
		m.mute = true
		return cut
	},
	"connect": func(s *sim, m *simMember) bool {
		cut := m.mute
		if cut {
			m.mute, m.asked = false, SealAsked{}
			s.step(m, Lease{true})
		}
		return cut
	},
	"new life": func(s *sim, m *simMember) bool {
		// A life that the log never knew ends without an entry.
		x := s.state().Member(m.me.Member)
		unknown := x == nil || x.Incarnation < m.me.Incarnation
		if !m.fenced && !m.lost && !(unknown && !m.trainer.Trainer) {
			return false
		}
		s.start(m.me.Member)
		return true
	},
	"not ok": func(_ *sim, m *simMember) bool { m.notOK = true; return true },
	"flip":   func(_ *sim, m *simMember) bool { m.flip = true; return true },
	"suspect": func(_ *sim, m *simMember) bool {
		m.evidence = append(m.evidence, phalanx.Evidence{Kind: phalanx.Unreachable, About: m.me, Source: "the leader"})
		return true
	},
	"unsuspect": func(_ *sim, m *simMember) bool {
		had := len(m.evidence)
		m.evidence = slices.DeleteFunc(m.evidence, func(e phalanx.Evidence) bool { return e.Kind == phalanx.Unreachable })
		return len(m.evidence) < had
	},
	"not ready": func(_ *sim, m *simMember) bool {
		m.evidence = append(m.evidence, phalanx.Evidence{Kind: phalanx.NotReady, About: m.me, Source: "the leader"})
		return true
	},
	"drain": func(s *sim, m *simMember) bool {
		if !s.state().Living(m.me) {
			return false
		}
		s.append(Drain{Member: m.me.Member, Why: "asked"})
		return true
	},
	"quarantine and lift": func(s *sim, m *simMember) bool {
		if !s.state().Living(m.me) {
			return false
		}
		s.append(Quarantine{Member: m.me.Member})
		s.append(Lift{Member: m.me.Member})
		return true
	},
	"leave": func(_ *sim, m *simMember) bool { m.quit = true; return true },
	"slab": func(_ *sim, m *simMember) bool {
		if l := m.trainer.Label; m.trainer.standsAt(l) && l.Coordinate >= 0 {
			m.slabs = map[phalanx.Label][]phalanx.Label{l: m.history}
			return true
		}
		return false
	},
	"break heal": func(s *sim, m *simMember) bool {
		if m.heal == nil {
			return false
		}
		g := m.heal.Generation
		m.heal = nil
		s.step(m, HealBroken{g, "the bytes differ"})
		return true
	},
	"read all": func(s *sim, m *simMember) bool {
		if !m.connected() || m.read == len(s.log)-1 {
			return false
		}
		m.read = len(s.log) - 1
		s.step(m, Read{s.state()})
		return true
	},
	"seal early": func(s *sim, m *simMember) bool {
		s.step(m, SealAsked{Generation: s.state().World.Generation})
		return true
	},
}

// upheavals happen to nobody alone.
var upheavals = map[string]func(*sim) bool{
	"elect": func(s *sim) bool { s.elect(); return true },
	"lease out": func(s *sim) bool {
		s.lease = true
		for _, m := range s.members {
			if m.mute {
				s.step(m, Lease{false})
			}
		}
		return true
	},
	"late":    func(s *sim) bool { s.round.Late = true; return true },
	"publish": func(s *sim) bool { return !s.state().World.Generation.IsZero() && s.publish(uint64(len(s.stored)+1)) },
	"resize": func(s *sim) bool {
		s.append(Resize{Want: 1 + (s.state().Policy.Want % 5)})
		return true
	},
}

// randomRun lets anything happen in any order.
type randomRun struct {
	*sim
	t     *rapid.T
	lines []string
}

func (r *randomRun) note(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *randomRun) check(after string) {
	if len(r.wrong) > 0 {
		r.t.Fatalf("after %s: %s\n%s", after, strings.Join(r.wrong, "\n"), strings.Join(r.lines, "\n"))
	}
}

// ordinary lets one member, or the leader, do one of the acts that it can.
func (r *randomRun) ordinary() {
	type choice struct {
		m *simMember
		a act
	}
	var can []choice
	for _, m := range r.members {
		for _, a := range acts {
			if a.can(r.sim, m) {
				can = append(can, choice{m, a})
			}
		}
	}
	i := rapid.IntRange(0, len(can)).Draw(r.t, "act")
	if i == len(can) {
		r.lead()
		return
	}
	r.note("%s: %s", can[i].m.me, can[i].a.name)
	can[i].a.do(r.sim, can[i].m)
}

func (r *randomRun) mishap() {
	names := slices.Sorted(maps.Keys(mishaps))
	others := slices.Sorted(maps.Keys(upheavals))
	i := rapid.IntRange(0, len(names)+len(others)+2).Draw(r.t, "mishap")
	switch {
	case i < len(names):
		m := rapid.SampledFrom(r.members).Draw(r.t, "member")
		r.note("%s: %s", m.me, names[i])
		mishaps[names[i]](r.sim, m)
	case i < len(names)+len(others):
		r.note("%s", others[i-len(names)])
		upheavals[others[i-len(names)]](r.sim)
	default:
		r.stale(i == len(names)+len(others))
	}
}

// stale lets a second leader, which reaches only some, compute an entry, or commit what it computed long ago.
func (r *randomRun) stale(compute bool) {
	if !compute {
		if c := r.drafts["stale"]; c != nil {
			r.note("a late leader commits")
			delete(r.drafts, "stale")
			r.append(c)
		}
		return
	}
	f := r.facts()
	f.Round = Round{Asked: true}
	for i := range f.Members {
		if m := &f.Members[i]; rapid.Bool().Draw(r.t, "reaches") {
			m.Silent, m.Connected, m.Answer = true, false, nil
		}
	}
	if plan := r.planner.Plan(r.state(), f); plan.Command != nil {
		r.drafts["stale"] = plan.Command
	}
}

// settle ends every fault and lets the run come to rest.
func (r *randomRun) settle() {
	r.note("--- no more faults")
	r.closed = true
	r.limit = r.newest() + 2
	for range 20 {
		r.lease = true
		r.round.Late = r.round.Planned
		for _, m := range slices.Clone(r.members) {
			m.quit = false
			mishaps["connect"](r.sim, m)
			mishaps["restart"](r.sim, m)
			mishaps["new life"](r.sim, m)
		}
		if !r.run() {
			r.t.Fatalf("it does not come to rest\n%s", strings.Join(r.lines, "\n"))
		}
		r.check("settling")
		if r.arrived() {
			return
		}
	}
	var at []string
	for _, m := range r.members {
		at = append(at, fmt.Sprintf("%s %+v seat %d fenced %v log %d of %d %+v", m.machine, m.machine.Seat(), m.seat, m.fenced, m.read, len(r.log)-1, m.trainer))
	}
	r.t.Fatalf("without faults the next step is not committed: %s\n%s\n%s", r.why, strings.Join(at, "\n"), strings.Join(r.lines, "\n"))
}

// arrived reports whether everybody in the world has applied the step that the run was to reach.
func (r *randomRun) arrived() bool {
	now := r.state()
	for _, seat := range now.World.Seats {
		m := r.member(seat.Member)
		if m == nil || m.me != seat.Incarnate || !m.trainer.Trainer || !m.trainer.Holds || m.trainer.Label.Step < r.limit {
			return false
		}
	}
	return now.World.Size() > 0
}

// TestRandom: whatever fails in whatever order, Check and CheckStep hold after every entry, no step is applied twice, skipped
// or applied where the world decided otherwise, no vote changes, none is cast after a seal, what was applied is undone by
// rewinds alone; and when nothing fails any more, the next steps are committed.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		group := rapid.IntRange(1, 2).Draw(t, "group")
		members := rapid.IntRange(max(2, group), 5).Draw(t, "members")
		spec := phalanx.JobSpec{LastStep: 1000, Slots: 8, GlobalBatch: 8, GroupSize: group, Threads: 1}
		policy := Policy{Want: rapid.IntRange(group, members).Draw(t, "want"), Min: group}
		if policy.Want >= 2*group && rapid.Bool().Draw(t, "two groups at least") {
			policy.Min = 2 * group
		}
		r := &randomRun{t: t, sim: newSim(spec, policy)}
		r.trace = r.note
		for i := range members {
			r.start(phalanx.NewMemberID(string(rune('a'+i)), 0))
		}
		r.limit = phalanx.Step(rapid.IntRange(0, 3).Draw(t, "begin"))
		r.closed = rapid.Bool().Draw(t, "closed")
		r.run()
		r.limit = 1000
		left := rapid.IntRange(0, 12).Draw(t, "mishaps")
		for range rapid.IntRange(0, 250).Draw(t, "acts") {
			if left > 0 && rapid.IntRange(0, 7).Draw(t, "fate") == 0 {
				left--
				r.mishap()
			} else {
				r.ordinary()
			}
			r.check("the last act")
		}
		r.settle()
	})
}
