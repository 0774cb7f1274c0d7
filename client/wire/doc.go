// SPDX-License-Identifier: Apache-2.0

// Package wire is what a trainer and its daemon share: the control page, the bells, the segment, the slab, and the words
// of the one socket call at the start.
//
// # Cells
//
// The page outlives the daemon and either side may be killed at any instruction, so a payload is never half written. A
// cell holds two copies and one word, (count << 1) | current copy. The writer fills the other copy, then flips the word;
// the reader loads the word, copies the payload and loads the word again: the same word means a good copy. Each cell has
// one writer. Everything is loaded and stored as atomic 64-bit words, which makes the same code right over a mapping shared
// by processes and over heap memory shared by goroutines.
//
// # Bells
//
// A process waits on one word, its bell. Who writes a field adds one to the bell of its reader and wakes it; who waits
// remembers the count it saw before it looked at the fields, so no ring is lost.
//
// # Layout
//
// page.toml is the only source; layout_gen.go, and in python csrc/phalanx_page.h and _page.py, are printed from it. The layout only
// grows; an unknown major version is refused. testdata holds replays for clients in other languages.
package wire

//go:generate go run ./gen
