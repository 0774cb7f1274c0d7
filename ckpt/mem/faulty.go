// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"phalanx/ckpt"
	"phalanx/ckpt/storewrap"
)

// Tests that make a store in memory fail find the words here: see package storewrap.
type (
	Verb   = storewrap.Verb
	Op     = storewrap.Op
	Fault  = storewrap.Fault
	Faulty = storewrap.Faulty
)

// The operations.
const (
	PutIfAbsent = storewrap.PutIfAbsent
	Put         = storewrap.Put
	PutIfMatch  = storewrap.PutIfMatch
	Get         = storewrap.Get
	Stat        = storewrap.Stat
	List        = storewrap.List
	Delete      = storewrap.Delete
)

// ErrKilled is what every operation returns after a fault with Kill.
var ErrKilled = storewrap.ErrKilled

// NewFaulty wraps a store, see storewrap.NewFaulty.
func NewFaulty(inner ckpt.Store, hook func(Op) Fault) *Faulty {
	return storewrap.NewFaulty(inner, hook)
}
