// SPDX-License-Identifier: Apache-2.0

// Package sim runs whole clusters in simulated time. The daemons of several hosts are the real ones, node.Run with its Raft, its
// gossip, its TLS and its machines; the trainers use the real client. Wires, disks of the log, memory of hosts, processes and
// clocks are simulated, inside one bubble of testing/synctest, and break by a schedule that a seed draws: see Run.
//
// docs/simulation.md says what is real and what is not, and how a seed is run again.
package sim
