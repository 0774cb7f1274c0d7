// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"

	"phalanx"
	"phalanx/elastic"
)

const (
	maxMembers = 4
	maxSteps   = 7 // of which the explorer knows what a state was made of
)

// lab is a label within a coordinate: the generation that made the step, and which of the possible gradients. 0 is none.
type lab uint16

func labOf(l phalanx.Label) lab { return lab(l.Generation.Number<<2 | l.Digest[0]) }

// node is one entry of the log, and the log up to it.
type node struct {
	prev  *node
	state *logged
	index int
	// relevant: some machine does something when it reads it. Entries that are not are read together with the next one that is.
	relevant bool
}

// life is one member: the life that it lives, with its page, which outlives the daemon, and its trainer. A life is copied
// before it is changed.
type life struct {
	me       phalanx.Incarnate
	machine  *elastic.Machine // nil while the daemon is down
	at       *node            // newest entry read
	page     elastic.Page
	trainer  elastic.Trainer
	seat     elastic.SeatAction
	seatIn   phalanx.Generation // in which the seat was written
	heal     *elastic.Heal
	forming  phalanx.Generation // Formed is to come
	leaving  phalanx.Generation // WorkersLeft is to come
	asked    bool               // the planned seal was delivered
	answer   *elastic.Answer    // newest, in the generation that is current
	evidence []phalanx.Evidence // told, in the generation that is current

	lost, fenced, ended, done, quit bool
	expired                         bool // its lease has run out
	notOK, flip                     bool // what its trainer will ask next

	// What nobody in the job knows.
	history  [maxSteps + 1]lab  // what the state was made of, by step
	torn     bool               // between the first byte of a heal and the last one
	mixed    bool               // a heal that was not finished is in it
	promised phalanx.Generation // newest seal that left the daemon

	// Keys, made once the life does not change any more: of the life without the names of others, of the newest votes that it
	// knows of each member, of what it told about each, and of what a leader may know of it.
	sig, fact   hash
	heard, told [maxMembers]uint64
}

// world is one state of the exploration. It is never changed once it was reached.
type world struct {
	lives   [maxMembers]*life // nil: not started yet
	ballots [maxMembers][]elastic.Vote
	head    *node
	round   elastic.Round
	drafts  []*draft
	stored  []stored // published checkpoints
	decided []decision
	rewinds []elastic.RewindRecord // all of them: the log forgets those that later ones say again
	faults  uint8
	formed  uint8 // generations
	reached uint8 // levels
	wishes  uint8 // of an operator
	wrong   string
}

// decision is a step that the world decided, or that an entry named.
type decision struct {
	step       phalanx.Step
	coordinate int
	what       lab
	generation phalanx.Generation
}

// stored is a published checkpoint with what its states were made of.
type stored struct {
	elastic.Published
	history [maxMembers][maxSteps + 1]lab // by coordinate
}

// draft is an entry that a late leader has computed and not proposed yet.
type draft struct {
	name    string
	command elastic.Command
	key     []hash // by order of the members
}

func (w *world) state() *elastic.State { return w.head.state.State }

