// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"

	"phalanx"
	"phalanx/internal/planted"
)

// Machine is a daemon's own machine: it compares the committed state with what its trainer and its peers show, and says
// what to do. It is a value without clock, goroutine or I/O; one goroutine calls Step.
type Machine struct {
	me      phalanx.Incarnate
	state   LocalState
	log     *State
	sealed  phalanx.Generation // newest promise
	vote    Vote               // newest, on the page
	refused Vote               // Generation and Step of the newest refusal written
	adopted Refusal            // the refusal found on the page
	trainer Trainer
	votes   []Vote                // newest known of each rank of the current world, by rank
	early   map[phalanx.Rank]Vote // newest of the newest generation that is not read yet
	lease   bool
	formed  bool
	ask     *SealAsked         // a boundary that is not reached yet
	leaving phalanx.Generation // sealed; the answer waits for the workers of this generation
	told    WriteCommit        // newest commit told
	first   phalanx.Generation // newest generation whose first commit was reported
	met     bool               // this life was read in the log
	seat    SeatAction
	sat     bool // seat was written in this generation
	ended   bool
	started int64 // see Page.Started
}

// Page is what a control page says to a daemon that adopts it.
type Page struct {
	Sealed  phalanx.Generation
	Vote    Vote
	Refused Refusal
	Told    WriteCommit
	// Started is when the job was started, in Unix nanoseconds: an end that was decided before is not the end of this start.
	Started int64
}

// Refusal is what a page says about the newest refusal.
type Refusal struct {
	Generation phalanx.Generation
	Step       phalanx.Step
	Who        phalanx.Rank
	Why        phalanx.EvidenceKind
}

// NewMachine returns the machine of a member's life that has read s and finds p on its page; a new life finds a zero page.
func NewMachine(me phalanx.Incarnate, s *State, p Page) *Machine {
	if planted.On(planted.SealForgotten) {
		p.Sealed = phalanx.Generation{}
	}
	if planted.On(planted.VoteBeforePage) {
		p.Vote = Vote{} // it was sent, and the daemon ended before it was on the page
	}
	return &Machine{me: me, log: s, sealed: p.Sealed, vote: p.Vote, refused: Vote{Generation: p.Refused.Generation, Step: p.Refused.Step}, adopted: p.Refused, told: p.Told, started: p.Started, met: s.names(me), votes: make([]Vote, s.World.Size())}
}

// State is the machine's own state.
func (m *Machine) State() LocalState { return m.state }

// Log is the newest state read.
func (m *Machine) Log() *State { return m.log }

// Sealed is the newest generation in which this member has promised not to vote.
func (m *Machine) Sealed() phalanx.Generation { return m.sealed }

// NewestVote is the newest vote, zero when none was cast.
func (m *Machine) NewestVote() Vote { return m.vote }

// Refusal is the generation and step of the newest refusal known.
func (m *Machine) Refusal() Vote { return m.refused }

// Seat is this life's seat in the newest world, nil when it has none.
func (m *Machine) Seat() *phalanx.Seat {
	s := m.log.World.SeatOf(m.me.Member)
	if s == nil || s.Incarnation != m.me.Incarnation {
		return nil
	}
	return s
}

// Steady reports whether nothing but the trainer's next request can move the machine: it votes in a generation whose first
// step is over, and no boundary is waited for.
func (m *Machine) Steady() bool {
	return m.state == LocalRunning && m.ask == nil && m.first == m.log.World.Generation
}

// Step takes one event and returns what to do, in order.
func (m *Machine) Step(ev Event) []Action {
	if m.ended {
		return nil
	}
	switch ev := ev.(type) {
	case Read:
		return m.read(ev.State)
	case Seen:
		return m.seen(ev.Trainer)
	case PeerVoted:
		return m.peerVoted(ev)
	case SealAsked:
		return m.sealAsked(ev)
	case WorkersLeft:
		return m.workersLeft(ev.Generation)
	case Formed:
		return m.formedNow(ev.Generation)
	case HealBroken:
		return m.healBroken(ev)
	case Lease:
		m.lease = ev.Valid
		return m.tryVote(nil)
	}
	return nil
}

// Adopt enters the generation that was current when the daemon's predecessor ended, as if its entry had just been read.
func (m *Machine) Adopt(t Trainer) []Action {
	m.trainer = t
	acts := m.enter(nil)
	if m.state == LocalForming && m.vote.Generation == m.log.World.Generation {
		acts = append(acts, WriteVote{m.vote}) // repeated: it may not have been sent before the end
	}
	return append(acts, m.repeatRefusal()...)
}

// repeatRefusal tells again what speaks against the present generation: the leader heard it from the daemon that has ended, if
// at all, and the next one asks nobody.
func (m *Machine) repeatRefusal() []Action {
	w, seat := &m.log.World, m.Seat()
	switch r := m.adopted; {
	case seat == nil:
		return nil
	case r.Generation == w.Generation && r.Step > 0 && int(r.Who) >= 0 && int(r.Who) < w.Size():
		return []Action{Report{m.refusal(r.Step, r.Who, r.Why)}}
	case m.vote.Generation == w.Generation && !m.vote.OK: // the end came between the vote and its refusal
		return m.refuse(m.vote.Step, seat.Rank, phalanx.VotedNotOK)
	}
	return nil
}

