// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// publisher is the leader's part in saves: it announces them, collects the shares and publishes. The loop owns it; what it
// decides is in saveplan.go.
type publisher struct {
	d        *Daemon
	term     uint64
	counter  uint64
	saves    []*saving // under way, by step: at most as many as every member has slabs
	read     int64     // bytes that all members have read for saves
	record   saveRecord
	fencedBy string  // why nothing of this job can be published any more, "" while it can
	busy     *saving // is being published, perhaps of an earlier generation; nil: none
	retry    time.Time
	newest   phalanx.Step // newest step published or given up
	since    time.Time    // of the newest published, for intervals in time
	passed   phalanx.Step // newest step of the interval that was saved, or counted as skipped
	follows  bool         // passed is known
	wanted   phalanx.Step // asked for by a stop; 0: none
	tried    phalanx.Step // newest step of which a save was begun, and when the first one was
	triedAt  time.Time
	pruning  bool         // retention is at work
	local    phalanx.Step // newest step that was seen local, and since when
	localAt  time.Time
	copied   time.Time // when copies were last asked for
}

// saving is a save under way.
type saving struct {
	attempt   ckpt.Attempt
	shares    []share // by rank
	labels    []phalanx.Label
	begun     time.Time // since when its step is there; zero: it is not yet
	announced time.Time // first
	repeated  time.Time // and last
	moved     time.Time // when a share was last told of, or bytes read for one
	taken     int       // shares that were given to somebody else
}

// saveRecord is how saves went of late. The leader tells it with every save, so that the next leader knows.
type saveRecord struct {
	Failures int          `json:"failures,omitempty"` // in a row
	Trouble  string       `json:"trouble,omitempty"`  // why the last one failed, "" after one that did not
	Skipped  SkippedSaves `json:"skipped"`
}

// lead begins or ends the leader's part.
func (s *saver) lead(term uint64) {
	s.pub = nil
	if term != 0 {
		s.pub = &publisher{d: s.d, term: term, since: time.Now(), record: s.record}
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
		p.saves, p.follows = nil, false // a save that was begun in a generation ends with it; what was staged is asked for again
	}
	if n := now.NewestPublished(); n != nil {
		p.newest = max(p.newest, n.Step)
	}
}

// due gathers what the choice of the next step rests on.
func (p *publisher) due(now time.Time) saveDue {
	d := p.d
	s := d.state
	x := saveDue{at: d.committed(), last: s.Spec.LastStep, newest: p.newest, wanted: p.wanted, every: d.cfg.SaveEvery.Steps}
	since := p.since
	for _, v := range p.saves {
		if v.begun.After(since) {
			since = v.begun
		}
	}
	x.elapsed = d.cfg.SaveEvery.Every > 0 && now.Sub(since) >= d.cfg.SaveEvery.Every
	var slabs []phalanx.Label
	for _, v := range d.lead.members {
		if v.report == nil {
			continue
		}
		if v.report.Possession.Holds && s.OfLineage(v.report.Possession.Label) {
			x.at = max(x.at, v.report.Possession.Label.Step)
		}
		if v.local || v.conn != nil {
			slabs = append(slabs, v.report.Slabs...)
		}
	}
	if n := s.NewestPublished(); n != nil {
		x.durable = n.Step
	}
	x.staged = stagedStep(slabs, s.GroupSize(), s.OfLineage)
	if x.every > 0 && x.at+1 >= (x.staged/x.every+1)*x.every || d.cfg.SaveEvery.Every > 0 && x.staged == p.tried && now.Sub(p.triedAt) > d.cfg.SaveEvery.Every {
		x.staged = 0 // a newer one is due
	}
	return x
}

// tick looks after the saves under way, and announces the next one when there is a slab for it.
func (p *publisher) tick(now time.Time) {
	p.levels(now)
	s := p.d.state
	if p.d.plain == nil && p.d.lead != nil {
		p.copies(now)
	}
	if p.d.plain != nil || p.d.lead == nil || s.Spec == nil || s.World.Size() == 0 || s.Phase == elastic.Halted || s.Phase == elastic.Finished {
		return
	}
	due := p.due(now)
	p.count(due, now)
	before := due
	for _, x := range slices.Clone(p.saves) {
		p.look(x, before, now)
		before = before.after(x.attempt.Step)
	}
	p.publishFirst()
	if p.held(now) != "" {
		return
	}
	for _, x := range p.saves {
		due = due.after(x.attempt.Step)
	}
	if step := due.step(); step != 0 {
		p.begin(step, now)
	}
}

