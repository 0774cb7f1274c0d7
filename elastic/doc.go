// SPDX-License-Identifier: Apache-2.0

// Package elastic decides. It holds three pure machines and does no I/O: State.Apply is the replicated state, Planner.Plan
// the leader's policy, Machine.Step each daemon's own machine.
package elastic
