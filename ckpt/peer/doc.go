// SPDX-License-Identifier: Apache-2.0

// Package peer fetches a training state from live members: a heal.
//
// The state's bytes are cut into ranges. Each donor begins with a contiguous run of them, read in order by a few readers; a
// donor that has finished its own takes from the end of the longest run that is left, and when nothing is left it reads
// again what another has been reading longest. The first answer for a range is written, any later one is dropped, so a slow
// donor costs at most the ranges that it holds. A donor that fails gives its ranges back and is not asked again.
//
// Before the first byte the donors' tensor digests are compared: copies that differ are no source. Afterwards the caller
// digests what it has, which covers the way from the donors' memory to its own.
//
// Schedule is the part that decides, without goroutine or clock; Fetch is the part that reads.
package peer
