// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"phalanx"
)

// TestWarmStart: step 0 of a job with a warm start is not what the seed makes. Who has just started reads it; a checkpoint of the job
// itself wins; what does not fit ends the job before its first step.
func TestWarmStart(t *testing.T) {
	warm := &WarmStart{Place: "/model", Renames: []string{"net.="}, Cast: true}
	p := Planner{Spec: &phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 1}, Policy: Policy{Want: 2, Min: 1}, WarmStart: warm}
	facts := func(store StoreFact) *Facts {
		f := &Facts{Store: store}
		for _, id := range []phalanx.MemberID{"a/0", "b/0"} {
			fresh := Possession{Trainer: true, Holds: true, Label: phalanx.Label{Coordinate: AnyCoordinate}}
			f.Members = append(f.Members, MemberFact{Incarnate: who(id, 1), Host: id.Host(), Connected: true, Ready: true, Possession: fresh})
		}
		return f
	}
	digest := phalanx.Digest{7, 8}
	found := StoreFact{Known: true, Warm: WarmFact{Digest: digest}}
	admit, ok := p.Plan(NewState(), facts(found)).Command.(AdmitMembers)
	if !ok || !reflect.DeepEqual(admit.WarmStart, warm) {
		t.Fatalf("the first admission brings %+v", admit)
	}
	s := do(t, NewState(), admit)
	b, err := json.Marshal(s)
	var again State
	if err != nil || s.Version != 2 || json.Unmarshal(b, &again) != nil || !reflect.DeepEqual(&again, s) {
		t.Errorf("version %d: %s, %v", s.Version, b, err)
	}

	form, ok := p.Plan(s, facts(found)).Command.(FormGeneration)
	if !ok || form.Source.Kind != FromWarmStart || form.Floor.Step != 0 || form.Floor.Labels[0].Digest != digest {
		t.Fatalf("the first world: %+v", form)
	}
	fresh := facts(found).Members[0].Possession
	if fresh.standsAt(form.Floor.Labels[0]) || !fresh.standsAt(phalanx.Label{}) {
		t.Error("who has just started stands where the checkpoint is, or not where the seed is")
	}
	next := do(t, s, form)
	m := NewMachine(who("a/0", 1), s, Page{})
	m.Step(Seen{Trainer{Possession: fresh}})
	heals := false
	for _, a := range m.Step(Read{next}) {
		h, ok := a.(Heal)
		heals = heals || ok && h.Source.Kind == FromWarmStart && h.Label == form.Floor.Labels[0]
	}
	if !heals {
		t.Error("who has just started does not read the checkpoint")
	}

	// Lost before its first step is over, the job begins with it again, and not with the seed.
	seal := &Answer{Incarnate: who("a/0", 1), Generation: next.World.Generation, Possession: fresh}
	f := facts(found)
	f.Round = Round{Asked: true}
	f.Members[0].Answer, f.Members[1].Dead, f.Members[1].Possession = seal, true, Possession{}
	if c, ok := p.Plan(next, f).Command.(FormGeneration); !ok || c.Source.Kind != FromWarmStart || c.Floor.Labels[0].Digest != digest {
		t.Errorf("after a loss at step 0: %+v", c)
	}

	wins := found
	wins.Published = &Published{Step: 4, Generation: phalanx.Generation{Number: 3}, Labels: []phalanx.Label{{Step: 4, Generation: phalanx.Generation{Number: 3}}}, Commit: 1}
	if c, ok := p.Plan(s, facts(wins)).Command.(Rewind); !ok || c.Source.Kind != FromStore || c.Floor.Step != 4 {
		t.Errorf("beside a checkpoint of the job: %+v", c)
	}
	misfit := StoreFact{Known: true, Warm: WarmFact{Problem: "missing: w"}}
	if c, ok := p.Plan(s, facts(misfit)).Command.(Halt); !ok || c.Reason.Kind != Misfit || !strings.Contains(c.Reason.Words, "missing: w") || !c.Reason.Kind.Ends() {
		t.Errorf("what does not fit: %+v", c)
	}
	for _, o := range []*WarmStart{nil, {Place: "/model"}, {Place: "/model", Renames: []string{"net.=x"}, Cast: true}, {Place: "/model", Renames: []string{"net.="}, Cast: true, Partial: true}} {
		if warm.Equal(o) || o.Equal(warm) || !o.Equal(o) {
			t.Errorf("%+v and %+v", warm, o)
		}
	}
}
