// SPDX-License-Identifier: Apache-2.0

// Package lm is a small byte-level language model with everything that makes its training reproducible to the bit: a corpus
// with a hash, samples as a pure function of (step, slot), a model, an optimizer, and a training state that is a list of
// tensors.
//
//	byte embedding -> 32 bytes of context side by side -> one hidden layer -> logits of the next byte
//
// It knows nothing of worlds, ranks or the network. The same (seed, step, slot) gives the same gradient on every machine:
// all arithmetic is float32 or float64 in a fixed order; every product that is followed by an addition, be it statements
// later, is written as float32(x*y) or float64(x*y), which forbids the compiler to fuse the two; and exp and log are this
// package's own, because the standard library's have other last bits on processors with fused multiply-add. Square roots
// and quotients are correctly rounded everywhere.
package lm
