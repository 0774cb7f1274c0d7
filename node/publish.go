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
	"phalanx/internal/failpoint"
)

// publisher is the leader's part in saves: it announces them, collects the shares and publishes. The loop owns it.
type publisher struct {
	d        *Daemon
	term     uint64
	counter  uint64
	attempt  *ckpt.Attempt
	asked    time.Time
	repeated time.Time // when it was last announced
	failures int       // in a row
	trouble  string    // why the last one failed, "" after one that did not
	parts    map[phalanx.Rank]ckpt.PartRef
	labels   []phalanx.Label
	busy     bool // publishing
	retry    time.Time
	newest   phalanx.Step // newest step published or given up
	since    time.Time    // of the newest published, for intervals in time
	wanted   phalanx.Step // asked for by a stop; 0: none
	pruning  bool         // retention is at work
}

// lead begins or ends the leader's part.
func (s *saver) lead(term uint64) {
	s.pub = nil
	if term != 0 {
		s.pub = &publisher{d: s.d, term: term, since: time.Now()}
		if p := s.d.state.NewestPublished(); p != nil {
			s.pub.newest = p.Step
		}
	}
}

func (s *saver) shardWritten(id phalanx.MemberID, m *ShardWritten) {
	if s.pub != nil {
		s.pub.shard(id, m)
	}
}

func (p *publisher) stateChanged(old, now *elastic.State) {
	if old.World.Generation != now.World.Generation {
		p.attempt = nil // a save that was begun in a generation ends with it; what was staged is asked for again
	}
	if n := now.NewestPublished(); n != nil {
		p.newest = max(p.newest, n.Step)
	}
}

// due is the step to save next, 0 for none yet.
func (p *publisher) due(now time.Time) phalanx.Step {
	d := p.d
	s := d.state
	last, at := s.Spec.LastStep, d.committed()
	for _, v := range d.lead.members {
		if v.report != nil && v.report.Possession.Holds && s.OfLineage(v.report.Possession.Label) {
			at = max(at, v.report.Possession.Label.Step)
		}
	}
	durable := phalanx.Step(0)
	if n := s.NewestPublished(); n != nil {
		durable = n.Step
	}
	switch {
	case at >= last:
		if durable < last {
			return last
		}
		return 0
	case p.wanted > 0:
		if durable < p.wanted {
			return min(max(p.wanted, at+1), last)
		}
		return 0
	case d.cfg.SaveEvery.Steps > 0:
		every := d.cfg.SaveEvery.Steps
		if labels := d.saver.slabs(); len(labels) > 0 && labels[0].Step > durable && labels[0].Step > p.newest && labels[0].Step%every == 0 && s.OfLineage(labels[0]) {
			return labels[0].Step // staged under an earlier leader
		}
		next := (max(p.newest, at)/every + 1) * every
		return min(next, last)
	case d.cfg.SaveEvery.Every > 0 && now.Sub(p.since) >= d.cfg.SaveEvery.Every:
		return min(at+3, last)
	}
	return 0
}

// tick announces the next save when none is under way.
func (p *publisher) tick(now time.Time) {
	s := p.d.state
	if p.d.plain != nil || p.d.lead == nil || s.Spec == nil || s.World.Size() == 0 || s.Phase == elastic.Halted || s.Phase == elastic.Finished || p.busy || now.Before(p.retry) {
		return
	}
	step := p.due(now)
	if p.attempt != nil {
		stuck := now.Sub(p.asked) > time.Minute && p.attempt.Step <= p.d.committed()
		if p.attempt.Step == step && !stuck || len(p.parts) > 0 && !stuck {
			if now.Sub(p.repeated) > saveRepeat && p.attempt.Step <= p.d.committed() {
				p.announce(now) // a stream may have broken with the words on it, or a daemon been replaced
			}
			return
		}
	}
	if step == 0 {
		return
	}
	p.counter++
	p.attempt = &ckpt.Attempt{Job: p.d.cfg.Job, Step: step, Generation: s.World.Generation, Term: p.term, Counter: p.counter}
	p.asked, p.parts, p.labels = now, map[phalanx.Rank]ckpt.PartRef{}, make([]phalanx.Label, s.GroupSize())
	p.announce(now)
	failpoint.Here("save-announced")
}

// announce asks every member whose share is not known for it. A member that was asked before says again what it has said.
func (p *publisher) announce(now time.Time) {
	p.repeated = now
	ask := &SaveAsk{Attempt: *p.attempt}
	for _, seat := range p.d.state.World.Seats {
		v := p.d.lead.members[seat.Member]
		if _, known := p.parts[seat.Rank]; known {
			continue
		}
		switch {
		case v == nil:
		case v.local:
			p.d.saver.asked(ask)
		case v.conn != nil:
			v.conn.send(&Message{Save: ask})
		}
	}
}

// saveRepeat is how long a share may be outstanding before it is asked for again, saveRetryMax the longest pause after saves
// that failed.
const (
	saveRepeat   = time.Second
	saveRetryMax = 30 * time.Second
)

// failed notes a save that did not become one. The next is tried later each time: a full or damaged store is not mended by
// trying, and every attempt leaves its objects until it is swept.
func (p *publisher) failed(why string) {
	p.failures++
	p.trouble = why
	p.retry = time.Now().Add(min(500*time.Millisecond<<min(p.failures, 10), saveRetryMax))
}

