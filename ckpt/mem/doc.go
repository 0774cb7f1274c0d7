// SPDX-License-Identifier: Apache-2.0

// Package mem is a checkpoint store in memory, for tests and simulations, with the words of storewrap.Faulty, which makes any
// store fail on purpose: before an operation, after it, or for good from some operation on.
package mem
