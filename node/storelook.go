// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
)

// lookIntoStore finds the newest restorable checkpoint of the job, or the one that --resume names.
func lookIntoStore(d *Daemon, groups int, s *elastic.State) elastic.StoreFact {
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	if d.cfg.Resume == "never" && s.World.Generation.IsZero() {
		return begins(ctx, d, s, elastic.StoreFact{Known: true})
	}
	records, problems, err := ckpt.List(ctx, d.store, d.cfg.Job)
	if err != nil {
		d.log.Warn("the store cannot be read", "error", err)
		return elastic.StoreFact{}
	}
	fact := elastic.StoreFact{Known: true}
	for _, x := range problems {
		if !damaged(x.Err) {
			d.log.Warn("the store cannot be read", "commit", x.Number, "error", x.Err)
			return elastic.StoreFact{}
		}
		fact.Unreadable = append(fact.Unreadable, x.Number)
	}
	for _, number := range absent(s.Published, records) {
		d.log.Warn("a published checkpoint is gone from the store", "commit", number)
		fact.Unreadable = append(fact.Unreadable, number)
	}
	step, _ := strconv.ParseUint(d.cfg.Resume, 10, 64)
	for i := len(records) - 1; i >= 0; i-- {
		r := records[i]
		if r.Commit == nil || step != 0 && s.World.Generation.IsZero() && uint64(r.Commit.Step) != step {
			continue
		}
		if len(r.Commit.States) > 0 && !s.OfLineage(r.Commit.States[0].Label) {
			continue // of a branch that a rewind left: it must not hide an older one of the lineage
		}
		cp, err := ckpt.Open(ctx, d.store, r.Commit)
		if err == nil {
			err = d.verifyQuickly(ctx, r, cp)
		}
		if err != nil && !damaged(err) {
			d.log.Warn("the store cannot be read", "commit", r.Number, "error", err)
			return elastic.StoreFact{}
		}
		if err != nil {
			d.log.Warn("a checkpoint cannot be restored", "commit", r.Number, "step", uint64(r.Commit.Step), "error", err, "next", "phalanx ckpt verify")
			fact.Unreadable = append(fact.Unreadable, r.Number)
			continue
		}
		p := &elastic.Published{Step: r.Commit.Step, Generation: r.Commit.Generation, Branch: int(r.Commit.Branch), Commit: r.Number, UnixNS: r.Commit.UnixNS}
		for _, st := range r.Commit.States {
			p.Labels = append(p.Labels, st.Label)
		}
		p.Labels = recutLabels(p.Labels, groups)
		fact.Published = p
		if s.Spec != nil {
			fact.OtherJob = otherJob(r.Commit, *s.Spec)
		}
		if fact.OtherJob == "" {
			fact.OtherJob = misfit(d.store, cp, s)
		}
		return fact
	}
	return begins(ctx, d, s, fact)
}

// begins adds what a job without a checkpoint is to begin with.
func begins(ctx context.Context, d *Daemon, s *elastic.State, fact elastic.StoreFact) elastic.StoreFact {
	if s.WarmStart == nil {
		return fact
	}
	warm, known := lookAtWarmStart(ctx, s)
	if !known {
		d.log.Warn("what the job is to begin with cannot be read", "error", warm.Problem)
		return elastic.StoreFact{}
	}
	fact.Warm = warm
	return fact
}

// otherJob says why a checkpoint cannot be what a job goes on from: it was trained with other settings, or further than the job
// goes. The number of steps may differ, and how the model is cut. A commit without settings tells nothing.
func otherJob(c *ckpt.Commit, spec phalanx.JobSpec) string {
	var stored phalanx.JobSpec
	if len(c.Spec) == 0 || json.Unmarshal(c.Spec, &stored) != nil {
		return ""
	}
	stored.LastStep, stored.GroupSize = spec.LastStep, spec.GroupSize
	switch diff := stored.Diff(spec); {
	case diff != "":
		return fmt.Sprintf("the store holds checkpoints of another training as job %s: %s", c.Job, diff)
	case c.Step > spec.LastStep:
		return fmt.Sprintf("the store holds step %d of job %s, which is to end with step %d", c.Step, c.Job, spec.LastStep)
	}
	return ""
}

// absent lists the numbers that the log calls published and under which the store, which was read whole, has no checkpoint:
// retention took it, or somebody removed it. They are as good as unreadable.
func absent(published []elastic.Published, records []ckpt.Record) []uint64 {
	var out []uint64
	for _, p := range published {
		if !slices.ContainsFunc(records, func(r ckpt.Record) bool { return r.Number == p.Commit && r.Commit != nil }) {
			out = append(out, p.Commit)
		}
	}
	return out
}

// damaged reports whether an error proves that a checkpoint cannot be restored. A store that is slow, out of reach or refuses
// access proves nothing: an older checkpoint, or none, must not be taken for it.
func damaged(err error) bool {
	for _, proof := range []error{ckpt.ErrCorrupt, ckpt.ErrNotFound, ckpt.ErrIncomplete, ckpt.ErrFormat} {
		if errors.Is(err, proof) {
			return true
		}
	}
	return false
}

// verifyQuickly reads a checkpoint whole while that takes little time: a rewind should not name what cannot be read. A large
// one, or one in a slow store, is verified while it is restored.
func (d *Daemon) verifyQuickly(ctx context.Context, r ckpt.Record, cp *ckpt.Checkpoint) error {
	var bytes int64
	for _, st := range cp.States() {
		bytes += st.Manifest.Bytes
	}
	if bytes > 1<<30 {
		return nil
	}
	quick, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	report, err := cp.VerifyAll(quick, nil)
	if quick.Err() != nil && ctx.Err() == nil {
		return nil
	}
	if err != nil {
		return err
	}
	d.recordVerified(ctx, r, report.OK())
	return report.Err()
}

// recordOf reads one commit object.
func recordOf(ctx context.Context, store ckpt.Store, job string, number uint64) (ckpt.Record, error) {
	b, err := store.Get(ctx, ckpt.CommitKey(job, number), 0, -1)
	if err != nil {
		return ckpt.Record{}, fmt.Errorf("read commit %d: %w", number, err)
	}
	r, err := ckpt.DecodeRecord(b)
	if err != nil {
		return ckpt.Record{}, fmt.Errorf("read commit %d: %w", number, err)
	}
	if r.Commit == nil {
		return ckpt.Record{}, &ckpt.RemovedError{Stub: r.Stub}
	}
	return r, nil
}