// look looks after a save: it gives way to another one, is given up, or attended to.
func (p *publisher) look(x *saving, due saveDue, now time.Time) {
	if x == p.busy {
		return
	}
	p.progress(x, now, due.at)
	written := x.written()
	switch {
	case due.replaces(x.attempt.Step, !x.begun.IsZero(), written):
		p.remove(x)
	case written == len(x.shares): // it waits for the one before it
	case !x.begun.IsZero() && now.Sub(x.moved) > saveStuck:
		p.giveUp(x, fmt.Sprintf("%d of %d shares are stored and nobody has read anything for another one for %s", written, len(x.shares), saveStuck))
	default:
		p.attend(x, now)
	}
}

// begin announces a save.
func (p *publisher) begin(step phalanx.Step, now time.Time) {
	d, s := p.d, p.d.state
	p.counter++
	x := &saving{attempt: ckpt.Attempt{Job: d.cfg.Job, Step: step, Generation: s.World.Generation, Term: p.term, Counter: p.counter},
		labels: make([]phalanx.Label, s.GroupSize()), announced: now}
	for _, seat := range s.World.Seats {
		x.shares = append(x.shares, share{rank: seat.Rank, coordinate: seat.Coordinate, writers: []shareWriter{{member: seat.Member}}})
	}
	p.saves = append(p.saves, x)
	p.passed = max(p.passed, step)
	p.announce(x, now)
	failpoint.Here("save-announced")
	if len(p.saves) > 1 {
		failpoint.Here("second-save-announced")
	}
}

// remove takes a save from those under way.
func (p *publisher) remove(x *saving) {
	p.saves = slices.DeleteFunc(p.saves, func(y *saving) bool { return y == x })
}

func (x *saving) written() int {
	n := 0
	for i := range x.shares {
		if x.shares[i].written {
			n++
		}
	}
	return n
}

// progress notes when the step of the save is there, and that somebody works on it.
func (p *publisher) progress(x *saving, now time.Time, at phalanx.Step) {
	if x.begun.IsZero() && x.attempt.Step <= at {
		p.there(x, now)
	}
	var read int64
	for _, v := range p.d.lead.members {
		if v.report != nil {
			read += v.report.SaveRead
		}
	}
	if read != p.read { // for which of them is not known
		p.read = read
		for _, y := range p.saves {
			y.moved = now
		}
	}
}

// there notes that the step of a save is there.
func (p *publisher) there(x *saving, now time.Time) {
	x.begun, x.moved = now, now
	if p.tried != x.attempt.Step {
		p.tried, p.triedAt = x.attempt.Step, now
	}
}

// attend gives shares that do not come to other members, gives the save up when that cannot help, and asks again for what is
// not there: a stream may have broken with the words on it, or a daemon been replaced.
func (p *publisher) attend(x *saving, now time.Time) {
	if x.begun.IsZero() {
		// Who has not read the generation yet has not listened, and who is asked when the step has passed has missed it.
		if now.Sub(x.announced) < announceFor && now.Sub(x.repeated) > saveRepeat {
			p.announce(x, now)
		}
		return
	}
	elapsed := now.Sub(x.begun)
	for i := range x.shares {
		for k := range x.shares[i].writers {
			w := &x.shares[i].writers[k]
			v := p.d.lead.members[w.member]
			w.absent = v == nil || !v.local && v.conn == nil && now.Sub(v.lost) > absentAfter
		}
	}
	keepers := p.keepers(x)
	for _, t := range takeovers(x.shares, keepers, elapsed) {
		share := &x.shares[t.rank]
		share.writers = append(share.writers, shareWriter{member: t.by, asked: elapsed})
		x.taken++
		p.d.meters.takeovers.Inc()
		p.d.log.Info("a share of a save is taken over", "step", uint64(x.attempt.Step), "rank", int(t.rank), "by", string(t.by), "why", t.why)
		x.moved, x.repeated = now, time.Time{}
		failpoint.Here("share-taken-over")
	}
	if why, lost := hopeless(x.shares, keepers); lost {
		p.giveUp(x, why)
		return
	}
	if now.Sub(x.repeated) > saveRepeat {
		p.announce(x, now)
	}
}

