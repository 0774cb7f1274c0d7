// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"

	"phalanx"
)

// sim joins real machines, the real state and the real planner with simulated trainers. Everything that happens is one small
// act of one member or of the leader; who calls the acts decides the order. Nothing in it runs by itself.
type sim struct {
	planner Planner
	log     []*State // log[i] is the state after i entries
	kinds   []string // of the entries
	members []*simMember
	store   StoreFact
	stored  map[uint64]map[phalanx.Label][]phalanx.Label // by commit number: histories of the states
	round   Round
	closed  bool // the window for joining is over
	lease   bool // every lease that is not renewed has run out
	limit   phalanx.Step
	drafts  map[string]Command
	trace   func(string, ...any) // what a story shows
	wrong   []string             // broken rules
	made    []phalanx.Label      // every label that a trainer ever made by applying
	decided []phalanx.Label      // every label that all of a world voted for
	ballots map[phalanx.MemberID][]Vote
	bound   phalanx.Step // boundary of the next planned seal, 0 for the leader's own choice
	why     string       // newest reason of the planner that led to nothing
}

// simMember is a member with its page, which outlives its daemon, and its trainer.
type simMember struct {
	me       phalanx.Incarnate
	machine  *Machine
	read     int // entries read
	page     Page
	trainer  Trainer
	history  []phalanx.Label // how the state was made, oldest first: what the bytes would be
	slabs    map[phalanx.Label][]phalanx.Label
	seat     SeatAction
	seatIn   phalanx.Generation // in which the seat was written
	heal     *Heal
	forming  phalanx.Generation
	leaving  phalanx.Generation // an Abort was asked for and workers are still there
	heard    map[phalanx.MemberID]Vote
	asked    SealAsked // newest that was delivered
	answer   *Answer   // as the leader has it
	evidence []phalanx.Evidence
	held     map[string]bool // acts that do not happen by themselves

	down   bool // the daemon's process is gone
	grace  bool // and may still come back
	lost   bool // the host is gone with page and slab
	mute   bool // cut off
	fenced bool
	ended  bool
	notOK  bool // the next vote is not ok
	flip   bool // the next gradient is wrong
	torn   bool // between the first byte of a heal and the last one
	quit   bool // asked to leave by its host
	late   bool // its lease has run out and no leader hears it; it still reads and hears
	done   bool
}

func newSim(spec phalanx.JobSpec, policy Policy, ids ...phalanx.MemberID) *sim {
	s := &sim{planner: Planner{Spec: &spec, Policy: policy}, log: []*State{NewState()}, store: StoreFact{Known: true},
		stored: map[uint64]map[phalanx.Label][]phalanx.Label{}, drafts: map[string]Command{}, trace: func(string, ...any) {}}
	for _, id := range ids {
		s.start(id)
	}
	return s
}

func (s *sim) state() *State { return s.log[len(s.log)-1] }

func (s *sim) member(id phalanx.MemberID) *simMember {
	i := slices.IndexFunc(s.members, func(m *simMember) bool { return m.me.Member == id })
	if i < 0 {
		return nil
	}
	return s.members[i]
}

func (s *sim) broken(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	s.trace("BROKEN: "+format, args...)
}

// start begins a life: a new member, or the next incarnation of one that the log has removed.
func (s *sim) start(id phalanx.MemberID) {
	m := &simMember{me: phalanx.Incarnate{Member: id, Incarnation: 1}, slabs: map[phalanx.Label][]phalanx.Label{}}
	if old := s.member(id); old != nil {
		m.me.Incarnation = old.me.Incarnation + 1
		if !old.lost {
			m.slabs = old.slabs
		}
		s.members = slices.DeleteFunc(s.members, func(x *simMember) bool { return x == old })
	}
	m.trainer = Trainer{Possession: Possession{Trainer: true, Holds: true, Label: phalanx.Label{Coordinate: AnyCoordinate}}}
	m.heard, m.held = map[phalanx.MemberID]Vote{}, map[string]bool{}
	m.read = len(s.log) - 1
	m.machine = NewMachine(m.me, s.state(), Page{})
	s.members = append(s.members, m)
	slices.SortFunc(s.members, func(a, b *simMember) int { return phalanx.CompareMemberIDs(a.me.Member, b.me.Member) })
	s.perform(m, m.machine.Adopt(m.trainer))
	s.step(m, Lease{true})
	s.trace("%s starts", m.me)
}

// restart brings the daemon back: it finds its page and its trainer.
func (s *sim) restart(m *simMember) {
	m.down, m.grace = false, false
	m.heard, m.asked = map[phalanx.MemberID]Vote{}, SealAsked{}
	m.machine = NewMachine(m.me, s.log[m.read], m.page)
	m.heal, m.forming, m.leaving = nil, phalanx.Generation{}, phalanx.Generation{}
	s.perform(m, m.machine.Adopt(m.trainer))
	if !m.late {
		s.step(m, Lease{true})
	}
}

