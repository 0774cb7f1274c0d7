// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// retentionLimit bounds one run of retention. What it leaves the next one does.
const retentionLimit = 10 * time.Minute

// errDeposed ends a run of retention: somebody else leads, or the world has changed.
var errDeposed = errors.New("no longer the leader of this generation")

// retention is one run: it forgets what the policy does not keep, then deletes what was forgotten long enough ago. It is made
// in the loop and runs beside it.
type retention struct {
	d          *Daemon
	p          *publisher
	generation phalanx.Generation
	lineage    []elastic.RewindRecord // a copy
}

func (c *Config) retain() ckpt.Policy {
	return ckpt.Policy{KeepLast: c.Keep, EverySteps: c.KeepEvery, EveryTime: c.KeepTime}
}

func (r *retention) run(now time.Time) error {
	d := r.d
	ctx, cancel := context.WithTimeout(d.ctx, retentionLimit)
	defer cancel()
	job, by := d.cfg.Job, fmt.Sprintf("%s, generation %s", d.cfg.Member(), r.generation)
	inv, err := ckpt.TakeInventory(ctx, d.store, job, r.ofLineage)
	if err != nil {
		return err
	}
	drops := ckpt.Drops(d.cfg.retain().Decide(inv, now))
	forgotten, err := ckpt.Forget(ctx, d.store, inv, drops, ckpt.ForgetOptions{Now: now, Grace: d.cfg.GCGrace, By: by, Confirm: r.confirm})
	if len(forgotten.Numbers) > 0 {
		failpoint.Here("checkpoints-forgotten")
		d.log.Info("checkpoints forgotten", "numbers", forgotten.Numbers, "grace", d.cfg.GCGrace.String())
		if d.cfg.GCGrace <= 0 && err == nil { // their data go at once
			inv, err = ckpt.TakeInventory(ctx, d.store, job, r.ofLineage)
		}
	}
	if err != nil {
		return endedBy(err)
	}
	_, err = ckpt.GC(ctx, d.store, inv, ckpt.GCOptions{Now: now, AbandonedGrace: d.cfg.GCGrace, By: by, Confirm: r.confirm})
	return endedBy(err)
}

// endedBy is nil for a run that ended because somebody else leads now, who does what is left.
func endedBy(err error) error {
	if errors.Is(err, errDeposed) {
		return nil
	}
	return err
}

func (r *retention) ofLineage(c *ckpt.Commit) bool {
	s := elastic.State{Rewinds: r.lineage}
	return len(c.States) > 0 && s.OfLineage(c.States[0].Label)
}

// confirm asks the loop whether this daemon still leads the generation that the run was started in. The answer may be old when
// it is used: what is deleted is past help whoever deletes it.
func (r *retention) confirm(ctx context.Context) error {
	leads := make(chan bool, 1) // 1: the loop must not wait for who asked
	r.d.post(func() { leads <- r.d.saver.pub == r.p && r.d.state.World.Generation == r.generation })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case ok := <-leads:
		if !ok {
			return errDeposed
		}
		return nil
	}
}

// restoreHold is how long a checkpoint is held that the job restores from. Ranks restore at different speeds, so nobody ends it.
const restoreHold = time.Hour

// holdForRestore keeps what the job restores from. A store that does not take the hold does not stop the restore: what is being
// forgotten has its data for the grace.
func (d *Daemon) holdForRestore(ctx context.Context, number uint64) {
	now := time.Now()
	if _, err := ckpt.Hold(ctx, d.store, d.cfg.Job, number, "restore", "the job restores from it", now, now.Add(restoreHold)); err != nil {
		d.log.Warn("the checkpoint that is restored is not held", "commit", number, "error", err)
	}
}

// recordVerified writes down what reading a whole checkpoint has shown. It is for retention and for those who look; a store that
// does not take it changes nothing.
func (d *Daemon) recordVerified(ctx context.Context, r ckpt.Record, ok bool) {
	if err := ckpt.RecordVerified(ctx, d.store, r, ckpt.LevelData, ok, string(d.cfg.Member()), d.cfg.Version, time.Now()); err != nil {
		d.log.Warn("a verification is not recorded", "commit", r.Number, "error", err)
	}
}
