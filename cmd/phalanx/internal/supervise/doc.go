// SPDX-License-Identifier: Apache-2.0

// Package supervise is `phalanx run`: it holds up the daemons of one host and says how the job ended.
//
// It decides nothing about training. It starts one daemon per member in a process group of its own, starts again what dies
// without an outcome, passes signals on, and prints what the trainers write. It may be killed at any moment: daemons and
// trainers go on, and the next run attaches to them. For that it rests on files and pidfds, not on being a parent:
//
//	DIR/run.lock                flock, held while a run lives; its content is the holder's pid
//	DIR/run.json                the settings of the job, the only thing that daemons read
//	DIR/members/I/daemon.json   pid, start time and socket of a daemon, written by it
//	DIR/members/I/outcome.json  how the job ended for a member; a daemon that ends without it is started again
//	DIR/members/I/failure.json  why a daemon could not start or go on; for messages
//	DIR/log/                    output of trainers (HOST.INDEX.INCARNATION.log) and daemons (daemon.HOST.INDEX.log)
//
// The life of a daemon as run sees it:
//
//	     start                 dies without outcome, less than 5 quick deaths in a row
//	none ─────▶ living ◀────────────────────────────────────────┐
//	              │ dies ───────────────────────────────────────┤
//	              │ dies with outcome                            │ 5 quick deaths in a row
//	              ▼                                              ▼
//	            ended                                          failed: run stops the others and ends
//
// One goroutine, Run's loop, owns all state. A watcher per daemon waits on its pidfd, stop requests run beside the loop, and
// the follower alone writes to stdout.
package supervise
