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
	d         *Daemon
	term      uint64
	counter   uint64
	attempt   *ckpt.Attempt
	shares    []share // of the attempt, by rank
	labels    []phalanx.Label
	begun     time.Time // since when the step of the attempt is there; zero: it is not yet
	announced time.Time // when it was first announced
	repeated  time.Time // and last
	moved     time.Time // when a share was last told of, or bytes read for one
	read      int64     // bytes that all members have read for saves
	taken     int       // shares of the attempt that were given to somebody else
	record    saveRecord
	fencedBy  string // why nothing of this job can be published any more, "" while it can
	busy      bool   // publishing
	retry     time.Time
	newest    phalanx.Step // newest step published or given up
	since     time.Time    // of the newest published, for intervals in time
	wanted    phalanx.Step // asked for by a stop; 0: none
	tried     phalanx.Step // newest step of which a save was begun, and when the first one was
	triedAt   time.Time
	pruning   bool         // retention is at work
	local     phalanx.Step // newest step that was seen local, and since when
	localAt   time.Time
	copied    time.Time // when copies were last asked for
}

// saveRecord is how saves went of late. The leader tells it with every save, so that the next leader knows.
type saveRecord struct {
	Failures int    `json:"failures,omitempty"` // in a row
	Trouble  string `json:"trouble,omitempty"`  // why the last one failed, "" after one that did not
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
		p.attempt = nil // a save that was begun in a generation ends with it; what was staged is asked for again
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
	x.elapsed = d.cfg.SaveEvery.Every > 0 && now.Sub(p.since) >= d.cfg.SaveEvery.Every
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

// tick announces the next save when none is under way, and looks after the one that is.
func (p *publisher) tick(now time.Time) {
	p.levels(now)
	s := p.d.state
	if p.d.plain == nil && p.d.lead != nil {
		p.copies(now)
	}
	if p.d.plain != nil || p.d.lead == nil || s.Spec == nil || s.World.Size() == 0 || s.Phase == elastic.Halted || s.Phase == elastic.Finished || p.busy || now.Before(p.retry) {
		return
	}
	due := p.due(now)
	if p.attempt != nil {
		p.progress(now, due.at)
		written := p.written()
		switch {
		case due.replaces(p.attempt.Step, !p.begun.IsZero(), written):
		case !p.begun.IsZero() && now.Sub(p.moved) > saveStuck:
			p.giveUp(fmt.Sprintf("%d of %d shares are stored and nobody has read anything for another one for %s", written, len(p.shares), saveStuck))
			return
		default:
			p.attend(now)
			return
		}
	}
	step := due.step()
	if step == 0 {
		return
	}
	p.counter++
	p.attempt = &ckpt.Attempt{Job: p.d.cfg.Job, Step: step, Generation: s.World.Generation, Term: p.term, Counter: p.counter}
	p.begun, p.shares, p.labels, p.taken = time.Time{}, nil, make([]phalanx.Label, s.GroupSize()), 0
	for _, seat := range s.World.Seats {
		p.shares = append(p.shares, share{rank: seat.Rank, coordinate: seat.Coordinate, writers: []shareWriter{{member: seat.Member}}})
	}
	p.announced = now
	p.announce(now)
	failpoint.Here("save-announced")
}

func (p *publisher) written() int {
	n := 0
	for i := range p.shares {
		if p.shares[i].written {
			n++
		}
	}
	return n
}

// progress notes when the step of the save is there, and that somebody works on it.
func (p *publisher) progress(now time.Time, at phalanx.Step) {
	if p.begun.IsZero() && p.attempt.Step <= at {
		p.begin(now)
	}
	var read int64
	for _, v := range p.d.lead.members {
		if v.report != nil {
			read += v.report.SaveRead
		}
	}
	if read != p.read {
		p.read, p.moved = read, now
	}
}

func (p *publisher) begin(now time.Time) {
	p.begun, p.moved = now, now
	if p.tried != p.attempt.Step {
		p.tried, p.triedAt = p.attempt.Step, now
	}
}

// attend gives shares that do not come to other members, gives the save up when that cannot help, and asks again for what is
// not there: a stream may have broken with the words on it, or a daemon been replaced.
func (p *publisher) attend(now time.Time) {
	if p.begun.IsZero() {
		// Who has not read the generation yet has not listened, and who is asked when the step has passed has missed it.
		if now.Sub(p.announced) < announceFor && now.Sub(p.repeated) > saveRepeat {
			p.announce(now)
		}
		return
	}
	elapsed := now.Sub(p.begun)
	for i := range p.shares {
		for k := range p.shares[i].writers {
			w := &p.shares[i].writers[k]
			v := p.d.lead.members[w.member]
			w.absent = v == nil || !v.local && v.conn == nil && now.Sub(v.lost) > absentAfter
		}
	}
	keepers := p.keepers()
	for _, t := range takeovers(p.shares, keepers, elapsed) {
		x := &p.shares[t.rank]
		x.writers = append(x.writers, shareWriter{member: t.by, asked: elapsed})
		p.taken++
		p.d.meters.takeovers.Inc()
		p.d.log.Info("a share of a save is taken over", "step", uint64(p.attempt.Step), "rank", int(t.rank), "by", string(t.by), "why", t.why)
		p.moved, p.repeated = now, time.Time{}
		failpoint.Here("share-taken-over")
	}
	if why, lost := hopeless(p.shares, keepers); lost {
		p.giveUp(why)
		return
	}
	if now.Sub(p.repeated) > saveRepeat {
		p.announce(now)
	}
}

// keepers are the connected members that have the state of the save in a slab: all of them may write any share, unless ranks have
// tensors of their own, which nobody else holds.
func (p *publisher) keepers() []keeper {
	s := p.d.state
	if perRank(s.State) {
		return nil
	}
	var out []keeper
	for id, v := range p.d.lead.members {
		if v.report == nil || !v.local && v.conn == nil {
			continue
		}
		for _, l := range v.report.Slabs {
			if l.Step != p.attempt.Step || !s.OfLineage(l) || l.Coordinate < 0 || l.Coordinate >= len(p.labels) {
				continue
			}
			if known := p.labels[l.Coordinate]; known == (phalanx.Label{}) || known == l {
				out = append(out, keeper{id, l.Coordinate})
			}
		}
	}
	slices.SortFunc(out, func(a, b keeper) int { return phalanx.CompareMemberIDs(a.member, b.member) })
	return slices.CompactFunc(out, func(a, b keeper) bool { return a == b })
}

// announce asks everybody for the shares that are not there. A member that was asked before says again what it has said.
func (p *publisher) announce(now time.Time) {
	p.repeated = now
	asks := map[phalanx.MemberID]*SaveAsk{}
	for i := range p.shares {
		for _, w := range p.shares[i].writers {
			if p.shares[i].written || w.failed {
				continue
			}
			if asks[w.member] == nil {
				asks[w.member] = &SaveAsk{Attempt: *p.attempt, Record: p.record}
			}
			asks[w.member].Ranks = append(asks[w.member].Ranks, p.shares[i].rank)
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
func (p *publisher) giveUp(why string) {
	step := min(p.attempt.Step, p.d.state.Spec.LastStep-1)
	p.attempt, p.retry = nil, time.Now()
	if why == "" {
		p.newest = max(p.newest, step)
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
	if p.attempt == nil || m.Attempt != *p.attempt || p.busy || m.Rank < 0 || int(m.Rank) >= len(p.shares) {
		return
	}
	s, x, now := p.d.state, &p.shares[m.Rank], time.Now()
	k := slices.IndexFunc(x.writers, func(w shareWriter) bool { return w.member == id })
	if k < 0 || x.written {
		return
	}
	p.moved = now
	if p.begun.IsZero() {
		p.begin(now)
	}
	if m.Missed || m.Failed != "" {
		x.writers[k].failed, x.writers[k].why = true, m.Failed
		p.attend(now)
		return
	}
	c := x.coordinate
	if m.Part.Rank != m.Rank || m.Label.Coordinate != c || m.Label.Step != m.Attempt.Step || !s.OfLineage(m.Label) || p.labels[c] != (phalanx.Label{}) && p.labels[c] != m.Label {
		p.d.log.Warn("a share has another label", "about", string(id), "rank", int(m.Rank), "label", m.Label.String())
		p.attempt = nil
		return
	}
	p.labels[c], x.part, x.written, x.took = m.Label, m.Part, true, now.Sub(p.begun)
	if p.written() == len(p.shares) {
		p.publish()
	}
}
