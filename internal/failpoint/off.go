// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package failpoint

// Here does nothing in this build.
func Here(string) {}
