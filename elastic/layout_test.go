// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"phalanx"
)

// part is the layout of a coordinate: a box of the tensor w.
func part(coordinate, groupSize int) []phalanx.TensorInfo {
	return []phalanx.TensorInfo{{Name: "w", DType: "f32", Shape: []int{2}, Global: &phalanx.Global{Shape: []int{2 * groupSize}, Offset: []int{2 * coordinate}}}}
}

func pinned(id phalanx.MemberID, coordinate int, layout []phalanx.TensorInfo) Admission {
	return Admission{Incarnate: who(id, 1), Host: id.Host(), Pin: phalanx.PinTo(coordinate), Layout: layout}
}

// pinnedJob has groups of two; a/0 is at coordinate 0 and b/0 at 1.
func pinnedJob(t *testing.T) *State {
	t.Helper()
	return do(t, NewState(), AdmitMembers{Spec: &phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 2}, Policy: &Policy{Want: 4, Min: 2},
		Members: []Admission{pinned("a/0", 0, part(0, 2)), pinned("b/0", 1, part(1, 2))}})
}

// TestLayoutsOfCoordinates: the first member of each coordinate brings its layout, and nobody takes part with another one.
func TestLayoutsOfCoordinates(t *testing.T) {
	first := func(members ...Admission) (*State, error) {
		return NewState().Apply(AdmitMembers{Spec: &phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 2}, Policy: &Policy{Want: 4, Min: 2}, Members: members})
	}
	for name, c := range map[string]struct {
		members []Admission
		ok      bool
	}{
		"one coordinate after the other": {[]Admission{pinned("a/0", 1, part(1, 2)), pinned("b/0", 0, part(0, 2))}, true},
		"one of the coordinates":         {[]Admission{pinned("a/0", 1, part(1, 2))}, true},
		"the second there says nothing":  {[]Admission{pinned("a/0", 0, part(0, 2)), pinned("b/0", 0, nil)}, true},
		"or the same":                    {[]Admission{pinned("a/0", 0, part(0, 2)), pinned("b/0", 0, part(0, 2))}, true},
		"but not something else":         {[]Admission{pinned("a/0", 0, part(0, 2)), pinned("b/0", 0, part(1, 2))}, false},
		"the first there says it":        {[]Admission{pinned("a/0", 0, part(0, 2)), pinned("b/0", 1, nil)}, false},
		"no coordinate":                  {[]Admission{pinned("a/0", 0, part(0, 2)), admission(who("b/0", 1))}, false},
		"no coordinate, first":           {[]Admission{admission(who("a/0", 1)), pinned("b/0", 0, part(0, 2))}, false},
		"beyond the group":               {[]Admission{pinned("a/0", 2, part(0, 2))}, false},
		"below":                          {[]Admission{{Incarnate: who("a/0", 1), Pin: -2, Layout: part(0, 2)}}, false},
		"a layout without a coordinate":  {[]Admission{{Incarnate: who("a/0", 1), Layout: part(0, 2)}}, false},
		"an empty layout":                {[]Admission{pinned("a/0", 0, []phalanx.TensorInfo{}), pinned("b/0", 1, part(1, 2))}, true},
		"a pin where all are alike":      {[]Admission{admission(who("a/0", 1)), pinned("b/0", 1, nil)}, true},
	} {
		s, err := first(c.members...)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMember) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if err := Check(s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	s := pinnedJob(t)
	for name, c := range map[string]struct {
		pin    phalanx.Pin
		layout []phalanx.TensorInfo
		words  string
	}{
		"its own":                  {phalanx.PinTo(1), part(1, 2), ""},
		"the other one's":          {phalanx.PinTo(1), part(0, 2), "another state than the job has at coordinate 1"},
		"one of another cut":       {phalanx.PinTo(1), part(1, 3), "another state"},
		"no coordinate":            {phalanx.AnyPlace, part(1, 2), "ask for its place"},
		"a coordinate of no group": {phalanx.PinTo(2), part(1, 2), "groups of 2"},
	} {
		err := s.Register(c.pin, c.layout)
		if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
	}
	// A seat at another coordinate is refused.
	for _, order := range [][]phalanx.MemberID{{"a/0", "b/0"}, {"b/0", "a/0"}} {
		c := formed(s, nil, order...)
		c.World.GroupSize, c.Floor = 2, InitialFloor(2)
		for i := range c.World.Seats {
			c.World.Seats[i].Group, c.World.Seats[i].Coordinate = 0, i
			c.World.Seats[i].Slots = phalanx.SlotRange{End: 4}
		}
		_, err := s.Apply(c)
		if fits := order[0] == "a/0"; (err == nil) != fits || err != nil && !errors.Is(err, ErrWorld) {
			t.Errorf("seats of %v: %v", order, err)
		}
	}
}

