// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"phalanx/client/wire"
)

// stranger is a daemon that no leader answers and whose member the log does not know.
func stranger(t *testing.T) *Daemon {
	t.Helper()
	d := lone(t)
	d.up = &upstream{d: d, queue: make(chan *Message, 4)}
	d.state.Members = nil
	t.Cleanup(d.ends.Wait)
	return d
}

// Nobody evicts a member that the log does not know: its daemon ends by itself when its trainer was preempted.
func TestPreemptedTrainerEndsItsDaemon(t *testing.T) {
	d := stranger(t)
	d.trainerEnded(d.life.who, "exited with status 75", CodePreempted, time.Now())
	if d.outcome == nil || d.outcome.Code != CodePreempted {
		t.Errorf("outcome %+v", d.outcome)
	}
}

// A newcomer that the leader refuses ends with the reason; a member that the log knows keeps its page.
func TestRefusedNewcomerEnds(t *testing.T) {
	d := stranger(t)
	d.refusedByLeader("a living member has this name")
	if d.outcome == nil || d.outcome.Code != CodeLocked {
		t.Errorf("outcome %+v", d.outcome)
	}
	known := lone(t)
	known.refusedByLeader("a living member has this name")
	if known.outcome != nil || known.failed == "" {
		t.Errorf("outcome %+v, failed %q", known.outcome, known.failed)
	}
}

// A trainer that died is never replaced inside its incarnation, also before its end was heard of.
func TestSecondTrainerOfALifeIsRefused(t *testing.T) {
	d := lone(t)
	if _, refused := d.hello(hello()); refused == nil || refused.Code != wire.CodeBusy {
		t.Errorf("beside a living one: %+v", refused)
	}
	d.life.helloStart++ // its pid is another process's by now
	if _, refused := d.hello(hello()); refused == nil || refused.Code != wire.CodeFenced {
		t.Errorf("after a dead one: %+v", refused)
	}
}
