// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"phalanx"
)

// implementers are the types of this package with the given unexported method: the members of a closed set.
func implementers(t *testing.T, method string) []string {
	t.Helper()
	var names []string
	for _, file := range sources(t) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != method {
				continue
			}
			if id, ok := f.Recv.List[0].Type.(*ast.Ident); ok {
				names = append(names, id.Name)
			}
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		t.Fatalf("no type has the method %s", method)
	}
	return names
}

// constants are the names of the constants of an enumeration, in order.
func constants(t *testing.T, enum string) []string {
	t.Helper()
	var names []string
	for _, file := range sources(t) {
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			of := ""
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if id, ok := v.Type.(*ast.Ident); ok {
					of = id.Name
				} else if len(v.Values) > 0 {
					of = ""
				}
				if of == enum {
					names = append(names, v.Names[0].Name)
				}
			}
		}
	}
	return names
}

func sources(t *testing.T) []*ast.File {
	t.Helper()
	var files []*ast.File
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func TestEnumsAreWhole(t *testing.T) {
	for _, c := range []struct {
		enum  string
		names []string
	}{{"Phase", phaseNames}, {"MemberState", memberStateNames}, {"LocalState", localNames}} {
		got := constants(t, c.enum)
		if len(got) != len(c.names) {
			t.Errorf("%s has the constants %v and the names %v", c.enum, got, c.names)
		}
		for i := range got {
			if name := strings.TrimPrefix(got[i], "Local"); i < len(c.names) && !strings.EqualFold(name, c.names[i]) {
				t.Errorf("%s %s is called %s", c.enum, got[i], c.names[i])
			}
		}
	}
	if len(Phases) != len(phaseNames) || len(LocalStates) != len(localNames) {
		t.Errorf("Phases %v and LocalStates %v do not list every value", Phases, LocalStates)
	}
	for _, p := range Phases {
		b, _ := p.MarshalText()
		var got Phase
		if err := got.UnmarshalText(b); err != nil || got != p {
			t.Errorf("phase %s reads back as %s: %v", p, got, err)
		}
	}
	for i := range memberStateNames {
		b, _ := MemberState(i).MarshalText()
		var got MemberState
		if err := got.UnmarshalText(b); err != nil || int(got) != i {
			t.Errorf("member state %s reads back as %s: %v", b, got, err)
		}
	}
	if err := new(Phase).UnmarshalText([]byte("paused")); err == nil {
		t.Error("an unknown phase is read")
	}
	if s := Phase(99).String(); s != "unknown(99)" {
		t.Errorf("phase 99 prints as %s", s)
	}
}

// documented returns the rows of the table in doc.go that begins with the given words, split at spaces.
func documented(t *testing.T, head string) [][]string {
	t.Helper()
	text, err := fs.ReadFile(os.DirFS("."), "doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	in := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//"))
		switch {
		case strings.HasPrefix(line, head):
			in = true
		case in && line == "":
			return rows
		case in:
			rows = append(rows, strings.Fields(line))
		}
	}
	t.Fatalf("doc.go has no table that begins with %q", head)
	return nil
}