func (m *Machine) read(s *State) []Action {
	if s.Seq <= m.log.Seq {
		return nil
	}
	old := m.log
	m.log, m.met = s, m.met || s.names(m.me)
	if why, over := s.EndsRun(m.started); over {
		m.ended = true
		return []Action{Abort{s.World.Generation}, WriteSeat{SeatStop}, End{why}}
	}
	if s.World.Generation == old.World.Generation {
		if !m.alive() {
			return m.fence()
		}
		return nil
	}
	return m.enter([]Action{StopHealing{s.World.Generation}, Abort{old.World.Generation}})
}

// alive reports whether the log still knows this life, or does not know it yet. One that it knew and does not name any more
// went long ago: it was read here, or sealed or voted in a generation that is read by now, as only members are asked to.
func (m *Machine) alive() bool {
	x := m.log.Member(m.me.Member)
	if x == nil {
		promised := m.vote.Generation
		if promised.Less(m.sealed) {
			promised = m.sealed
		}
		return !m.met && (promised.IsZero() || m.log.World.Generation.Less(promised))
	}
	return x.Incarnation < m.me.Incarnation || x.Incarnation == m.me.Incarnation && x.State != Gone
}

func (m *Machine) fence() []Action {
	why := "a newer incarnation is known"
	if x := m.log.Member(m.me.Member); x == nil {
		why = "it went so long ago that the log has forgotten it"
	} else if x.Incarnation == m.me.Incarnation {
		why = x.Why
	}
	m.ended, m.state = true, LocalIdle
	return []Action{WriteSeat{SeatFenced}, Fence{why}}
}

// enter begins the newest generation.
func (m *Machine) enter(acts []Action) []Action {
	m.votes = make([]Vote, m.log.World.Size())
	m.formed, m.ask, m.seat, m.sat = false, nil, SeatPark, false
	if !m.alive() {
		return append(acts, m.fence()...)
	}
	seat := m.Seat()
	if seat == nil {
		m.state = LocalIdle
		return m.sit(append(acts, m.rollForward()...), SeatPark) // a donor rolls forward outside of the world too
	}
	if m.isSealed() {
		// Sealed unread, or adopted after a seal: this generation is dead for us, the next entry comes.
		m.state = LocalAborting
		m.leaving = m.log.World.Generation
		acts = m.sit(append(acts, m.rollForward()...), SeatPark)
		return append(acts, Abort{m.leaving})
	}
	m.state = LocalForming
	if m.vote.Generation == m.log.World.Generation && int(seat.Rank) < len(m.votes) {
		m.votes[seat.Rank] = m.vote
	}
	acts = append(acts, m.rollForward()...)
	acts = append(acts, Form{m.log.World.Generation})
	return m.hearEarly(m.stand(acts))
}

// isSealed reports whether this member has promised not to vote in the newest generation.
func (m *Machine) isSealed() bool {
	return !m.sealed.Less(m.log.World.Generation) && !planted.On(planted.SealIgnored)
}

// rollForward applies the floor where the trainer holds the gradient that makes it, also outside of the world: others may
// heal from it. A member that was given another coordinate heals instead.
func (m *Machine) rollForward() []Action {
	c := m.trainer.Gradient.Coordinate
	if seat := m.Seat(); seat != nil && seat.Coordinate != c {
		return nil
	}
	floor := m.log.Floor.Label(c)
	if !m.trainer.rollsForwardTo(floor) {
		return nil
	}
	return m.tell(WriteCommit{floor.Generation, floor.Step})
}

// tell repeats no commit that was told before: the page keeps it.
func (m *Machine) tell(c WriteCommit) []Action {
	if m.told == c {
		return nil
	}
	m.told = c
	return []Action{c}
}

// stands reports whether the trainer holds a state from which it may vote: the floor's, or one made in this generation.
func (m *Machine) stands() bool {
	seat := m.Seat()
	return seat != nil && m.trainer.stands(m.log, seat.Coordinate)
}

// stand tells the trainer to run or to heal, as far as it can by now. A trainer whose optimizer runs, or is about to make the
// floor, waits in its seat; Seen follows when it has.
func (m *Machine) stand(acts []Action) []Action {
	if m.log.Phase == Halted {
		return m.sit(acts, SeatPark)
	}
	switch {
	case m.stands():
		if !m.formed {
			return m.sit(acts, SeatPark)
		}
		m.state = LocalReady
		if m.vote.Generation == m.log.World.Generation {
			m.state = LocalRunning
		}
		return m.tryVote(m.sit(acts, SeatRun))
	case m.trainer.rollsForwardTo(m.log.Floor.Label(m.Seat().Coordinate)):
		return m.sit(append(acts, m.rollForward()...), SeatPark)
	case !m.trainer.Trainer || m.trainer.Holds && m.trainer.moving():
		return m.sit(acts, SeatPark)
	case m.seat == SeatHeal:
		return acts
	}
	if m.formed {
		m.state = LocalHealing
	}
	acts = m.sit(acts, SeatHeal)
	return append(acts, Heal{m.log.World.Generation, m.log.Floor.Label(m.Seat().Coordinate), m.log.Source})
}