// shard notes one rank's share.
func (p *publisher) shard(id phalanx.MemberID, m *ShardWritten) {
	if p.attempt == nil || m.Attempt != *p.attempt || p.busy {
		return
	}
	s := p.d.state
	seat := s.World.SeatOf(id)
	if seat == nil {
		return
	}
	if m.Missed || m.Failed != "" {
		p.attempt, p.retry = nil, time.Now()
		if m.Failed != "" {
			p.d.log.Warn("save given up", "step", uint64(m.Attempt.Step), "about", string(id), "error", m.Failed)
			p.failed(m.Failed) // training goes on
		}
		p.newest = max(p.newest, min(m.Attempt.Step, s.Spec.LastStep-1))
		return
	}
	c := seat.Coordinate
	if m.Label.Coordinate != c || m.Label.Step != m.Attempt.Step || !s.OfLineage(m.Label) || p.labels[c] != (phalanx.Label{}) && p.labels[c] != m.Label {
		p.d.log.Warn("a share has another label", "about", string(id), "label", m.Label.String())
		p.attempt = nil
		return
	}
	p.labels[c], p.parts[seat.Rank] = m.Label, m.Part
	if len(p.parts) == s.World.Size() {
		p.publish()
	}
}

// publish writes the commit object, then the log entry. Every wait inside has the attempt's deadline.
func (p *publisher) publish() {
	d, s := p.d, p.d.state
	attempt := *p.attempt
	parts := make([]ckpt.PartRef, 0, len(p.parts))
	for r := range s.World.Size() {
		parts = append(parts, p.parts[phalanx.Rank(r)])
	}
	spec, err := json.Marshal(s.Spec)
	if err != nil {
		d.log.Error("spec not encoded", "error", err)
		return
	}
	pub := ckpt.Publication{Attempt: attempt, Branch: uint64(s.Branch), Labels: p.labels, UnixNS: time.Now().UnixNano(), Spec: spec}
	p.busy = true
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
		if err == nil {
			failpoint.Here("commit-object")
			err = p.record(ctx, pub, record)
		}
		d.post(func() {
			if d.saver.pub != p {
				return
			}
			p.busy, p.attempt = false, nil
			if err != nil {
				d.meters.unpublished.Inc()
				d.log.Warn("checkpoint not published", "step", uint64(attempt.Step), "error", err)
				p.failed(err.Error())
				p.newest = max(p.newest, min(attempt.Step, s.Spec.LastStep-1))
				return
			}
			failpoint.Here("published")
			d.meters.published.Inc()
			p.failures, p.trouble = 0, ""
			p.newest, p.since = max(p.newest, attempt.Step), time.Now()
			d.log.Info("checkpoint published", "step", uint64(attempt.Step), "folder", attempt.Name())
			p.prune()
		})
	})
}

func (p *publisher) record(ctx context.Context, pub ckpt.Publication, r ckpt.Record) error {
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

// tryStop saves at the next boundary and halts the job when that is durable, or when the grace is over.
func (a *arbiter) tryStop(now time.Time) {
	d := a.d
	p := d.saver.pub
	s := d.state
	if a.busy || s.Phase == elastic.Finished || s.Phase == elastic.Halted && s.Halt != nil && s.Halt.Kind.Ends() {
		return
	}
	if a.stopAt.IsZero() {
		a.stopAt = now
	}
	if p != nil && p.wanted == 0 && s.World.Size() > 0 {
		p.wanted = d.committed() + 1
	}
	published := s.NewestPublished()
	durable := published != nil && p != nil && p.wanted > 0 && published.Step >= p.wanted
	training := s.World.Size() > 0 && s.Phase != elastic.Halted && d.plain == nil // plain trainers save by themselves when they get TERM
	if durable || !training || now.Sub(a.stopAt) > d.cfg.Grace {
		kind, words := elastic.StoppedByOperator, "stopped on request"
		switch {
		case durable:
			words = fmt.Sprintf("stopped on request; step %d is saved", published.Step)
		case training:
			kind, words = elastic.StoppedUnsaved, fmt.Sprintf("stopped on request; the newest step is not saved within the grace of %s", d.cfg.Grace)
			if published != nil {
				words += fmt.Sprintf(", step %d is", published.Step)
			}
			if p != nil && p.trouble != "" {
				words += ": " + p.trouble
			}
		}
		a.propose(elastic.Halt{Reason: elastic.HaltReason{Kind: kind, Words: words}, UnixNS: now.UnixNano()}, words)
	}
}

// lookIntoStore finds the newest restorable checkpoint of the job, or the one that --resume names.
func lookIntoStore(d *Daemon, groups int, s *elastic.State) elastic.StoreFact {
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	if d.cfg.Resume == "never" && s.World.Generation.IsZero() {
		return elastic.StoreFact{Known: true}
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
		if err == nil && len(cp.States()) != groups {
			err = fmt.Errorf("it has %d shards of the model, the job %d: %w", len(cp.States()), groups, ckpt.ErrFormat)
		}
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
		fact.Published = p
		return fact
	}
	return fact
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
