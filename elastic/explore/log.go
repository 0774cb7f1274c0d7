// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"sync"

	"phalanx"
	"phalanx/elastic"
)

// logged is a state of the log that was met, once for all worlds in which it is. By order of the members it has a key, and
// one of what a member's machine sees of it.
type logged struct {
	*elastic.State
	id   uint32
	key  []hash
	view []hash
}

// states holds every state of the log that was met.
type states struct {
	sync.RWMutex
	known map[hash]*logged
	plans map[hash]*planned
}

// planned is what a leader does about some facts in some state.
type planned struct {
	elastic.Plan
	next  *logged // what the command leads to, nil when there is none or it is refused
	wrong string
}

// intern returns the one copy of a state. Two that differ in the number of entries alone are two: machines compare it. So are
// two that differ in ranks alone: those stay with a generation while entry follows entry, and members keep votes by rank.
func (x *explorer) intern(s *elastic.State) *logged {
	var buffer [1024]byte
	b := s.AppendKey(buffer[:0], x.names)
	for _, seat := range s.World.Seats {
		b = append(b, byte(x.index(seat.Member)))
	}
	id := sum(append(b, byte(s.Seq), byte(s.Seq>>8)))
	x.states.RLock()
	l := x.states.known[id]
	x.states.RUnlock()
	if l != nil {
		return l
	}
	l = &logged{State: s}
	for _, order := range x.orders {
		names := make([]phalanx.MemberID, len(order))
		for k, i := range order {
			names[k] = x.names[i]
		}
		l.key = append(l.key, sum(s.AppendKey(buffer[:0], names)))
		l.view = append(l.view, sum(s.AppendView(buffer[:0], names)))
	}
	x.states.Lock()
	defer x.states.Unlock()
	if old := x.states.known[id]; old != nil {
		return old
	}
	l.id = uint32(len(x.states.known))
	x.states.known[id] = l
	return l
}

// entered applies a command to a state and checks what must hold after each.
func (x *explorer) entered(before *logged, c elastic.Command) (next *logged, wrong string) {
	after, err := before.Apply(c)
	x.cover.entry(before.State, after, c, err)
	if err != nil {
		return nil, ""
	}
	if err := elastic.Check(after); err != nil {
		return nil, fmt.Sprintf("after %T: %v", c, err)
	}
	if err := elastic.CheckStep(before.State, after); err != nil {
		return nil, fmt.Sprintf("by %T: %v", c, err)
	}
	return x.intern(after), ""
}

// append commits an entry.
func (d *doing) append(c elastic.Command) {
	next, wrong := d.x.entered(d.head.state, c)
	switch {
	case wrong != "":
		d.broken("%s", wrong)
	case next != nil:
		d.advance(next)
	default: // refused: it counts, and nobody does anything when it is read
		refused := *d.head.state.State
		refused.Seq++
		d.head = &node{prev: d.head, state: d.x.intern(&refused), index: d.head.index + 1}
	}
}

// advance makes next the newest state of the log.
func (d *doing) advance(next *logged) {
	old := d.head.state
	n := &node{prev: d.head, state: next, index: d.head.index + 1}
	formed := old.World.Generation != next.World.Generation
	n.relevant = formed || ends(next.State) != ends(old.State)
	for _, l := range d.lives {
		n.relevant = n.relevant || l != nil && alive(old.State, l.me) != alive(next.State, l.me)
	}
	d.head = n
	if formed {
		d.round, d.formed = elastic.Round{}, d.formed+1
		for i, l := range d.lives {
			if l != nil && (l.answer != nil || len(l.evidence) > 0 || l.asked) {
				l = d.on(i)
				l.answer, l.evidence, l.asked = nil, nil, false
			}
		}
		d.floorMoved(old.State, next.State)
	}
}

// ends reports whether machines end when they read s.
func ends(s *elastic.State) bool {
	return s.Phase == elastic.Finished || s.Phase == elastic.Halted && s.Halt != nil && s.Halt.Kind.Ends()
}

// alive reports whether the log still knows a life, or does not know it yet.
func alive(s *elastic.State, who phalanx.Incarnate) bool {
	m := s.Member(who.Member)
	return m == nil || m.Incarnation < who.Incarnation || m.Incarnation == who.Incarnation && m.State != elastic.Gone
}

// view says what a leader knows: whom it hears, and whether it knows no more of them than what they answered.
type view struct {
	hears uint8
	round elastic.Round
	// blind: what became of a member after its answer is not known.
	blind    bool
	boundary phalanx.Step
}

