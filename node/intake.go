// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"

	"phalanx/ckpt/intake"
)

// takeIn lets the trainer's program write and read checkpoints of its own choosing. In a job with steps they are those of a job
// beside it: the job's own chain is what it resumes from, and belongs to its leader.
func (d *Daemon) takeIn(mux *http.ServeMux) {
	policy := d.cfg.retain()
	s := &intake.Service{
		Store: d.store, Job: d.cfg.Job, Retain: &policy, Grace: d.cfg.GCGrace, By: string(d.cfg.Member()), Allowed: allowed, Log: d.log,
	}
	if d.plain == nil {
		s.Job, s.Own = d.cfg.Job+intake.Beside, d.cfg.Job
	}
	s.Register(mux)
	d.ends.Go(func() { <-d.ctx.Done(); s.Close() })
}
