// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"

	"phalanx/node"
)

// conclude is how the job ended for this host, from how it ended for each of its members. A job that is done is done, also
// when single members could not go on; members that report different digests of it are the worst there is.
func conclude(outcomes []node.Outcome) node.Outcome {
	var done, bad *node.Outcome
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case o.Done && done != nil && !o.Digest.IsZero() && !done.Digest.IsZero() && (o.Digest != done.Digest || o.Step != done.Step):
			return node.Outcome{Code: node.CodeIntegrity, Step: o.Step, Generation: o.Generation,
				Reason: fmt.Sprintf("members of this host ended with different states: step %d digest %s, and step %d digest %s", done.Step, done.Digest, o.Step, o.Digest),
				Hint:   "keep the directory; phalanx ckpt verify says what was saved"}
		case o.Done && (done == nil || done.Digest.IsZero()):
			done = o
		case !o.Done && o.Code != 0 && (bad == nil || bad.Code == node.CodePreempted && o.Code != node.CodePreempted):
			bad = o
		}
	}
	switch {
	case done != nil:
		return *done
	case bad != nil:
		return *bad
	case len(outcomes) > 0:
		return outcomes[0] // left in order, all of them
	}
	return node.Outcome{Code: node.CodeFailed, Reason: "no member of this host has an outcome"}
}