func (w *world) broken(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

// draftName is a name that no draft has.
func (w *world) draftName() string {
	for c := 'B'; ; c++ {
		if !slices.ContainsFunc(w.drafts, func(d *draft) bool { return d.name == string(c) }) {
			return string(c)
		}
	}
}

// up reports whether the daemon runs and takes part.
func (l *life) up() bool { return l != nil && l.machine != nil && !l.lost && !l.fenced && !l.ended }

func moving(t *elastic.Trainer) bool { return t.Applying > t.Label.Step }

func standsAt(t *elastic.Trainer, l phalanx.Label) bool {
	if !t.Trainer || !t.Holds || moving(t) {
		return false
	}
	zero := t.Label.Step == 0 && t.Label.Generation.IsZero() && l.Step == 0 && l.Generation.IsZero()
	return t.Label == l || zero && t.Label.Coordinate == elastic.AnyCoordinate
}

// doing carries events out on a copy of a world.
type doing struct {
	x *explorer
	*world
	own [maxMembers]bool // lives that are copies already
	new [maxMembers]bool // and have no keys yet
	buf []byte
	did []string // what was done at once, by the names of the stories
}

// on returns the life of a member to change.
func (d *doing) on(i int) *life {
	if !d.own[i] {
		c := *d.lives[i]
		if c.machine != nil {
			c.machine = c.machine.Clone()
		}
		d.lives[i], d.own[i] = &c, true
	}
	d.new[i] = true
	return d.lives[i]
}

// refresh makes the keys of the lives that were changed.
func (d *doing) refresh() {
	for i := range d.new {
		if d.new[i] {
			d.new[i] = false
			d.buf = d.lives[i].refresh(d.x, d.buf)
		}
	}
}

func (x *explorer) index(id phalanx.MemberID) int { return slices.Index(x.names, id) }

func (d *doing) index(id phalanx.MemberID) int { return d.x.index(id) }

// step gives a machine an event and does what it says.
func (d *doing) step(i int, ev elastic.Event) {
	l := d.lives[i]
	if !l.up() {
		return
	}
	l = d.on(i)
	before := l.machine.State()
	acts := l.machine.Step(ev)
	d.x.cover.step(before, ev, l.machine.State())
	d.perform(i, acts)
}

func (d *doing) see(i int) { d.step(i, elastic.Seen{Trainer: d.lives[i].trainer}) }

// perform does what the machine said, as the loop of a daemon would.
func (d *doing) perform(i int, acts []elastic.Action) {
	l := d.on(i)
	for _, a := range acts {
		switch a := a.(type) {
		case elastic.WriteVote:
			d.voted(i, a.Vote)
		case elastic.WriteSealed:
			l.page.Sealed = a.Generation
		case elastic.WriteRefusal:
			l.page.Refused = elastic.Refusal{Generation: a.Generation, Step: a.Step, Who: a.Who, Why: a.Evidence.Kind}
			d.tell(l, a.Evidence)
		case elastic.WriteCommit:
			l.page.Told = a
		case elastic.WriteSeat:
			l.seat, l.seatIn = a.Do, l.machine.Log().World.Generation
		case elastic.Abort:
			l.leaving = a.Generation
		case elastic.Form:
			l.forming = a.Generation
		case elastic.Heal:
			l.heal, l.done = &a, false
		case elastic.StopHealing:
			l.heal = nil
		case elastic.AnswerSeal:
			if l.promised.Less(a.Answer.Generation) {
				l.promised = a.Answer.Generation
			}
			if a.Answer.Generation == d.state().World.Generation { // the leader drops late ones
				answer := a.Answer
				l.answer = &answer
			}
		case elastic.Report:
			d.tell(l, a.Evidence)
		case elastic.Fence:
			l.fenced = true
			d.stop(i)
		case elastic.FirstStep:
			if now := d.state(); now.Phase == elastic.Forming && now.World.Generation == a.Generation {
				d.append(elastic.Activate{Generation: a.Generation})
			}
		case elastic.End:
			l.ended = true
		default:
			d.broken("unknown action %T", a)
		}
	}
}

// tell keeps evidence once.
func (d *doing) tell(l *life, e phalanx.Evidence) {
	for _, o := range l.evidence {
		if o.Kind == e.Kind && o.About == e.About && o.Step == e.Step {
			return
		}
	}
	l.evidence = append(slices.Clip(l.evidence), e)
}

// stop ends a trainer: it possesses nothing any more.
func (d *doing) stop(i int) {
	l := d.on(i)
	l.trainer, l.history, l.mixed, l.torn, l.heal = elastic.Trainer{}, [maxSteps + 1]lab{}, false, false, nil
	d.see(i)
}

// start begins a life: a new member, or the next incarnation of one whose life is over.
func (d *doing) start(i int) {
	l := &life{me: phalanx.Incarnate{Member: d.x.names[i], Incarnation: 1}, at: d.head}
	if old := d.lives[i]; old != nil {
		l.me.Incarnation = old.me.Incarnation + 1
	}
	l.trainer = elastic.Trainer{Possession: elastic.Possession{Trainer: true, Holds: true, Label: phalanx.Label{Coordinate: elastic.AnyCoordinate}}}
	l.machine = elastic.NewMachine(l.me, d.state(), elastic.Page{})
	d.lives[i], d.own[i], d.new[i] = l, true, true
	d.perform(i, l.machine.Adopt(l.trainer))
	d.step(i, elastic.Lease{Valid: true})
	d.settle(i)
}

// restart brings a daemon back: it finds its page and its trainer.
func (d *doing) restart(i int) {
	l := d.on(i)
	l.machine = elastic.NewMachine(l.me, l.at.state.State, l.page)
	l.asked = false
	l.heal, l.forming, l.leaving = nil, phalanx.Generation{}, phalanx.Generation{}
	d.perform(i, l.machine.Adopt(l.trainer))
	if !l.expired {
		d.step(i, elastic.Lease{Valid: true})
	}
	d.settle(i)
}

// settle does at once what the configuration does not explore as events of their own.
func (d *doing) settle(i int) {
	if d.x.Fine {
		return
	}
	for l := d.lives[i]; l.up(); l = d.lives[i] {
		switch {
		case !l.leaving.IsZero():
			d.leave(i)
			d.did = append(d.did, "leave")
		case !l.forming.IsZero():
			d.form(i)
			d.did = append(d.did, "form")
		default:
			return
		}
	}
}

func (d *doing) leave(i int) {
	l := d.on(i)
	g := l.leaving
	l.leaving = phalanx.Generation{}
	d.step(i, elastic.WorkersLeft{Generation: g})
}

func (d *doing) form(i int) {
	l := d.on(i)
	g := l.forming
	l.forming = phalanx.Generation{}
	d.step(i, elastic.Formed{Generation: g})
}

// read goes on to the next entry at which some machine does something.
func (d *doing) read(i int) {
	for {
		l := d.on(i)
		n := l.at.next(d.head)
		l.at = n
		d.step(i, elastic.Read{State: n.state.State})
		if n.relevant {
			return
		}
	}
}

// next is the entry after n in the log that ends with head.
func (n *node) next(head *node) *node {
	for head.index > n.index+1 {
		head = head.prev
	}
	return head
}

// behind reports whether an entry that matters is unread.
func (l *life) behind(head *node) bool {
	for n := head; n != l.at; n = n.prev {
		if n.relevant {
			return true
		}
	}
	return false
}
