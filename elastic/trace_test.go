// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"phalanx"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories in testdata show now")

// TestTrace plays the stories in testdata. A line "> COMMAND" is done and what it shows is indented below it; other lines
// are the story's own words. go test ./elastic -run Trace -rewrite writes the files anew.
func TestTrace(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, wrong := play(string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("the story goes otherwise; look at it and run go test ./elastic -run Trace -rewrite\n%s", difference(string(want), got))
			}
			for _, w := range wrong {
				t.Error(w)
			}
		})
	}
}

// difference shows the first lines in which the story differs.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant: %s\n got: %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// play does the commands of a story and returns it with what they show, and the rules that broke.
func play(text string) (string, []string) {
	var out strings.Builder
	p := &player{out: &out, spec: phalanx.JobSpec{LastStep: 100, Slots: 8, GlobalBatch: 8, GroupSize: 1, Threads: 1}, policy: Policy{Want: 3, Min: 1}}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		command, ok := strings.CutPrefix(line, "> ")
		if !ok {
			continue
		}
		if err := p.command(strings.Fields(command)); err != nil {
			p.wrong = append(p.wrong, fmt.Sprintf("%s: %v", command, err))
		}
	}
	if p.sim != nil {
		p.wrong = append(p.wrong, p.sim.wrong...)
	}
	return out.String(), p.wrong
}

// player knows the words of the stories.
type player struct {
	out    *strings.Builder
	sim    *sim
	spec   phalanx.JobSpec
	policy Policy
	wrong  []string
	mark   int // entries at the last count
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(p.out, "  "+format+"\n", args...) }

func (p *player) command(words []string) error {
	verb, args := words[0], words[1:]
	switch verb {
	case "job":
		return p.job(args)
	case "members":
		p.sim = newSim(p.spec, p.policy)
		p.sim.trace = p.say
		for _, id := range args {
			p.sim.start(phalanx.MemberID(id))
		}
		return nil
	}
	if p.sim == nil {
		return errors.New("name the members first")
	}
	if done, err := p.whole(verb, args); done || err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("unknown command")
	}
	for _, id := range args[len(args)-1:] {
		if verb == "start" {
			p.sim.start(phalanx.MemberID(id))
			return nil
		}
		m := p.sim.member(phalanx.MemberID(id))
		if m == nil {
			return fmt.Errorf("%s is not known", id)
		}
		if err := p.one(verb, args[:len(args)-1], m); err != nil {
			return err
		}
	}
	return nil
}

// job: slots 8 group 2 want 4 min 2 last 100
func (p *player) job(args []string) error {
	for i := 0; i+1 < len(args); i += 2 {
		n, err := strconv.Atoi(args[i+1])
		if err != nil {
			return err
		}
		switch args[i] {
		case "group":
			p.spec.GroupSize = n
		case "want":
			p.policy.Want = n
		case "min":
			p.policy.Min = n
		case "last":
			p.spec.LastStep = phalanx.Step(n)
		default:
			return fmt.Errorf("unknown word %s", args[i])
		}
	}
	return nil
}

// whole does what is not about one member.
func (p *player) whole(verb string, args []string) (bool, error) {
	s := p.sim
	number := func() int {
		n := 0
		if len(args) > 0 {
			n, _ = strconv.Atoi(args[len(args)-1])
		}
		return n
	}
	switch verb {
	case "run": // run [to STEP]
		if len(args) > 0 {
			s.limit = phalanx.Step(number())
		}
		before := s.newest()
		if !s.run() {
			return true, errors.New("it does not come to rest")
		}
		p.rest(before)
	case "limit":
		s.limit = phalanx.Step(number())
	case "lead":
		if !s.lead() {
			p.say("leader: %s", s.why)
		}
	case "elect":
		s.elect()
		p.say("another leader is elected")
	case "wait":
		s.lease = true
		for _, m := range s.members {
			if m.mute {
				s.step(m, Lease{false})
			}
		}
	case "close":
		s.closed = true
	case "late":
		s.round.Late = true
	case "publish":
		if !s.publish(uint64(len(s.stored) + 1)) {
			return true, errors.New("nothing to publish")
		}
	case "reach": // reach LEVEL: the newest whole state is staged
		floor, _, ok := newestCopies(s.state(), s.facts(), FromLive)
		if !ok {
			return true, errors.New("no state is whole")
		}
		s.append(ReachLevel{Level: Level(args[0]), Reached: Reached{Step: floor.Step, Generation: floor.Labels[0].Generation}})
	case "publish-late": // a save of the step that a lost trainer had staged is published now
		l := phalanx.Label{}
		for _, o := range s.made {
			if o.Step == phalanx.Step(number()) {
				l = o
			}
		}
		s.append(PublishCheckpoint{Published{Step: l.Step, Generation: l.Generation, Labels: []phalanx.Label{l}, Commit: 9}})
	case "unreadable":
		s.store.Unreadable, s.store.Published = append(s.store.Unreadable, uint64(number())), nil
	case "resize":
		s.append(Resize{Want: number()})
	case "stopped":
		s.append(Halt{Reason: HaltReason{Kind: StoppedByOperator, Words: "an operator asked for it"}})
	case "started-again":
		s.append(Resume{})
	case "new-log": // the next run: nothing is left but the store
		*s = sim{planner: s.planner, log: []*State{NewState()}, store: s.store, stored: s.stored, drafts: map[string]Command{}, trace: s.trace}
		p.mark = 0
	case "boundary": // of the next planned seal
		s.bound = phalanx.Step(number())
	case "draft", "draft-blind": // draft NAME M…: a leader that has the answers of these alone computes an entry
		c, err := p.draft(args[1:], verb == "draft-blind")
		s.drafts[args[0]] = c
		return true, err
	case "commit":
		s.append(s.drafts[args[0]])
	case "rewind": // an operator's, to the store, with the present world
		p.rewind()
	case "entries":
		p.say("%d entries: %s", len(s.kinds)-p.mark, strings.Join(s.kinds[p.mark:], ", "))
		p.mark = len(s.kinds)
	default:
		return false, nil
	}
	return true, nil
}