// facts is what a leader with this view knows. Members that it does not hear are silent; their leases have run out if they
// did, or if nothing is left to hold one.
func (d *doing) facts(v view) *elastic.Facts {
	now := d.state()
	f := &elastic.Facts{Round: v.round, Leader: "the leader", JoinClosed: true, LeaseOut: d.leaseOut(v.hears), Boundary: v.boundary}
	f.Store.Known = true
	if n := len(d.stored); n > 0 {
		f.Store.Published = &d.stored[n-1].Published
	}
	f.Members = make([]elastic.MemberFact, 0, len(d.x.names))
	for i, l := range d.lives {
		if l == nil {
			continue
		}
		heard := v.hears>>i&1 == 1
		inWorld := now.World.Has(l.me)
		x := elastic.MemberFact{Incarnate: l.me, Host: l.me.Member.Host(), Ready: l.trainer.Trainer, Leaving: l.quit && heard}
		if d.x.Pinned {
			x.Pin = phalanx.PinTo(i % d.x.Group)
		}
		x.Connected = heard && l.up() && !l.expired
		x.Silent = !heard || l.lost || l.expired
		x.Dead = l.machine == nil && !l.lost
		if heard {
			x.Possession = l.trainer.Possession
		}
		if l.lost || !heard {
			x.Possession.Trainer = true // nobody has said otherwise
		}
		x.Finished = l.done && heard
		if x.Finished {
			x.Digest = phalanx.Digest{1, 1}
		}
		if heard && inWorld {
			x.Answer, x.Evidence = l.answer, l.evidence
			if v.blind && l.answer != nil {
				x.Connected, x.Silent, x.Dead, x.Possession = true, false, false, l.answer.Possession
			}
		}
		if l.up() && heard {
			x.Sealed = l.machine.Sealed()
		}
		// A member outside of the world that was not heard of since the leader's election is nobody to it.
		if x.Connected || inWorld || heard && now.Living(l.me) {
			f.Members = append(f.Members, x)
		}
	}
	return f
}

// leaseOut reports whether nobody who is not heard can still hold a lease.
func (d *doing) leaseOut(hears uint8) bool {
	now := d.state()
	for i, l := range d.lives {
		if l != nil && hears>>i&1 == 0 && !l.expired && l.up() && now.World.Has(l.me) {
			return false
		}
	}
	return true
}

// plan is what a leader with this view does. It is asked once for equal facts.
func (d *doing) plan(v view) *planned {
	d.refresh()
	flags := byte(0)
	for i, on := range []bool{d.leaseOut(v.hears), v.round.Asked, v.round.Planned, v.round.Late, v.blind} {
		if on {
			flags |= 1 << i
		}
	}
	var array [128]byte
	b := append(array[:0], byte(d.head.state.id), byte(d.head.state.id>>8), byte(d.head.state.id>>16), byte(d.head.state.id>>24),
		flags, byte(v.round.Boundary), byte(v.boundary), byte(len(d.stored)))
	if n := len(d.stored); n > 0 {
		b = elastic.AppendLabel(b, d.stored[n-1].Labels[0])
	}
	for i, l := range d.lives {
		switch {
		case l == nil:
			b = append(b, 2)
		case v.hears>>i&1 == 1:
			b = l.fact.append(append(b, 1))
		default: // whether it is there at all
			state := byte(0)
			if l.machine == nil {
				state = 8
			}
			if l.lost {
				state |= 16
			}
			b = append(b, state, byte(l.me.Incarnation))
		}
	}
	key := sum(b)
	s := &d.x.states
	s.RLock()
	p := s.plans[key]
	s.RUnlock()
	if p != nil {
		return p
	}
	p = &planned{Plan: d.x.planner.Plan(d.state(), d.facts(v))}
	if c, ok := p.Command.(elastic.AdmitMembers); ok {
		for i := range c.Members {
			c.Members[i].Host = c.Members[i].Member.Host()
		}
	}
	if p.Command != nil {
		p.next, p.wrong = d.x.entered(d.head.state, p.Command)
	}
	s.Lock()
	defer s.Unlock()
	s.plans[key] = p
	return p
}

// commit proposes what a leader planned. It reports whether the log accepted it.
func (d *doing) commit(p *planned) bool {
	switch {
	case p.wrong != "":
		d.broken("%s", p.wrong)
	case p.next != nil:
		d.advance(p.next)
	}
	return p.next != nil
}