func (s *sim) step(m *simMember, ev Event) {
	if m.down || m.lost || m.fenced || m.ended {
		return
	}
	s.perform(m, m.machine.Step(ev))
}

func (s *sim) see(m *simMember) { s.step(m, Seen{m.trainer}) }

// perform does what the machine said.
func (s *sim) perform(m *simMember, acts []Action) {
	for _, a := range acts {
		switch a := a.(type) {
		case WriteVote:
			if v := m.page.Vote; v.Generation == a.Vote.Generation && v.Step == a.Vote.Step && v != a.Vote {
				s.broken("%s changed its vote for step %d", m.me, v.Step)
			}
			if !m.page.Sealed.Less(a.Vote.Generation) {
				s.broken("%s voted in %s and had sealed %s", m.me, a.Vote.Generation, m.page.Sealed)
			}
			for _, l := range m.history {
				if !m.machine.Log().OfLineage(l) {
					s.broken("%s votes for step %d with a state of an abandoned branch: %s", m.me, a.Vote.Step, l)
				}
				if seat := m.machine.Seat(); seat != nil && l.Coordinate != seat.Coordinate {
					s.broken("%s votes as coordinate %d with %s", m.me, seat.Coordinate, l)
				}
			}
			if m.torn {
				s.broken("%s votes for step %d with a state torn by an unfinished heal", m.me, a.Vote.Step)
			}
			m.page.Vote = a.Vote
			if s.ballot(m.me.Member, a.Vote.Generation, a.Vote.Step) == nil {
				if s.ballots == nil {
					s.ballots = map[phalanx.MemberID][]Vote{}
				}
				s.ballots[m.me.Member] = append(s.ballots[m.me.Member], a.Vote)
				s.count(a.Vote.Generation, a.Vote.Step)
			}
			if !a.Vote.OK {
				s.trace("%s votes not ok for step %d", m.me.Member, a.Vote.Step)
			}
		case WriteSealed:
			m.page.Sealed = a.Generation
		case WriteRefusal:
			m.page.Refused = Refusal{a.Generation, a.Step, a.Who, a.Evidence.Kind}
			m.evidence = append(m.evidence, a.Evidence)
			s.trace("%s notes: %s of %s, step %d", m.me.Member, a.Evidence.Kind, a.Evidence.About.Member, a.Step)
		case WriteCommit:
			m.page.Told = a
			if a.Generation != m.machine.Log().World.Generation {
				s.trace("%s rolls forward to step %d", m.me.Member, a.Step)
			}
		case WriteSeat:
			m.seat, m.seatIn = a.Do, m.machine.Log().World.Generation
		case Abort:
			m.leaving = a.Generation
		case Form:
			m.forming = a.Generation
		case Heal:
			m.heal = &a
			m.done = false
			s.trace("%s heals to step %d from %s", m.me.Member, a.Label.Step, a.Source.Kind)
		case StopHealing:
			m.heal = nil
		case AnswerSeal:
			if !m.mute && a.Answer.Generation == s.state().World.Generation { // the leader drops late ones
				answer := a.Answer
				m.answer = &answer
			}
			s.trace("%s answers the seal of %s: %s", m.me.Member, a.Answer.Generation, describe(a.Answer))
		case Report:
			m.evidence = append(m.evidence, a.Evidence)
			s.trace("%s reports: %s", m.me.Member, a.Evidence)
		case Fence:
			m.fenced = true
			s.stop(m)
			s.trace("%s is fenced: %s", m.me, a.Why)
		case FirstStep:
			s.first(m, a)
		case End:
			m.ended = true
			s.trace("%s ends: %s", m.me.Member, a.Why)
		default:
			s.broken("unknown action %T", a)
		}
	}
}

// first proposes Activate as soon as any member has seen the first commit.
func (s *sim) first(m *simMember, a FirstStep) {
	if now := s.state(); !m.mute && now.Phase == Forming && now.World.Generation == a.Generation {
		s.append(Activate{Generation: a.Generation})
	}
}

// stop ends the trainer: it possesses nothing any more.
func (s *sim) stop(m *simMember) {
	m.trainer, m.history, m.heal, m.torn = Trainer{}, nil, nil, false
	s.see(m)
}

