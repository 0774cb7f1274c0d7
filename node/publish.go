// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// publishFirst publishes the earliest save when all of its shares are stored: commits are in the order of steps.
func (p *publisher) publishFirst() {
	if p.busy == nil && len(p.saves) > 0 && p.saves[0].written() == len(p.saves[0].shares) {
		p.publish(p.saves[0])
	}
}

// publish writes the commit object, then the log entry. Every wait inside has the attempt's deadline.
func (p *publisher) publish(x *saving) {
	d, s := p.d, p.d.state
	attempt := x.attempt
	parts := make([]ckpt.PartRef, 0, len(x.shares))
	for i := range x.shares {
		parts = append(parts, x.shares[i].part)
	}
	spec, err := json.Marshal(s.Spec)
	if err != nil {
		d.log.Error("spec not encoded", "error", err)
		return
	}
	pub := ckpt.Publication{Attempt: attempt, Branch: uint64(s.Branch), Labels: x.labels, UnixNS: time.Now().UnixNano(), Spec: spec}
	p.busy = x
	failpoint.Here("publishing")
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 2*time.Minute)
		defer cancel()
		record, err := ckpt.Publish(ctx, d.store, pub, parts)
		for errors.Is(err, ckpt.ErrConflict) && ctx.Err() == nil { // unknown: ask again before deciding
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			record, err = ckpt.Publish(ctx, d.store, pub, parts)
		}
		if r, same := ours(pub, err); same {
			record, err = r, nil
			pub.Attempt, pub.UnixNS = r.Attempt(), r.Commit.UnixNS
		}
		if err == nil {
			failpoint.Here("commit-object")
			err = p.enter(ctx, pub, record)
		}
		d.post(func() {
			if d.saver.pub != p {
				return
			}
			p.busy = nil
			p.remove(x)
			if err != nil {
				d.log.Warn("checkpoint not published", "step", uint64(attempt.Step), "error", err)
				p.failed(err.Error())
				if p.fencedBy = foreign(d.state, d.committed(), pub, err); p.fencedBy == "" {
					p.handOver(x)
				}
				return
			}
			failpoint.Here("published")
			d.meters.published.Inc()
			p.record = saveRecord{Skipped: p.record.Skipped}
			p.newest, p.since = max(p.newest, attempt.Step), time.Now()
			if len(p.saves) > 0 && !p.saves[0].begun.IsZero() {
				p.since = p.saves[0].begun // intervals count from the newest save
			}
			d.log.Info("checkpoint published", "step", uint64(attempt.Step), "folder", attempt.Name())
			p.prune()
			p.publishFirst()
		})
	})
}

// handOver gives leadership away when the store fails for this daemon while others have written their shares: they may
// publish. It is a wish: whoever leads next does the same if the store fails for it too.
func (p *publisher) handOver(x *saving) {
	d := p.d
	if !slices.ContainsFunc(x.shares, func(s share) bool { return len(s.writers) > 1 && s.writers[0].member == d.me() }) {
		return
	}
	d.log.Warn("hands leadership over: the store fails here and not elsewhere")
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		defer cancel()
		if err := d.raft.Transfer(ctx); err != nil && ctx.Err() == nil {
			d.log.Debug("leadership not handed over", "error", err)
		}
	})
}

// enter puts the checkpoint into the log.
// ours is the commit in the way of a publication when it holds the very same state: an earlier leader's, that ended before the
// log said so.
func ours(pub ckpt.Publication, err error) (ckpt.Record, bool) {
	var fenced *ckpt.FencedError
	if !errors.As(err, &fenced) || fenced.By.Commit == nil || len(fenced.By.Commit.States) != len(pub.Labels) {
		return ckpt.Record{}, false
	}
	for i, st := range fenced.By.Commit.States {
		if st.Label != pub.Labels[i] {
			return ckpt.Record{}, false
		}
	}
	return fenced.By, fenced.By.Commit.Branch == pub.Branch
}

// foreign says why no save of this job can be published any more: what is in the way cannot be of this job, because nobody in it
// has come so far, or has another state of that step. It is "" for everything else.
func foreign(s *elastic.State, committed phalanx.Step, pub ckpt.Publication, err error) string {
	var fenced *ckpt.FencedError
	if !errors.As(err, &fenced) || fenced.By.Commit == nil {
		return ""
	}
	by := fenced.By.Commit
	otherState := by.Step == pub.Attempt.Step && by.Branch == pub.Branch && len(by.States) > 0 && by.States[0].Label != pub.Labels[0]
	if !s.World.Generation.Less(by.Generation) && by.Step <= committed+1 && !otherState {
		return ""
	}
	return fmt.Sprintf("another run publishes into the store as job %s: commit %d is of step %d, generation %s", by.Job, by.Number, by.Step, by.Generation)
}

func (p *publisher) enter(ctx context.Context, pub ckpt.Publication, r ckpt.Record) error {
	c := elastic.PublishCheckpoint{Published: elastic.Published{Step: pub.Attempt.Step, Generation: pub.Labels[0].Generation, Branch: int(pub.Branch),
		Labels: pub.Labels, Commit: r.Number, Folder: pub.Attempt.Folder(), UnixNS: pub.UnixNS}}
	b, err := elastic.EncodeCommand(c)
	if err != nil {
		return err
	}
	res, err := p.d.raft.Propose(ctx, b)
	if err != nil {
		return err
	}
	if x, refused := res.Response.(refusal); refused {
		return x.err
	}
	return nil
}

// prune applies the policy of retention, in the background. Its failure harms nothing: it is tried again after the next save.
func (p *publisher) prune() {
	d := p.d
	if p.pruning {
		return // it looks again after the next save
	}
	p.pruning = true
	run := retention{d: d, p: p, generation: d.state.World.Generation, lineage: slices.Clone(d.state.Rewinds)}
	d.ends.Go(func() {
		err := run.run(time.Now())
		d.post(func() { p.pruning = false })
		if err != nil && d.ctx.Err() == nil {
			d.log.Warn("old checkpoints are not removed", "error", err)
		}
	})
}
