// SPDX-License-Identifier: Apache-2.0

// Package storetest holds the conformance suite of checkpoint stores: what ckpt.Store promises, as tests that every
// implementation runs.
package storetest
