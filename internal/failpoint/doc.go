// SPDX-License-Identifier: Apache-2.0

// Package failpoint marks the places at which a crash matters: before and after each write that must survive it or that
// others see. In a build with the tag failpoints a process kills itself at a marked place when a test has armed it; in every
// other build Here is empty and the compiler drops the place.
//
// The variable PHALANX_FAILPOINTS names a folder. A place is armed by a file of its name there, whose content is the pid of the
// process that is to die, or nothing for whichever comes first. The process that dies takes the file away by giving it
// the suffix .hit, and writes its pid there: each arming kills one process once, its successor goes on, and a test sees that
// the place was reached and by whom.
//
// Each name stands in the source once, and in the table of the test in chaos, which has a job for it.
package failpoint

// Environment names the variable with the folder.
const Environment = "PHALANX_FAILPOINTS"

// HitSuffix is what the name of an armed place gets when a process dies there.
const HitSuffix = ".hit"
