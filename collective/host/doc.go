// SPDX-License-Identifier: Apache-2.0

// Package host reduces gradients on the CPU. It runs in the daemons: one [Engine] for each daemon, and so for each rank.
// The trainers write inputs into their segments (shared memory) and read results there; the engines of one host read each
// other's segments directly, engines of different hosts exchange frames over a [Link].
package host