// outcome is the word of the documents for an error of Apply.
func outcome(err error) string {
	for word, sentinel := range map[string]error{"illegal": ErrIllegal, "base": ErrBase, "floor": ErrFloor, "world": ErrWorld, "lineage": ErrLineage, "member": ErrMember} {
		if errors.Is(err, sentinel) {
			return word
		}
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// TestPhaseCommand walks every pair of phase and command and compares with the table of doc.go. The commands fit the present
// world, so that the phase alone decides.
func TestPhaseCommand(t *testing.T) {
	const head = "command             idle     forming  running  halted   ended    finished"
	want := map[string][]string{}
	for _, row := range documented(t, head) {
		want[row[0]] = row[1:]
	}
	columns := strings.Fields(head)[1:]
	if got := len(columns); got != len(Phases)+1 { // halted is walked twice: with and without an end
		t.Fatalf("%d phases are walked, there are %d", got, len(Phases))
	}
	commands := map[string]func(*State) Command{}
	for _, make := range tableCommands {
		commands[reflect.TypeOf(make(inPhase(t, "running"))).Name()] = make
	}
	for _, name := range implementers(t, "kind") {
		make := commands[name]
		if make == nil || len(want[name]) != len(columns) {
			t.Errorf("command %s has no row in the table of doc.go, or none here", name)
			continue
		}
		for i, column := range columns {
			s := inPhase(t, column)
			before := fmt.Sprintf("%+v", *s)
			after, err := s.Apply(make(s))
			if got := outcome(err); got != want[name][i] {
				t.Errorf("%s in phase %s: %s, documented is %s (%v)", name, column, got, want[name][i], err)
			}
			if fmt.Sprintf("%+v", *s) != before {
				t.Errorf("%s in phase %s changed the state in place", name, column)
			}
			if err != nil {
				s.Seq++
				if !reflect.DeepEqual(s, after) {
					t.Errorf("%s in phase %s was refused and changed more than Seq", name, column)
				}
			} else {
				mustHold(t, s, after)
			}
		}
	}
}

func mustHold(t testing.TB, before, after *State) {
	t.Helper()
	if err := errors.Join(Check(after), CheckStep(before, after)); err != nil {
		t.Errorf("after %d: %v", after.Seq, err)
	}
}

// admission is that of a member without a pin.
func admission(i phalanx.Incarnate) Admission { return Admission{Incarnate: i, Host: i.Member.Host()} }

// inPhase is a job of a/0 and b/0 with the spare c/0 and the quarantined d/0 in the phase of the given name.
func inPhase(t testing.TB, name string) *State {
	t.Helper()
	s := NewState()
	do := func(c Command) {
		t.Helper()
		next, err := s.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		mustHold(t, s, next)
		s = next
	}
	var members []Admission
	for _, id := range []phalanx.MemberID{"a/0", "b/0", "c/0", "d/0"} {
		members = append(members, admission(phalanx.Incarnate{Member: id, Incarnation: 1}))
	}
	do(AdmitMembers{Members: members, Spec: &phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 1}, Policy: &Policy{Want: 2, Min: 2}})
	do(Quarantine{Member: "d/0"})
	if name == "idle" {
		return s
	}
	do(formed(s, nil, "a/0", "b/0"))
	switch name {
	case "forming":
	case "running":
		do(Activate{Generation: s.World.Generation})
	case "halted":
		do(formed(s, &HaltReason{Kind: BelowMinimum, Words: "one is left"}, "a/0"))
	case "ended":
		do(Halt{Reason: HaltReason{Kind: StoppedByOperator, Words: "asked"}})
	case "finished":
		do(Done{Step: 9})
	default:
		t.Fatalf("no phase is called %s", name)
	}
	return s
}

// formed is the next generation of the given members at the present floor.
func formed(s *State, halt *HaltReason, ids ...phalanx.MemberID) FormGeneration {
	c := FormGeneration{Base: s.World.Generation, Floor: s.Floor, Source: Source{Kind: FromSeed}, Halt: halt, Cause: "test"}
	if len(c.Floor.Labels) == 0 {
		c.Floor = InitialFloor(1)
	}
	for _, seat := range s.World.Seats {
		c.Seals = append(c.Seals, seat.Incarnate)
	}
	c.World = phalanx.World{Generation: s.NextGeneration(c.Floor), GroupSize: 1, SlotCount: 4}
	deal, _ := phalanx.DealSlots(4, max(1, len(ids)))
	for r, id := range ids {
		c.World.Seats = append(c.World.Seats, phalanx.Seat{Incarnate: s.Member(id).Incarnate, Rank: phalanx.Rank(r), Group: r, Slots: deal[r]})
	}
	return c
}

var tableCommands = []func(*State) Command{
	func(*State) Command {
		return AdmitMembers{Members: []Admission{admission(phalanx.Incarnate{Member: "e/0", Incarnation: 1})}}
	},
	func(*State) Command {
		return EvictMembers{Evictions: []Eviction{{Incarnate: phalanx.Incarnate{Member: "c/0", Incarnation: 1}}}}
	},
	func(s *State) Command { return formed(s, nil, "a/0", "b/0", "c/0") },
	func(s *State) Command {
		return Rewind{FormGeneration: formed(s, nil, "a/0", "b/0", "c/0"), Branch: s.Branch + 1}
	},
	func(s *State) Command { return Activate{Generation: s.World.Generation} },
	func(s *State) Command {
		l := phalanx.Label{Step: 3, Generation: s.World.Generation, Digest: phalanx.Digest{1, 1}}
		return PublishCheckpoint{Published{Step: 3, Generation: l.Generation, Labels: []phalanx.Label{l}, Commit: 1}}
	},
	func(s *State) Command {
		return ReachLevel{Level: LevelMemory, Reached: Reached{Step: 3, Generation: s.World.Generation}}
	},
	func(*State) Command { return Quarantine{Member: "c/0"} },
	func(*State) Command { return Lift{Member: "d/0"} },
	func(*State) Command { return Drain{Member: "c/0"} },
	func(*State) Command { return Resize{Want: 3} },
	func(*State) Command { return Halt{Reason: HaltReason{Kind: StoppedByOperator}} },
	func(*State) Command { return Resume{Policy: &Policy{Want: 2, Min: 2}} },
	func(*State) Command { return Done{Step: 9} },
}

// TestLocalStateEvent walks every pair of local state and event and compares the state after it and the actions with the
// table of doc.go.
func TestLocalStateEvent(t *testing.T) {
	rows := documented(t, "state     event        then      actions")
	want := map[string]string{}
	for _, row := range rows {
		want[row[0]+" "+row[1]] = strings.Join(row[2:], " ")
	}
	if got := constants(t, "LocalState"); len(got) != len(LocalStates) {
		t.Fatalf("LocalStates does not list %v", got)
	}
	walked := map[string]bool{}
	for _, state := range LocalStates {
		for _, name := range implementers(t, "event") {
			m := inState(t, state)
			make := tableEvents[name]
			if make == nil {
				t.Fatalf("event %s is not walked", name)
			}
			acts := m.Step(make(m))
			got := []string{m.State().String()}
			for _, a := range acts {
				got = append(got, describeAction(a))
			}
			pair := state.String() + " " + name
			walked[pair] = true
			if want[pair] != strings.Join(got, " ") {
				t.Errorf("%-9s %-12s %-9s %s\n\tdocumented is: %s", state, name, got[0], strings.Join(got[1:], " "), want[pair])
			}
		}
	}
	for pair := range want {
		if !walked[pair] {
			t.Errorf("doc.go has a row for %s, which does not exist", pair)
		}
	}
}

func describeAction(a Action) string {
	name := reflect.TypeOf(a).Name()
	if w, ok := a.(WriteSeat); ok {
		name += [...]string{":park", ":run", ":heal", ":stop", ":fenced"}[w.Do]
	}
	return name
}

// inState is the machine of a/0 in the first world of a/0 and b/0, or of the spare c/0 for idle, brought to a state by events.
func inState(t *testing.T, state LocalState) *Machine {
	t.Helper()
	s := inPhase(t, "forming")
	g := s.World.Generation
	id := phalanx.MemberID("a/0")
	if state == LocalIdle {
		id = "c/0"
	}
	trainer := Trainer{Possession: Possession{Trainer: true, Holds: true, Label: phalanx.Label{Coordinate: AnyCoordinate}}}
	if state == LocalHealing {
		trainer.Label = phalanx.Label{Step: 2, Generation: phalanx.Generation{Number: 9}}
		trainer.Applying = 2
	}
	m := NewMachine(phalanx.Incarnate{Member: id, Incarnation: 1}, s, Page{})
	m.Adopt(trainer)
	m.Step(Lease{true})
	switch state {
	case LocalIdle, LocalForming:
	case LocalHealing, LocalReady:
		m.Step(Formed{g})
	case LocalRunning:
		m.Step(Formed{g})
		m.Step(tableEvents["Seen"](m))
	case LocalAborting:
		m.Step(Formed{g})
		m.Step(SealAsked{Generation: g})
	case LocalSealing:
		m.Step(Formed{g})
		m.Step(SealAsked{Generation: g})
		m.Step(WorkersLeft{g})
	}
	if m.State() != state {
		t.Fatalf("the machine is %s, want %s", m.State(), state)
	}
	return m
}

var tableEvents = map[string]func(*Machine) Event{
	"Read": func(m *Machine) Event {
		s, err := m.Log().Apply(formed(m.Log(), nil, "a/0", "b/0", "c/0"))
		if err != nil {
			return nil
		}
		return Read{s}
	},
	"Seen": func(m *Machine) Event {
		t := m.trainer
		g := m.Log().World.Generation
		d := phalanx.Digest{7, 7}
		t.Gradient = Gradient{Generation: g, Step: t.Label.Step + 1, Digest: d}
		t.Request = Vote{Generation: g, Step: t.Label.Step + 1, OK: true, Digest: d}
		return Seen{t}
	},
	"PeerVoted": func(m *Machine) Event {
		return PeerVoted{1, Vote{Generation: m.Log().World.Generation, Step: 1, OK: true, Digest: phalanx.Digest{7, 7}}}
	},
	"SealAsked":   func(m *Machine) Event { return SealAsked{Generation: m.Log().World.Generation} },
	"WorkersLeft": func(m *Machine) Event { return WorkersLeft{m.Log().World.Generation} },
	"Formed":      func(m *Machine) Event { return Formed{m.Log().World.Generation} },
	"HealBroken":  func(m *Machine) Event { return HealBroken{m.Log().World.Generation, "test"} },
	"Lease":       func(*Machine) Event { return Lease{true} },
}