func (p *player) rewind() {
	s := p.sim
	now := s.state()
	pub := s.store.Published
	floor := Floor{pub.Step, pub.Labels}
	world := now.World.Clone()
	world.Generation = now.NextGeneration(floor)
	s.append(Rewind{FormGeneration: FormGeneration{Base: now.World.Generation, World: world, Floor: floor,
		Source: Source{Kind: FromStore, Commit: pub.Commit}, Cause: "an operator asked for it"}, Branch: now.Branch + 1})
}

// draft is what a leader computes that has the answers of these alone. The leases of all others have run out when nobody is
// left to hold one. A blind leader does not know what became of them since they answered.
func (p *player) draft(ids []string, blind bool) (Command, error) {
	s := p.sim
	now := s.state()
	f := s.facts()
	f.Round = Round{Asked: true}
	f.LeaseOut = true
	f.Members = slices.DeleteFunc(f.Members, func(m MemberFact) bool {
		return !slices.Contains(ids, string(m.Member)) && !now.World.Has(m.Incarnate) // not heard of since its election
	})
	for i := range f.Members {
		m := &f.Members[i]
		if x := s.member(m.Member); !slices.Contains(ids, string(m.Member)) {
			m.Answer, m.Silent, m.Connected, m.Evidence, m.Sealed = nil, true, false, nil, phalanx.Generation{}
			f.LeaseOut = f.LeaseOut && (x.down || x.lost || x.fenced || x.ended || x.late || s.lease)
		} else if blind && m.Answer != nil {
			m.Connected, m.Silent, m.Dead, m.InGrace, m.Possession = true, false, false, false, m.Answer.Possession
		}
	}
	plan := s.planner.Plan(now, f)
	if plan.Command == nil {
		return nil, fmt.Errorf("no command: %s", plan.Why)
	}
	p.say("drafted: %s", describeCommand(plan.Command, now))
	return plan.Command, nil
}

// rest says where everybody stands.
func (p *player) rest(before phalanx.Step) {
	s := p.sim
	now := s.state()
	if n := s.newest(); n > before {
		p.say("newest applied step: %d", n)
	}
	var at []string
	for _, m := range s.members {
		switch {
		case m.lost:
			continue
		case !m.trainer.Trainer:
			at = append(at, fmt.Sprintf("%s has no trainer", m.me))
		case !m.trainer.Holds:
			at = append(at, fmt.Sprintf("%s has no state", m.me))
		default:
			at = append(at, fmt.Sprintf("%s %s at %d", m.me, m.machine.State(), m.trainer.Label.Step))
		}
	}
	p.say("%s %s, branch %d: %s", now.Phase, now.World.Generation, now.Branch, strings.Join(at, ", "))
	if s.round.Asked || s.why != "nothing to change" {
		p.say("leader: %s", s.why)
	}
}

