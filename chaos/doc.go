// SPDX-License-Identifier: Apache-2.0

// Package chaos proves the promises over real processes: its tests build phalanx and phalanx-lm, start jobs, kill, stop and
// starve what belongs to them, and compare the end with that of a run that nobody touched.
//
// Each test has a job of its own in a folder of its own and signals only processes that this job named. What a promise says is
// asserted from the job's own history (phalanx status --explain) and from the digest of the parameters, never from times.
//
// Fail points (internal/failpoint) end a process at a chosen instruction. The programs are built once more for them, and a table
// says how a job reaches each; a test compares it with the source.
package chaos
