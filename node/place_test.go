// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// TestOtherTraining: what a hello is refused for, with the words that its trainer prints.
func TestOtherTraining(t *testing.T) {
	spec := phalanx.JobSpec{LastStep: 9, Slots: 4, GlobalBatch: 4, GroupSize: 2}
	box := func(c int) []phalanx.TensorInfo {
		return []phalanx.TensorInfo{{Name: "w", DType: "f32", Shape: []int{3}, Global: &phalanx.Global{Shape: []int{6}, Offset: []int{3 * c}}}}
	}
	alike := &elastic.State{Spec: &spec, State: box(0)}
	cut := &elastic.State{Spec: &spec, Layouts: [][]phalanx.TensorInfo{box(0), nil}}
	other := spec
	other.Seed = 5
	for name, c := range map[string]struct {
		state  *elastic.State
		spec   phalanx.JobSpec
		pin    phalanx.Pin
		layout []phalanx.TensorInfo
		words  string
	}{
		"the first of the job":        {&elastic.State{}, spec, phalanx.PinTo(1), box(1), ""},
		"beyond its own groups":       {&elastic.State{}, spec, phalanx.PinTo(2), box(1), "coordinate 2 in groups of 2"},
		"another job":                 {cut, other, phalanx.PinTo(0), box(0), "seed is 5"},
		"the same as others":          {alike, spec, phalanx.AnyPlace, box(0), ""},
		"at a coordinate too":         {alike, spec, phalanx.PinTo(1), box(0), ""},
		"not the same":                {alike, spec, phalanx.AnyPlace, box(1), "another state"},
		"no coordinate":               {cut, spec, phalanx.AnyPlace, box(0), "ask for its place"},
		"a coordinate that is known":  {cut, spec, phalanx.PinTo(0), box(0), ""},
		"cut in another way":          {cut, spec, phalanx.PinTo(0), box(1), "another state than the job has at coordinate 0"},
		"the first of its coordinate": {cut, spec, phalanx.PinTo(1), box(1), ""},
	} {
		why := otherTraining(c.state, &c.spec, c.pin, c.layout)
		if (why == "") != (c.words == "") || !strings.Contains(why, c.words) {
			t.Errorf("%s: %q, want %q", name, why, c.words)
		}
	}
}

// TestRecutLabels: all members make the same labels of a checkpoint that is cut anew, and other ones for each coordinate and each cut.
func TestRecutLabels(t *testing.T) {
	stored := []phalanx.Label{{Step: 4, Generation: phalanx.Generation{Number: 2}, Digest: phalanx.Digest{1, 2}}, {Step: 4, Generation: phalanx.Generation{Number: 2}, Digest: phalanx.Digest{3, 4}, Coordinate: 1}}
	if got := recutLabels(stored, 2); &got[0] != &stored[0] {
		t.Error("labels of the same cut are others")
	}
	seen := map[phalanx.Digest]bool{}
	for _, size := range []int{1, 3, 4} {
		for c, l := range recutLabels(stored, size) {
			if l.Step != 4 || l.Generation != stored[0].Generation || l.Coordinate != c || seen[l.Digest] || l.Digest.IsZero() {
				t.Errorf("in groups of %d at %d: %s", size, c, l)
			}
			seen[l.Digest] = true
			if again := recutLabels(stored, size)[c]; again != l {
				t.Errorf("%s and %s", l, again)
			}
		}
	}
	if len(seen) != 8 || recutLabels(nil, 3) != nil {
		t.Errorf("%d labels", len(seen))
	}
}

// TestRegistrationIsDamaged: a daemon that takes over believes no damaged registration, and misses none that there never was.
func TestRegistrationIsDamaged(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	if findRegistration(p, 0, 1) != nil {
		t.Error("one that never was is found")
	}
	h := hello()
	if err := keepRegistration(p, 0, 1, h); err != nil {
		t.Fatal(err)
	}
	if x := findRegistration(p, 0, 1); x == nil || x.Spec != h.Spec || len(x.State) != len(h.State) {
		t.Errorf("found %+v", x)
	}
	for n, text := range []string{"", "{", "{}", `{"spec":7}`, strings.Repeat("\x00", 100)} {
		r, err := p.memory.CreateRegion(p.Shared(0, phalanx.Incarnation(10+n), registered), 4096)
		if err != nil {
			t.Fatal(err)
		}
		copy(r.Bytes(), text)
		if err := r.Unmap(); err != nil {
			t.Fatal(err)
		}
		if x := findRegistration(p, 0, phalanx.Incarnation(10+n)); x != nil {
			t.Errorf("%.10q is found as %+v", text, x)
		}
	}
	p.Remove(0, 1)
	if _, err := os.Stat(p.Shared(0, 1, registered)); !os.IsNotExist(err) {
		t.Errorf("it is left: %v", err)
	}
}

// TestHelloNamesItsCoordinate: −1 and nothing mean any.
func TestHelloNamesItsCoordinate(t *testing.T) {
	for text, want := range map[string]phalanx.Pin{`{}`: phalanx.AnyPlace, `{"coordinate":-1}`: phalanx.AnyPlace, `{"coordinate":0}`: phalanx.PinTo(0)} {
		var h wire.Hello
		if err := json.Unmarshal([]byte(text), &h); err != nil || h.Coordinate != want {
			t.Errorf("%s: %s, %v", text, h.Coordinate, err)
		}
	}
}
