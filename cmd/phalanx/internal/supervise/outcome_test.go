// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"testing"

	"phalanx"
	"phalanx/node"
)

func TestConclude(t *testing.T) {
	done := node.Outcome{Done: true, Step: 9, Digest: phalanx.Digest{1, 2}}
	blank := node.Outcome{Done: true, Step: 9} // a member that had no state to digest, such as a spare
	other := node.Outcome{Done: true, Step: 9, Digest: phalanx.Digest{1, 3}}
	behind := node.Outcome{Done: true, Step: 8, Digest: phalanx.Digest{1, 2}}
	stopped := node.Outcome{Code: node.CodePreempted, Step: 5}
	failed := node.Outcome{Code: node.CodeFailed, Reason: "x"}
	left := node.Outcome{Step: 3}
	for _, c := range []struct {
		name string
		in   []node.Outcome
		code int
		done bool
	}{
		{"all done", []node.Outcome{done, done}, 0, true},
		{"done wins over a member that failed", []node.Outcome{failed, done, left}, 0, true},
		{"the digest of one that has it", []node.Outcome{blank, done}, 0, true},
		{"different digests", []node.Outcome{done, other}, node.CodeIntegrity, false},
		{"different steps", []node.Outcome{done, behind}, node.CodeIntegrity, false},
		{"stopped", []node.Outcome{stopped, left}, node.CodePreempted, false},
		{"a failure is told before a stop", []node.Outcome{stopped, failed, stopped}, node.CodeFailed, false},
		{"left", []node.Outcome{left, left}, 0, false},
		{"nobody", nil, node.CodeFailed, false},
	} {
		got := conclude(c.in)
		if got.Code != c.code || got.Done != c.done {
			t.Errorf("%s: got %+v", c.name, got)
		}
		if c.done && got.Digest != done.Digest {
			t.Errorf("%s: digest %s", c.name, got.Digest)
		}
	}
}
