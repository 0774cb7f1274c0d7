// SPDX-License-Identifier: Apache-2.0

// Command bench measures the core on one machine: how long a job takes to go on after a kill, what the step protocol
// costs, and how fast the daemons reduce.
//
// Recovery is measured from outside, with the built programs and the reference trainer, out of the job's own history. What
// that history cannot show is measured by trainers of its own: the same program, started by phalanx run as `bench trainer`,
// which computes nothing and writes down when each part of a step was over. All times are of CLOCK_REALTIME of one machine.
package main
