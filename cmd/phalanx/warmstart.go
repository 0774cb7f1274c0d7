// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"phalanx/ckpt"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/node"
)

// checkWarmStart finds out, before anything is started, whether the checkpoint that a new job is to begin with can be read. What it
// holds is compared with what the trainers register once they have. A job that has something to go on from does not begin anew.
func (a *app) checkWarmStart(ctx context.Context, s *settings.Settings, store ckpt.Store, inUse bool) error {
	if inUse {
		say(a.stderr, "phalanx: --warm-start is for a new job: this one goes on with the state in %s\n", s.Dir)
		return nil
	}
	if s.Resume != "never" {
		latest, err := ckpt.Latest(ctx, store, s.Job)
		if err == nil {
			say(a.stderr, "phalanx: --warm-start is for a new job: this one goes on from its checkpoint of step %d in %s\n", latest.Record.Commit.Step, s.Store)
			return nil
		}
	}
	v, items, err := node.OpenWarmStart(ctx, s.Beginning())
	if err != nil {
		return convertError(err)
	}
	say(a.stderr, "phalanx: begins with %s of %s, format %s\n", plural(len(items), "tensor"), v.Place, v.Format)
	return nil
}
