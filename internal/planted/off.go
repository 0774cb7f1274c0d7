// SPDX-License-Identifier: Apache-2.0

//go:build !planted

package planted

// On reports whether the bug is switched on: never in this build.
func On(Bug) bool { return false }