// TestPinnedStatesSayTheirVersion: a log without pins is written as it always was, and one with pins in a way that older releases
// refuse instead of losing the pins.
func TestPinnedStatesSayTheirVersion(t *testing.T) {
	plain := inPhase(t, "running")
	b, err := json.Marshal(plain)
	if err != nil || plain.Version != 1 || plain.FeatureLevel != 1 || strings.Contains(string(b), "pin") || strings.Contains(string(b), "layouts") {
		t.Errorf("a state without pins, version %d: %s, %v", plain.Version, b, err)
	}
	for c, version := range map[string]int{
		`{"members":[{"member":"a/0","incarnation":1,"host":"a"}]}`:                     1,
		`{"members":[{"member":"a/0","incarnation":1,"host":"a","pin":0}]}`:             2,
		`{"members":[{"member":"a/0","incarnation":1,"host":"a","pin":1,"layout":[]}]}`: 2,
	} {
		got, err := DecodeCommand([]byte(`{"v":1,"kind":"admit_members","body":` + c + `}`))
		if err != nil {
			t.Fatal(err)
		}
		b, err := EncodeCommand(got)
		if err != nil || !strings.HasPrefix(string(b), fmt.Sprintf(`{"v":%d,`, version)) {
			t.Errorf("%s is written as %s, %v; want version %d", c, b, err, version)
		}
		again, err := DecodeCommand(b)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s reads back as %+v, %v", b, again, err)
		}
	}
	s := pinnedJob(t)
	b, err = json.Marshal(s)
	var again State
	if err != nil || s.Version != 2 || json.Unmarshal(b, &again) != nil || again.Validate() != nil || !reflect.DeepEqual(&again, s) {
		t.Errorf("version %d: %s reads back as %+v, %v", s.Version, b, again, err)
	}
	for name, spoil := range map[string]func(*State){
		"an old version":             func(s *State) { s.Version = 1 },
		"too few layouts":            func(s *State) { s.Layouts = s.Layouts[:1] },
		"a layout for all beside":    func(s *State) { s.State = part(0, 2) },
		"a member without a pin":     func(s *State) { s.Members[0].Pin = phalanx.AnyPlace },
		"a pin beyond the group":     func(s *State) { s.Members[0].Pin = phalanx.PinTo(2) },
		"a coordinate nobody has":    func(s *State) { s.Layouts[1] = nil },
		"a version that is to come":  func(s *State) { s.Version = FormatVersion + 1 },
		"a version before the first": func(s *State) { s.Version = 0 },
	} {
		bad := pinnedJob(t).clone()
		spoil(bad)
		if err := bad.Validate(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestPlanAdmitsWhoFits: the planner proposes no admission that the log would refuse.
func TestPlanAdmitsWhoFits(t *testing.T) {
	spec := &phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 2}
	ready := func(id phalanx.MemberID, pin phalanx.Pin, layout []phalanx.TensorInfo) MemberFact {
		return MemberFact{Incarnate: who(id, 1), Host: id.Host(), Connected: true, Ready: true, Possession: Possession{Trainer: true}, Pin: pin, Layout: layout}
	}
	zero, one := phalanx.PinTo(0), phalanx.PinTo(1)
	for name, c := range map[string]struct {
		state *State
		job   []phalanx.TensorInfo // what the first one heard of registered, if it had no coordinate
		facts []MemberFact
		want  string
	}{
		"all of them":                    {NewState(), nil, []MemberFact{ready("a/0", zero, part(0, 2)), ready("b/0", one, part(1, 2)), ready("c/0", zero, part(0, 2))}, "a/0 b/0 c/0"},
		"not the one with another cut":   {NewState(), nil, []MemberFact{ready("a/0", zero, part(0, 2)), ready("b/0", zero, part(0, 3))}, "a/0"},
		"nor one without coordinate":     {NewState(), nil, []MemberFact{ready("a/0", 0, part(0, 2)), ready("b/0", zero, part(0, 2))}, "b/0"},
		"nor a pinned one where all are": {NewState(), part(1, 2), []MemberFact{ready("a/0", 0, part(1, 2)), ready("b/0", zero, part(0, 2))}, "a/0"},
		"who says no layout waits":       {pinnedJob(t), nil, []MemberFact{ready("c/0", one, nil), ready("d/0", zero, part(1, 2))}, "c/0"},
	} {
		p := Planner{Spec: spec, State: c.job, Policy: Policy{Want: 4, Min: 2}}
		plan := p.Plan(c.state, &Facts{Members: c.facts})
		admit, ok := plan.Command.(AdmitMembers)
		var got []string
		for _, a := range admit.Members {
			got = append(got, string(a.Member))
		}
		if !ok || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v (%s), want %s", name, got, plan.Why, c.want)
			continue
		}
		if _, err := c.state.Apply(admit); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlaces: whoever starts together makes whole groups, and who comes later takes what is missing.
func TestPlaces(t *testing.T) {
	for name, c := range map[string]struct {
		groupSize  int
		had        map[phalanx.MemberID]int
		here, want string
	}{
		"in order":                {2, nil, "a/0 a/1 a/2 a/3", "0 1 0 1"},
		"over hosts":              {4, nil, "a/0 a/1 b/0 b/1", "0 1 2 3"},
		"what is missing":         {4, map[phalanx.MemberID]int{"a/0": 0, "a/1": 1}, "a/0 a/1 c/0 c/1", "0 1 2 3"},
		"a lost host's":           {2, map[phalanx.MemberID]int{"a/0": 1, "a/1": 1, "b/0": 0}, "a/0 a/1 b/0 c/0", "1 1 0 0"},
		"the first of the fewest": {3, map[phalanx.MemberID]int{"a/0": 0}, "a/0 b/0", "0 1"},
		"of another group size":   {2, map[phalanx.MemberID]int{"a/0": 5}, "a/0", "0"},
	} {
		pins := map[phalanx.MemberID]phalanx.Pin{}
		for id, coordinate := range c.had {
			pins[id] = phalanx.PinTo(coordinate)
		}
		var here []phalanx.MemberID
		for _, id := range strings.Fields(c.here) {
			here = append(here, phalanx.MemberID(id))
		}
		Places(here, pins, c.groupSize)
		var got []string
		for _, id := range slices.Sorted(maps.Keys(pins)) {
			got = append(got, fmt.Sprint(pins[id].Coordinate()))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}
