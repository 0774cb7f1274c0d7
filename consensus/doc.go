// SPDX-License-Identifier: Apache-2.0

// Package consensus replicates commands in one order on a few daemons of a job: Raft, wrapped and watched.
//
// A [Log] is one server of the group. It hands every committed command to a [Machine] and, right after, to
// Config.OnApply; a command is counted by its sequence number (Seq), which is the same on all replicas. What the commands
// mean is not known here.
//
//	            Propose                        OnApply (every replica, in order)
//	               |                                   ^
//	+--------------v-----------------------------------|---------+
//	|  raft: election, replication      fsm: Seq, ring, snapshot |
//	|     |                |                  |                  |
//	|  guard: deadline   transport: match     Machine            |
//	|     |              index, last round                       |
//	+-----|----------------|-------------------------------------+
//	   log.db          StreamLayer (mutual TLS, made by the caller)
//
// What the wrapper adds, and why:
//
//   - A leader whose disk hangs keeps sending heartbeats, so nobody else is ever elected. The guard gives every write a
//     deadline and writes a canary when idle; when one is missed, the server closes its connections, stops and says so on
//     Failed. It is for the caller to report it and to open anew.
//   - AddVoter counts a blank voter at once. Promote refuses a server that has not been seen close to the commit index;
//     the match index is read off the answers to AppendEntries.
//   - A leadership transfer to a follower that is behind can block the leader for good. Transfer picks a caught-up target,
//     runs alone, and gives the server up when the library stays in a transfer for too long.
//   - A heartbeat that was under way may answer a verification that began later. VerifyLeader counts only rounds that
//     began after the call, since leases rest on it.
//   - A follower forgets its leader only after its own timeout. Hasten lowers it when the leader may be dead; this is undone
//     by itself when a leader is found. Stand needs no timeout at all, and is for a leader whose end is proven.
//   - Leadership is reported only after a barrier of the own term was applied, so that who acts on it sees every
//     command that an earlier leader committed.
//
// The identity of a server lives inside its log store and is lost with it: a server that comes back without its log is
// another server. Addresses come from Config.Addresses each time a connection is made, never from the stored
// configuration.
//
// [PlanVoters] decides which daemons should vote; it is a pure function, and Perform carries out one of its changes.
package consensus
