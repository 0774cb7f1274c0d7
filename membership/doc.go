// SPDX-License-Identifier: Apache-2.0

// Package membership watches who is there: processes of this host, kernels of other hosts, and members by gossip. It
// decides nothing about the world. What it hands out is evidence, or a hint, and only a log entry evicts.
//
//	source                         file            says                                        strength
//	pidfd                          procwatch.go    this process of my host has ended           proof
//	/proc/PID/stat                 stat.go         it is stopped, a zombie, another one        proof
//	samples of state and CPU time  stopped.go      stopped for so long without a break         proof
//	TCP connect and TCP_INFO       probe.go        that kernel answers, or is silent to me     testimony
//	several observers together     hostsilent.go   that host is silent to all who looked       proof by agreement
//	arrival times                  arrivals.go     later than it used to be: yellow, red       testimony
//	memberlist                     gossip.go       alive, dead, left                           hint
//
// Arrivals, Stopped, Lateness and JudgeHost are pure: they take the present time as a parameter and start nothing.
// ProcWatch, Gossip and Transport own goroutines, which end before their Close returns, memberlist's own timers and
// running exchanges excepted: those end within its TCP timeout.
//
// Gossip is a hint for three reasons. Whoever holds the gossip key may speak for anyone. A burst of load makes false
// deaths. And memberlist never heals a cut that lasted longer than its suspicion and its gossip to the dead: the
// reconciler here joins the roster's silent addresses again every five seconds, from both sides.
package membership
