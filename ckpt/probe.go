// SPDX-License-Identifier: Apache-2.0

package ckpt

import "context"

// Probe is what trying a store out has shown. It is what `phalanx store probe` prints.
type Probe struct {
	// Store is the kind of the store and its place, without secrets.
	Store     string    `json:"store"`
	Abilities []Ability `json:"abilities"`
	// Capabilities is what follows for programs.
	Capabilities Capabilities `json:"capabilities"`
}

// Ability is one thing that a store can do or not.
type Ability struct {
	Name   string `json:"name"`
	Has    bool   `json:"has"`
	Detail string `json:"detail,omitempty"` // how it is done, or what the store answered
	Lost   string `json:"lost,omitempty"`   // what does not hold without it, when it is missing
}

// Missing are the abilities that the store does not have.
func (p *Probe) Missing() []Ability {
	var missing []Ability
	for _, a := range p.Abilities {
		if !a.Has {
			missing = append(missing, a)
		}
	}
	return missing
}

// Prober is a store that can be tried out. Probe ends within seconds. It may write one object of a random name, which it
// deletes. Its error is the first thing that makes the store unusable.
type Prober interface {
	Probe(ctx context.Context) (*Probe, error)
}