// append commits an entry. Every entry goes through its bytes.
func (s *sim) append(c Command) {
	b, err := EncodeCommand(c)
	if err == nil {
		c, err = DecodeCommand(b)
	}
	if err != nil {
		s.broken("encode %s: %v", c.kind(), err)
		return
	}
	before := s.state()
	after, err := before.Apply(c)
	s.log = append(s.log, after)
	if err != nil {
		s.kinds = append(s.kinds, "refused")
		s.trace("log %d: refused: %v", len(s.log)-1, err)
		return
	}
	s.kinds = append(s.kinds, c.kind())
	s.trace("log %d: %s", len(s.log)-1, describeCommand(c, after))
	if err := Check(after); err != nil {
		s.broken("after %s: %v", c.kind(), err)
	}
	if err := CheckStep(before, after); err != nil {
		s.broken("by %s: %v", c.kind(), err)
	}
	if p := s.store.Published; p != nil && after.Branch != before.Branch && p.Step > after.Floor.Step && before.OfLineage(p.Labels[0]) && len(s.store.Unreadable) == 0 {
		s.broken("%s resumes at %d below the published step %d", after.World.Generation, after.Floor.Step, p.Step)
	}
	if before.World.Generation != after.World.Generation {
		s.round = Round{}
		for _, m := range s.members {
			m.answer, m.evidence = nil, nil
		}
		s.checkFloor(after)
	}
}

// checkFloor is the heart of the protocol: what a trainer has applied is not undone but by a rewind.
func (s *sim) checkFloor(now *State) {
	if now.World.Size() == 0 {
		return // nobody resumes there; only a rewind may follow
	}
	for i, l := range slices.Concat(s.decided, s.made) {
		if i >= len(s.decided) && slices.Contains(s.decided, l) || !now.OfLineage(l) || !l.Generation.Less(now.World.Generation) {
			continue
		}
		if l.Step > now.Floor.Step {
			s.broken("%s was decided and %s resumes at %d", l, now.World.Generation, now.Floor.Step)
		}
		if floor := now.Floor.Label(l.Coordinate); l.Step == floor.Step && !sameState(floor, l) {
			s.broken("%s was decided and %s resumes at %s", l, now.World.Generation, now.Floor.Label(l.Coordinate))
		}
	}
}

// ballot is the first vote of a member for a step of a generation, nil when there is none.
func (s *sim) ballot(id phalanx.MemberID, g phalanx.Generation, step phalanx.Step) *Vote {
	i := slices.IndexFunc(s.ballots[id], func(v Vote) bool { return v.Generation == g && v.Step == step })
	if i < 0 {
		return nil
	}
	return &s.ballots[id][i]
}

// count decides a step when every member of the world has voted ok for it with equal digests per coordinate.
func (s *sim) count(g phalanx.Generation, step phalanx.Step) {
	world := s.worldOf(g)
	if world == nil {
		return
	}
	labels := make([]phalanx.Label, world.GroupSize)
	for _, seat := range world.Seats {
		v := s.ballot(seat.Member, g, step)
		if v == nil || !v.OK {
			return
		}
		l := phalanx.Label{Step: step, Generation: g, Digest: v.Digest, Coordinate: seat.Coordinate}
		if old := labels[seat.Coordinate]; old.Step != 0 && old != l {
			return
		}
		labels[seat.Coordinate] = l
	}
	now := s.state()
	for _, l := range labels {
		if g.Less(now.World.Generation) && now.OfLineage(l) && now.World.Size() > 0 && l.Step > now.Floor.Step {
			s.broken("%s was decided and %s resumes at %d", l, now.World.Generation, now.Floor.Step)
		}
	}
	s.decided = append(s.decided, labels...)
}

// sameState compares labels where the floor may not know the digest: step and generation name the state alone.
func sameState(floor, l phalanx.Label) bool {
	if floor.Digest.IsZero() {
		l.Digest = phalanx.Digest{}
	}
	return floor == l
}

// applied checks a step that a trainer made and remembers it.
func (s *sim) applied(m *simMember, l phalanx.Label) {
	if int(l.Step) != len(m.history)+1 {
		s.broken("%s applied step %d after %d", m.me, l.Step, len(m.history))
	}
	now := s.state()
	named := slices.ContainsFunc(s.log, func(x *State) bool { return x.Floor.Label(l.Coordinate) == l })
	if !named && !slices.Contains(s.decided, l) {
		s.broken("%s applied %s, which nobody has decided", m.me, l)
	}
	if now.OfLineage(l) {
		for _, o := range s.made {
			if o.Step == l.Step && o.Coordinate == l.Coordinate && o != l && now.OfLineage(o) {
				s.broken("%s applied %s, and %s was applied before", m.me, l, o)
			}
		}
		if floor := now.Floor.Label(l.Coordinate); l.Step == floor.Step && !sameState(floor, l) {
			s.broken("%s applied %s beside the floor %s", m.me, l, floor)
		}
	}
	if !slices.Contains(s.made, l) {
		s.made = append(s.made, l)
	}
	m.history = append(slices.Clone(m.history), l)
}

