// SPDX-License-Identifier: Apache-2.0

// Package storewrap holds decorators: checkpoint stores that pass operations on to another one and add one thing.
//
//	Retry    tries again what heals by itself, within a budget, and finds out what became of a write with unknown outcome
//	Limit    bounds operations at a time, by what the store can bear, and bytes a second
//	Meter    tells an observer of every operation
//	Faulty   makes operations fail on purpose, for tests
//
// The order that makes sense, from the outside: Retry, Limit, Meter, the store. So every try takes a slot and is counted, and
// one that waits to be tried again holds no slot.
//
// All but Faulty read into memory of the caller when the store below does (ckpt.IntoGetter).
package storewrap
