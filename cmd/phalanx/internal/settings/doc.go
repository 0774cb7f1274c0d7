// SPDX-License-Identifier: Apache-2.0

// Package settings reads what a job is started with: flags, then PHALANX_* variables, then phalanx.toml, then defaults.
//
// All four name the same keys: the flag --hang-timeout is PHALANX_HANG_TIMEOUT and hang_timeout. Values have one text form
// and are parsed in one place, whatever they came from. The result is written to DIR/run.json, which is all that a daemon
// reads.
package settings
