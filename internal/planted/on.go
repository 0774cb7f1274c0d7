// SPDX-License-Identifier: Apache-2.0

//go:build planted

package planted

import (
	"os"
	"sync/atomic"
)

// Environment names the variable that switches a bug on in a process of its own.
const Environment = "PHALANX_PLANTED"

// EnvironmentHits names the variable with the path of a file that such a process makes when it reaches the bug.
const EnvironmentHits = "PHALANX_PLANTED_HITS"

type planting struct {
	bug  Bug
	hits atomic.Int64
	file string
}

var current atomic.Pointer[planting]

func init() {
	if b := Bug(os.Getenv(Environment)); b != "" {
		current.Store(&planting{bug: b, file: os.Getenv(EnvironmentHits)})
	}
}

// On reports whether the bug is switched on, and counts the question when it is.
func On(b Bug) bool {
	p := current.Load()
	if p == nil || p.bug != b {
		return false
	}
	if p.hits.Add(1) == 1 && p.file != "" {
		if f, err := os.OpenFile(p.file, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			f.Close()
		}
	}
	return true
}

// Plant switches one bug on in this process until the returned function is called, which switches it off and reports how
// often its place was reached. It is for one test at a time.
func Plant(b Bug) (remove func() (reached int64)) {
	p := &planting{bug: b}
	current.Store(p)
	return func() int64 {
		current.Store(nil)
		return p.hits.Load()
	}
}
