// SPDX-License-Identifier: Apache-2.0

// Command phalanx-lm is the reference trainer: a small byte-level language model that trains under `phalanx run`, and the
// smallest program that shows all that a trainer owes its job.
//
//	phalanx run ... -- phalanx-lm --steps 300 --seed 7
//	phalanx-lm --alone --steps 300 --seed 7        the same bits in one process
//
// Whatever members come and go, the final line
//
//	final step=300 digest=HEX
//
// is the one that --alone prints, to the last bit. What makes it so: samples are a function of (step, slot); each slot is
// computed by itself; slots are summed in a fixed tree; the optimizer reads the state and the gradient only.
//
// Exit codes: 0 the last step is committed, 1 failure, 2 wrong flags or settings, 75 told to leave before the end.
package main
