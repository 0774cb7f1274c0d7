// SPDX-License-Identifier: Apache-2.0

// Package explore visits every state that the step protocol can reach within some bounds, breadth first, with the machines
// that daemons run: elastic.State, elastic.Planner and elastic.Machine. Nothing of the protocol is written again here; this
// package is what is around the machines: a log that each member reads at its own pace, pages that outlive daemons, trainers,
// votes that arrive late or never, and leaders, any number of which act on the answers of any members.
//
//	frontier ──► events of a world ──► world after each ──► key ──► new? ──► next frontier
//	                                        │                          │
//	                          what broke a rule: its story     does its next step get committed?
//
// A world is copied to be changed; what did not change is shared. Visited worlds are kept as 128 bits of a key; worlds that go
// on alike, whatever their members are called, have one key. The way to a world is found again by following the keys from
// which each was reached first.
//
// The checks know what nobody in the job knows: every vote that was cast, every step that was decided, what each state was
// made of, and every seal that left a daemon. docs/explorer.md says what was explored.
package explore
