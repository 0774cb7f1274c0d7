// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"phalanx"
)

// FuzzState: a state that is taken from a snapshot or a stream keeps the invariants, reads back as it is, and whoever works
// with it - a machine that reads it, a planner, any command - does not break.
func FuzzState(f *testing.F) {
	add := func(s *State) {
		b, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	add(NewState())
	for _, phase := range []string{"idle", "forming", "running", "halted", "ended", "finished"} {
		add(inPhase(f, phase))
	}
	f.Add([]byte(`{"version":1,"feature_level":1,"phase":"running","activated":true,"world":{"generation":1,"group_size":1,"slot_count":4,"seats":[{"member":"a/0","incarnation":1}]},"members":[{"member":"a/0","incarnation":1,"state":"active"}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"feature_level":1,"rewinds":[{"generation":1,"branch":1}],"branch":9}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := new(State)
		if json.Unmarshal(b, s) != nil || s.Validate() != nil {
			return
		}
		once, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again := new(State)
		if err := json.Unmarshal(once, again); err != nil {
			t.Fatalf("%s is not read back: %v", once, err)
		}
		if err := again.Validate(); err != nil {
			t.Fatalf("%s is not taken back: %v", once, err)
		}
		if twice, err := json.Marshal(again); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s is written back as %s, %v", once, twice, err)
		}
		for _, make := range tableCommands {
			after, _ := s.Apply(make(inPhase(t, "running")))
			if after.Seq != s.Seq+1 {
				t.Fatalf("seq %d after %d", after.Seq, s.Seq)
			}
		}
		for _, seat := range s.World.Seats {
			m := NewMachine(seat.Incarnate, NewState(), Page{})
			m.Adopt(Trainer{})
			m.Step(Read{s})
			m.Step(PeerVoted{seat.Rank, Vote{Generation: s.World.Generation, Step: s.Floor.Step + 1, OK: true}})
			m.Step(SealAsked{Generation: s.World.Generation})
		}
	})
}

// FuzzPlan: facts that members reported, whatever they say, lead to no panic, and what the planner proposes keeps the
// invariants when the state takes it.
func FuzzPlan(f *testing.F) {
	states := []*State{NewState()}
	for _, phase := range []string{"idle", "forming", "running", "halted", "ended", "finished"} {
		states = append(states, inPhase(f, phase))
	}
	add := func(facts Facts) {
		b, err := json.Marshal(facts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	add(Facts{})
	running := inPhase(f, "running")
	g := running.World.Generation
	holds := Possession{Trainer: true, Holds: true, Label: phalanx.Label{Step: 3, Generation: g}, Gradient: Gradient{Generation: g, Step: 4}}
	facts := Facts{Leader: "a/0", UnixNS: 5, Store: StoreFact{Known: true}}
	for _, id := range []phalanx.MemberID{"a/0", "b/0", "c/0", "d/0"} {
		facts.Members = append(facts.Members, MemberFact{Incarnate: who(id, 1), Host: id.Host(), Connected: true, Ready: true, Possession: holds,
			Slabs: []phalanx.Label{{Step: 2, Generation: g, Coordinate: 7}}, Answer: &Answer{Incarnate: who(id, 1), Generation: g, Possession: holds, Vote: &Vote{Generation: g, Step: 4, OK: true}}})
	}
	add(facts)
	facts.Round.Asked = true
	add(facts)
	facts.Members[1].Evidence = []phalanx.Evidence{{Kind: phalanx.TrainerExited, About: who("b/0", 1), Working: true, Step: 4, Slot: 1}}
	facts.Members[1].Dead, facts.Members[1].Answer = true, nil
	add(facts)
	spec := phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 1}
	f.Fuzz(func(t *testing.T, b []byte) {
		var facts Facts
		if json.Unmarshal(b, &facts) != nil {
			return
		}
		for _, s := range states {
			plan := Planner{Policy: Policy{Want: 2, Min: 1}, Spec: &spec}.Plan(s, &facts)
			if plan.Command == nil {
				continue
			}
			encoded, err := EncodeCommand(plan.Command)
			if err != nil {
				t.Fatalf("%+v is not written: %v", plan.Command, err)
			}
			c, err := DecodeCommand(encoded)
			if err != nil || reflect.TypeOf(c) != reflect.TypeOf(plan.Command) {
				t.Fatalf("%s is read as %T: %v", encoded, c, err)
			}
			after, err := s.Apply(c)
			if err != nil {
				continue
			}
			if err := Check(after); err != nil {
				t.Fatalf("%s: %v", encoded, err)
			}
		}
	})
}