// sit writes the seat. It is written once per generation even when nothing changes, so that a waiting trainer learns of it.
func (m *Machine) sit(acts []Action, do SeatAction) []Action {
	if m.sat && m.seat == do {
		return acts
	}
	m.seat, m.sat = do, true
	return append(acts, WriteSeat{do})
}

func (m *Machine) formedNow(g phalanx.Generation) []Action {
	if g != m.log.World.Generation || m.state != LocalForming {
		return nil
	}
	m.formed = true
	if m.seat == SeatHeal {
		m.state = LocalHealing
	}
	return m.stand(nil)
}

func (m *Machine) seen(t Trainer) []Action {
	before := m.trainer
	m.trainer = t
	if m.Seat() == nil {
		return nil
	}
	var acts []Action
	if before.Holds && t.Holds && t.Label.Step > before.Label.Step && t.Label.Generation == m.log.World.Generation && m.first != t.Label.Generation {
		m.first = t.Label.Generation
		acts = append(acts, FirstStep{t.Label.Generation, t.Label.Step})
	}
	if m.ask != nil && m.stands() && t.Label.Step >= m.ask.Boundary {
		return append(acts, m.seal(m.ask.Generation)...)
	}
	if m.state == LocalSealing || m.state == LocalAborting || m.state == LocalIdle {
		return acts
	}
	if t.Healed != before.Healed && t.Healed.Generation == m.log.World.Generation && !t.Healed.OK {
		return append(acts, m.healBroken(HealBroken{t.Healed.Generation, "the bytes read do not have the source's digests"})...)
	}
	// A commit of an abandoned branch that was told just before may still be carried out: that trainer heals, like any that
	// does not stand where it may vote.
	if m.state == LocalForming || m.state == LocalHealing || t.Trainer && t.Holds && !t.moving() && !m.stands() {
		return m.stand(acts)
	}
	return m.tryVote(acts)
}

func (m *Machine) healBroken(ev HealBroken) []Action {
	if ev.Generation != m.log.World.Generation || m.seat != SeatHeal {
		return nil
	}
	return []Action{Report{phalanx.Evidence{Kind: phalanx.HealFailed, About: m.me, Source: m.me.Member, Step: m.log.Floor.Step, Detail: ev.Why}}}
}

func (m *Machine) sealAsked(ev SealAsked) []Action {
	g := m.log.World.Generation
	switch {
	case ev.Generation.Less(g):
		return nil // the asker is behind; our report tells it
	case !m.sealed.Less(ev.Generation):
		if m.state == LocalAborting {
			return nil
		}
		return []Action{m.answer(ev.Generation)}
	case ev.Generation == g && m.Seat() == nil:
		return nil
	case ev.Generation == g && ev.Boundary > 0 && m.waitsFor(m.boundary(ev)):
		ev.Boundary = m.boundary(ev)
		m.ask = &ev
		return nil
	}
	return m.seal(ev.Generation)
}

// boundary is the step that a planned seal waits for.
func (m *Machine) boundary(ev SealAsked) phalanx.Step {
	if planted.On(planted.BoundaryUnnamed) {
		return max(m.trainer.Label.Step, m.vote.Step) // each member's own, all that it has voted for
	}
	return ev.Boundary
}

// waitsFor reports whether the member can still reach the boundary: it has not applied it and not voted beyond.
func (m *Machine) waitsFor(b phalanx.Step) bool {
	if m.vote.Generation == m.log.World.Generation && m.vote.Step > b {
		return false
	}
	return !(m.stands() && m.trainer.Label.Step >= b)
}

// seal promises never to vote in g again. The answer waits until no worker is in a segment.
func (m *Machine) seal(g phalanx.Generation) []Action {
	m.sealed, m.ask, m.leaving, m.state = g, nil, g, LocalAborting
	acts := []Action{WriteSealed{g}}
	if m.Seat() != nil && g == m.log.World.Generation {
		m.seat, m.sat = SeatPark, true
		acts = append(acts, WriteSeat{SeatPark})
	}
	return append(acts, Abort{g})
}

func (m *Machine) workersLeft(g phalanx.Generation) []Action {
	if m.state != LocalAborting || g.Less(m.leaving) {
		return nil
	}
	m.state = LocalSealing
	return []Action{m.answer(m.leaving)}
}

// answer says what this member has promised and possesses in g, which it has sealed.
func (m *Machine) answer(g phalanx.Generation) Action {
	a := Answer{Incarnate: m.me, Generation: g, Unread: g != m.log.World.Generation, Possession: m.trainer.Possession}
	if m.vote.Generation == g {
		v := m.vote
		a.Vote = &v
	}
	if m.refused.Generation == g {
		a.Refused = m.refused.Step
	}
	return AnswerSeal{a}
}

// String is for logs.
func (m *Machine) String() string {
	return fmt.Sprintf("%s %s in %s", m.me, m.state, m.log.World.Generation)
}
