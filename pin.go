// SPDX-License-Identifier: Apache-2.0

package phalanx

import "strconv"

// Pin says at which coordinate alone a member may sit, because what its trainer registers is the shard of that one. The zero
// value is no pin: the member may take any coordinate. In JSON it is the coordinate, and -1, or left out, for none.
type Pin int

// AnyPlace is no pin.
const AnyPlace Pin = 0

// PinTo is the pin to a coordinate; a negative one is none.
func PinTo(coordinate int) Pin { return Pin(max(coordinate, -1) + 1) }

// Coordinate is where the member must sit, -1 when it may sit anywhere.
func (p Pin) Coordinate() int { return int(p) - 1 }

// Fits reports whether the member may sit at a coordinate.
func (p Pin) Fits(coordinate int) bool { return p == AnyPlace || p.Coordinate() == coordinate }

// Valid reports whether the pin is none, or to a coordinate of groups of the given size.
func (p Pin) Valid(groupSize int) bool { return p >= 0 && int(p) <= groupSize }

func (p Pin) String() string {
	if p == AnyPlace {
		return "any coordinate"
	}
	return "coordinate " + strconv.Itoa(p.Coordinate())
}

// MarshalJSON gives the coordinate.
func (p Pin) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(p)-1, 10), nil }

// UnmarshalJSON reads what MarshalJSON gives. Whether there is such a coordinate is for Valid to say.
func (p *Pin) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 32)
	if string(b) == "null" {
		n, err = -1, nil
	}
	if err == nil {
		*p = Pin(n + 1)
	}
	return err
}