// newest is the newest step of the lineage that a trainer has applied.
func (s *sim) newest() (newest phalanx.Step) {
	for _, l := range s.made {
		if s.state().OfLineage(l) {
			newest = max(newest, l.Step)
		}
	}
	return newest
}

func (m *simMember) connected() bool { return !m.down && !m.lost && !m.mute && !m.fenced && !m.ended }

// facts is what the leader knows.
func (s *sim) facts() *Facts {
	now := s.state()
	f := &Facts{Round: s.round, Store: s.store, Leader: "the leader", JoinClosed: s.closed, LeaseOut: s.lease, Boundary: now.Floor.Step}
	for _, m := range s.members {
		x := MemberFact{Incarnate: m.me, Host: m.me.Member.Host(), Connected: m.connected() && !m.late, Leaving: m.quit}
		x.Silent = m.lost || m.mute || m.late
		x.InGrace = m.grace && m.trainer.Trainer
		x.Dead = m.down && !m.lost
		x.Finished = m.done
		if m.done {
			x.Digest = phalanx.Digest{1, 1}
		}
		if !m.lost {
			x.Possession = m.trainer.Possession
			x.Slabs = slices.SortedFunc(maps.Keys(m.slabs), func(a, b phalanx.Label) int { return strings.Compare(a.String(), b.String()) })
		} else {
			x.Possession.Trainer = true // nobody has said otherwise
		}
		x.Ready = m.trainer.Trainer
		if x.Connected || now.World.Has(m.me) {
			x.Answer = m.answer
			x.Evidence = m.evidence
		}
		if x.Connected {
			x.Sealed = m.machine.Sealed()
		}
		if v := m.page.Vote; x.Connected && v.Generation == now.World.Generation {
			f.Boundary = max(f.Boundary, v.Step)
		}
		if x.Connected || now.World.Has(m.me) || now.Living(m.me) {
			f.Members = append(f.Members, x)
		}
	}
	f.Boundary += 2
	if s.bound > 0 {
		f.Boundary = s.bound
	}
	if s.round.Asked {
		f.Boundary = max(f.Boundary, s.round.Boundary)
	}
	return f
}

// lead lets the leader do one thing. It reports whether anything came of it.
func (s *sim) lead() bool {
	now := s.state()
	plan := s.planner.Plan(now, s.facts())
	if c, ok := plan.Command.(AdmitMembers); ok && now.Spec == nil {
		for i := range c.Members {
			c.Members[i].Host = c.Members[i].Member.Host()
		}
	}
	switch {
	case plan.Ask != nil:
		r := Round{Asked: true, Planned: plan.Ask.Planned, Boundary: plan.Ask.Boundary}
		if s.round == r {
			return false
		}
		s.round, s.bound = r, 0
		if r.Planned {
			s.trace("leader asks to seal %s at step %d: %s", plan.Ask.Generation, r.Boundary, plan.Why)
		} else {
			s.trace("leader asks to seal %s: %s", plan.Ask.Generation, plan.Why)
		}
		return true
	case plan.Command != nil:
		s.append(plan.Command)
		return true
	}
	s.why = plan.Why
	return false
}

// elect makes another leader: it knows what members tell it again.
func (s *sim) elect() {
	s.round, s.lease = Round{}, false
	for _, m := range s.members {
		m.answer, m.asked = nil, SealAsked{}
		// What was seen by the leader that is gone is forgotten; what a member has seen itself it tells again.
		m.evidence = slices.DeleteFunc(m.evidence, func(e phalanx.Evidence) bool { return e.Source == "the leader" })
	}
}

// publish saves and publishes a checkpoint of a step that living trainers hold whole.
func (s *sim) publish(commit uint64) bool {
	now := s.state()
	f := s.facts()
	for i := range f.Members {
		x := &f.Members[i]
		x.Connected, x.Silent = x.Connected || s.member(x.Member).trainer.Trainer, false // its shard may have been written long ago
	}
	floor, _, ok := newestCopies(now, f, FromLive)
	if !ok {
		return false
	}
	p := Published{Step: floor.Step, Generation: floor.Labels[0].Generation, Branch: now.Branch, Labels: floor.Labels, Commit: commit}
	s.stored[commit] = map[phalanx.Label][]phalanx.Label{}
	for _, l := range floor.Labels {
		for _, m := range s.members {
			if m.trainer.standsAt(l) {
				s.stored[commit][l] = m.history
			}
		}
	}
	s.append(PublishCheckpoint{p})
	s.store.Published = &p
	return true
}

func (s *sim) digest(m *simMember, step phalanx.Step, coordinate int) phalanx.Digest {
	h := fnv.New64a()
	_, _ = io.WriteString(h, fmt.Sprint(step, coordinate, m.flip))
	return phalanx.Digest{h.Sum64(), uint64(step)}
}
