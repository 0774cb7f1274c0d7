// SPDX-License-Identifier: Apache-2.0

// Command phalanx runs training jobs that outlive the failure of any of their members, and looks into them.
//
// Its surfaces are written down in docs/cli.md. Verbs are small files of this package; what `phalanx run` does is in
// internal/supervise, how settings are found in internal/settings, how daemons are asked in internal/control.
package main
