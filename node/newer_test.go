// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"

	"phalanx/elastic"
)

// TestCommandOfANewerRelease: a daemon that reads a command that it does not know ends, with the code that says so, whichever
// way the command came.
func TestCommandOfANewerRelease(t *testing.T) {
	command := []byte(`{"v": 1, "kind": "of tomorrow", "body": {}}`)
	d := &Daemon{log: quiet()}
	d.ctx, d.cancel = context.WithCancelCause(t.Context())
	u := &upstream{d: d}
	if _, err := u.receive(&Message{Entries: []Entry{{Seq: 1, Command: command}}}, elastic.NewState()); err == nil {
		t.Error("the command was taken")
	}
	replica := newReplica()
	unknown, ok := replica.Apply(command).(unknownCommand)
	if !ok {
		t.Fatal("the replica has applied it")
	}
	for way, err := range map[string]error{"stream": context.Cause(d.ctx), "log": logProblem(unknown.Halt())} {
		var p *Problem
		if !errors.As(err, &p) || p.Code != CodeNewer || p.Hint == "" {
			t.Errorf("%s: %v, want a problem with code %d", way, err, CodeNewer)
		}
	}
}