// keepers are the connected members that have the state of the save in a slab: all of them may write any share, unless ranks have
// tensors of their own, which nobody else holds.
func (p *publisher) keepers(x *saving) []keeper {
	s := p.d.state
	var out []keeper
	for id, v := range p.d.lead.members {
		if v.report == nil || !v.local && v.conn == nil {
			continue
		}
		for _, l := range v.report.Slabs {
			if l.Step != x.attempt.Step || !s.OfLineage(l) || l.Coordinate < 0 || l.Coordinate >= len(x.labels) {
				continue
			}
			if known := x.labels[l.Coordinate]; (known == (phalanx.Label{}) || known == l) && !perRank(s, l.Coordinate) {
				out = append(out, keeper{id, l.Coordinate})
			}
		}
	}
	slices.SortFunc(out, func(a, b keeper) int { return phalanx.CompareMemberIDs(a.member, b.member) })
	return slices.CompactFunc(out, func(a, b keeper) bool { return a == b })
}

// announce asks everybody for the shares that are not there. A member that was asked before says again what it has said.
func (p *publisher) announce(x *saving, now time.Time) {
	x.repeated = now
	var beside []ckpt.Attempt
	for _, y := range p.saves {
		if y != x {
			beside = append(beside, y.attempt)
		}
	}
	asks := map[phalanx.MemberID]*SaveAsk{}
	for i := range x.shares {
		for _, w := range x.shares[i].writers {
			if x.shares[i].written || w.failed {
				continue
			}
			if asks[w.member] == nil {
				asks[w.member] = &SaveAsk{Attempt: x.attempt, Beside: beside, Record: p.record}
			}
			asks[w.member].Ranks = append(asks[w.member].Ranks, x.shares[i].rank)
		}
	}
	for id, ask := range asks {
		switch v := p.d.lead.members[id]; {
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
	announceFor  = 5 * time.Second // a save of a later step is announced for so long
	saveRetryMax = 30 * time.Second
)

// giveUp ends a save that does not become one, for the reason given, or because its step was missed: "".
func (p *publisher) giveUp(x *saving, why string) {
	step := min(x.attempt.Step, p.d.state.Spec.LastStep-1)
	p.remove(x)
	if why == "" {
		p.retry = time.Now()
		p.newest = max(p.newest, step)
		p.skip(saveMissed, 1, x.attempt.Step)
		return
	}
	p.d.log.Warn("save given up", "step", uint64(step), "error", why)
	p.failed(why)
}

// failed notes a save that did not become one; training goes on. What is staged is tried again, or a newer step, later each
// time: a full or damaged store is not mended by trying, and every attempt leaves its objects until it is swept.
func (p *publisher) failed(why string) {
	p.record.Failures++
	p.record.Trouble = why
	p.d.saver.record = p.record
	p.d.meters.unpublished.Inc()
	p.retry = time.Now().Add(min(500*time.Millisecond<<min(p.record.Failures, 10), saveRetryMax))
}

// shard notes what a member says about a share. The first one that has stored it counts: another one has written the same
// bytes or finds them.
func (p *publisher) shard(id phalanx.MemberID, m *ShardWritten) {
	i := slices.IndexFunc(p.saves, func(x *saving) bool { return x.attempt == m.Attempt })
	if i < 0 || p.saves[i] == p.busy || m.Rank < 0 || int(m.Rank) >= len(p.saves[i].shares) {
		return
	}
	x := p.saves[i]
	s, share, now := p.d.state, &x.shares[m.Rank], time.Now()
	k := slices.IndexFunc(share.writers, func(w shareWriter) bool { return w.member == id })
	if k < 0 || share.written {
		return
	}
	x.moved = now
	if x.begun.IsZero() {
		p.there(x, now)
	}
	if m.Missed || m.Failed != "" {
		share.writers[k].failed, share.writers[k].why = true, m.Failed
		p.attend(x, now)
		return
	}
	c := share.coordinate
	if m.Part.Rank != m.Rank || m.Label.Coordinate != c || m.Label.Step != m.Attempt.Step || !s.OfLineage(m.Label) || x.labels[c] != (phalanx.Label{}) && x.labels[c] != m.Label {
		p.d.log.Warn("a share has another label", "about", string(id), "rank", int(m.Rank), "label", m.Label.String())
		p.remove(x)
		return
	}
	x.labels[c], share.part, share.written, share.took = m.Label, m.Part, true, now.Sub(x.begun)
	p.publishFirst()
}
