// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package node

// failpoint marks a place where a crash matters. Builds with the tag failpoints end the process there when asked to.
func failpoint(string) {}