// one does what is about one member.
func (p *player) one(verb string, args []string, m *simMember) error {
	s := p.sim
	switch verb {
	case "kill": // its trainer, beside a living daemon
		s.stop(m)
	case "kill-daemon":
		m.down, m.grace, m.evidence = true, m.trainer.Trainer, nil // what it had told was in its memory
	case "grace-over":
		m.grace = false
	case "restart":
		s.restart(m)
	case "lose": // the whole host
		m.lost, m.trainer, m.history = true, Trainer{}, nil
	case "cut":
		m.mute = true
	case "expire": // its lease runs out and no leader hears it; it still reads and hears
		m.late = true
		s.step(m, Lease{false})
	case "renew":
		m.late = false
		s.step(m, Lease{true})
	case "hear": // hear VOTER GENERATION STEP: one vote, also an old one
		return p.hear(args, m)
	case "join-again":
		m.mute = false
		s.step(m, Lease{true})
	case "not-ok":
		m.notOK = true
	case "insist-not-ok": // asks to vote again for the same step
		m.trainer.Request.OK = false
		s.see(m)
	case "kill-at": // kill-at STEP SLOT: its trainer dies while it computes the slot
		step, _ := strconv.Atoi(args[0])
		slot, _ := strconv.Atoi(args[1])
		m.evidence = append(m.evidence, phalanx.Evidence{Kind: phalanx.TrainerExited, About: m.me, Source: m.me.Member, Step: phalanx.Step(step), Slot: phalanx.Slot(slot), Working: true, Detail: "signal 11"})
		s.stop(m)
	case "cannot":
		for _, a := range acts {
			if slices.Contains(args, a.name) && a.can(s, m) {
				return fmt.Errorf("%s can %s", m.me, a.name)
			}
		}
		p.say("%s cannot %s", m.me.Member, strings.Join(args, " or "))
	case "flip":
		m.flip = true
	case "drain":
		s.append(Drain{Member: m.me.Member, Why: "asked by an operator"})
	case "quarantine":
		s.append(Quarantine{Member: m.me.Member, Evidence: phalanx.Evidence{Kind: phalanx.Asked, About: m.me, Source: m.me.Member}})
	case "lift":
		s.append(Lift{Member: m.me.Member, Why: "it was tested"})
	case "quit":
		m.quit = true
	case "slab":
		m.slabs[m.trainer.Label] = m.history
		p.say("%s keeps a copy of step %d in host memory", m.me.Member, m.trainer.Label.Step)
	case "not-ready":
		m.evidence = append(m.evidence, phalanx.Evidence{Kind: phalanx.NotReady, About: m.me, Source: "the leader"})
	case "suspect":
		m.evidence = append(m.evidence, phalanx.Evidence{Kind: phalanx.Unreachable, About: m.me, Source: "the leader"})
	case "unsuspect":
		m.evidence = nil
	case "ask": // an ordinary seal, of this member alone
		s.step(m, SealAsked{Generation: s.state().World.Generation})
	case "lose-seal": // what a page that is not durable would do
		m.page.Sealed = phalanx.Generation{}
	case "heal-broken":
		if m.heal == nil {
			return errors.New("it does not heal")
		}
		g := m.heal.Generation
		m.heal = nil
		s.step(m, HealBroken{g, "the bytes do not have the source's digest"})
	case "hold":
		for _, name := range args {
			m.held[name] = true
		}
	case "free":
		clear(m.held)
	case "do":
		for _, name := range args {
			if err := p.do(name, m); err != nil {
				return err
			}
		}
		p.say("%s: %s %s, vote %d, sealed %s", m.me.Member, m.machine.State(), where(m), m.page.Vote.Step, m.page.Sealed)
	default:
		return errors.New("unknown command")
	}
	return nil
}

func (p *player) hear(args []string, m *simMember) error {
	if len(args) != 3 {
		return errors.New("hear VOTER GENERATION STEP MEMBER")
	}
	g, err := phalanx.ParseGeneration(args[1])
	step, _ := strconv.Atoi(args[2])
	id := phalanx.MemberID(args[0])
	v, world := p.sim.ballot(id, g, phalanx.Step(step)), p.sim.worldOf(g)
	if err != nil || v == nil || world == nil || world.SeatOf(id) == nil {
		return fmt.Errorf("%s has not voted for step %s in %s", id, args[2], args[1])
	}
	p.sim.step(m, PeerVoted{world.SeatOf(id).Rank, *v})
	return nil
}

func where(m *simMember) string {
	if !m.trainer.Holds {
		return "has no state"
	}
	text := fmt.Sprintf("at %d", m.trainer.Label.Step)
	if m.trainer.moving() {
		text += fmt.Sprintf(" applying %d", m.trainer.Applying)
	}
	return text
}

func (p *player) do(name string, m *simMember) error {
	i := slices.IndexFunc(acts, func(a act) bool { return a.name == name })
	if i < 0 {
		return fmt.Errorf("unknown act %s", name)
	}
	if !acts[i].can(p.sim, m) {
		return fmt.Errorf("%s cannot %s now", m.me, name)
	}
	acts[i].do(p.sim, m)
	return nil
}
