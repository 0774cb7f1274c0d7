// SPDX-License-Identifier: Apache-2.0

package phalanx

import (
	"encoding/json"
	"testing"
)

// TestPin: in JSON a pin is the coordinate; -1 and nothing at all are no pin.
func TestPin(t *testing.T) {
	type holder struct {
		Pin Pin `json:"pin,omitempty"`
	}
	for text, want := range map[string]Pin{`{}`: AnyPlace, `{"pin":-1}`: AnyPlace, `{"pin":null}`: AnyPlace, `{"pin":0}`: PinTo(0), `{"pin":7}`: PinTo(7)} {
		var h holder
		if err := json.Unmarshal([]byte(text), &h); err != nil || h.Pin != want {
			t.Errorf("%s is %v, %v; want %v", text, h.Pin, err, want)
		}
		b, err := json.Marshal(h)
		var again holder
		if err != nil || json.Unmarshal(b, &again) != nil || again != h || want == AnyPlace && string(b) != `{}` {
			t.Errorf("%v is written as %s, %v", h.Pin, b, err)
		}
	}
	for _, text := range []string{`{"pin":"0"}`, `{"pin":1.5}`, `{"pin":99999999999}`, `{"pin":{}}`} {
		var h holder
		if err := json.Unmarshal([]byte(text), &h); err == nil {
			t.Errorf("%s is taken as %v", text, h.Pin)
		}
	}
	if b, err := json.Marshal(AnyPlace); err != nil || string(b) != "-1" {
		t.Errorf("no pin is written as %s, %v", b, err)
	}
	for _, c := range []struct {
		pin   Pin
		valid bool
	}{{AnyPlace, true}, {PinTo(1), true}, {PinTo(2), false}, {PinTo(-5), true}, {Pin(-3), false}} {
		if c.pin.Valid(2) != c.valid {
			t.Errorf("%v in groups of two: %v", c.pin, !c.valid)
		}
	}
	if !AnyPlace.Fits(3) || !PinTo(3).Fits(3) || PinTo(3).Fits(2) {
		t.Error("a pin fits its coordinate alone, none fits all")
	}
}
