// SPDX-License-Identifier: Apache-2.0

package kernels

import "sync/atomic"

// Path says which implementation runs.
type Path int32

const (
	// Best is the fastest implementation that this processor has; the default.
	Best Path = iota
	// Generic is plain Go.
	Generic
)

// forced is the path that Force chose.
var forced atomic.Int32

// Force makes all calls of this process take one path until restore is called. It is for tests that compare bits.
func Force(p Path) (restore func()) {
	before := forced.Swap(int32(p))
	return func() { forced.Store(before) }
}

// Accelerated reports whether Best differs from Generic on this machine.
func Accelerated() bool { return haveAVX2 }

func best() bool { return haveAVX2 && Path(forced.Load()) == Best }
