// SPDX-License-Identifier: Apache-2.0

//go:build !race && !planted && !failpoints

package node

// turn is kept track of in builds for tests only.
type turn struct{}

func (turn) take()       {}
func (turn) give()       {}
func (turn) must(string) {}
