// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/host"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
	"phalanx/internal/planted"
)

// execute carries out one action. Votes, seals and refusals are written here, on the loop's goroutine, and nowhere else.
func (d *Daemon) execute(a elastic.Action) {
	l := d.life
	switch a := a.(type) {
	case elastic.WriteVote:
		if planted.On(planted.VoteElsewhere) {
			time.AfterFunc(10*time.Millisecond, func() { d.writeVote(l, a.Vote) })
			return
		}
		d.writeVote(l, a.Vote)
	case elastic.WriteSealed:
		d.turn.must("a seal")
		failpoint.Here("sealing")
		l.page.WriteSealed(wire.Sealed{Generation: a.Generation})
		failpoint.Here("sealed")
		d.dirty = true
	case elastic.WriteRefusal:
		d.turn.must("a refusal")
		failpoint.Here("refusing")
		l.page.WriteRefusal(wire.Refusal{Generation: a.Generation, Step: a.Step, Who: a.Who, Why: refusalWhy(a.Evidence.Kind)})
		failpoint.Here("refused")
		d.addEvidence(a.Evidence)
	case elastic.WriteCommit:
		failpoint.Here("commit-telling")
		l.page.WriteCommit(wire.Commit{Generation: a.Generation, Step: a.Step})
		failpoint.Here("commit-written")
		d.ringTrainer()
		failpoint.Here("commit-told")
	case elastic.WriteSeat:
		if d.plain != nil {
			return // a plain trainer's seat is written with its hello, for good
		}
		failpoint.Here("seat-writing")
		l.page.WriteSeat(d.seat(a.Do))
		failpoint.Here("seat-written")
		d.ringTrainer()
	case elastic.Abort:
		d.abort(a.Generation)
	case elastic.Form:
		if d.plain != nil {
			d.plain.form(a.Generation)
			return
		}
		d.startForming(a.Generation)
	case elastic.Heal:
		d.startHealing(a)
	case elastic.StopHealing:
		d.stopHealing()
		d.peers.serving.fence(a.Generation)
		d.evidence = nil
		d.timings = FirstStep{Generation: a.Generation}
	case elastic.AnswerSeal:
		answer := a.Answer
		answer.Slabs = l.slabLabels()
		failpoint.Here("seal-answering")
		d.sendUp(&Message{Answer: &answer})
		failpoint.Here("seal-answered")
	case elastic.Report:
		d.addEvidence(a.Evidence)
	case elastic.FirstStep:
		d.timings.StepNS, d.timings.Generation = time.Now().UnixNano(), a.Generation
		t := d.timings
		d.sendUp(&Message{First: &t})
	case elastic.Fence:
		d.fenced(a.Why)
	case elastic.End:
		d.dismiss() // one that has said no hello yet would meet files that are gone
		d.jobEnded(a.Why)
	}
}

// writeVote puts a vote on the page and then tells everybody.
func (d *Daemon) writeVote(l *life, v elastic.Vote) {
	d.turn.must("a vote")
	failpoint.Here("vote-writing")
	l.page.WriteVote(wire.Vote{Generation: v.Generation, Step: v.Step, OK: v.OK, Digest: v.Digest, Coordinate: d.coordinate()})
	failpoint.Here("vote-written")
	d.ringVoters(v)
	d.peers.sendVote(l.who, v)
}

func refusalWhy(k phalanx.EvidenceKind) wire.Why {
	if k == phalanx.DigestsUnequal {
		return wire.WhyDigestsUnequal
	}
	return wire.WhyVoteNotOK
}

func (d *Daemon) coordinate() int {
	if s := d.life.machine.Seat(); s != nil {
		return s.Coordinate
	}
	return 0
}

func (d *Daemon) ringTrainer() { d.bells.Bell(2*d.cfg.Index + 1).Ring() }

// ringVoters wakes the daemons of this host that are in the world if this vote may be the last that they wait for. While
// another one of the host is missing there is nothing to decide yet, and who casts that one comes after us: votes are written
// before the others' are read, in the one order of atomics, so the last of a host sees all of them and rings everybody. A
// vote that is not ok is told at once, and so is one beside a member whose page is not known here.
func (d *Daemon) ringVoters(v elastic.Vote) {
	if v.OK && d.voteMissing(v) {
		return
	}
	for _, seat := range d.state.World.Seats {
		if seat.Member != d.me() && seat.Member.Host() == d.cfg.Host {
			d.bells.Bell(2 * seat.Member.Index()).Ring()
		}
	}
}

// voteMissing reports whether a member of the world on this host has not voted for the step on its page.
func (d *Daemon) voteMissing(v elastic.Vote) bool {
	for _, seat := range d.state.World.Seats {
		if seat.Member == d.me() || seat.Member.Host() != d.cfg.Host {
			continue
		}
		s := d.sibling(seat.Member)
		if s == nil || s.life != seat.Incarnation {
			continue
		}
		if o, _ := s.page.ReadVote(); o.Generation != v.Generation || o.Step < v.Step {
			return true
		}
	}
	return false
}

// addEvidence keeps evidence against the current generation; it is reported until a newer entry is read.
func (d *Daemon) addEvidence(e phalanx.Evidence) {
	if e.UnixNS == 0 {
		e.UnixNS = time.Now().UnixNano()
	}
	if !slices.ContainsFunc(d.evidence, func(o phalanx.Evidence) bool { return o.Kind == e.Kind && o.About == e.About && o.Step == e.Step }) {
		d.evidence = append(d.evidence, e)
		d.dirty = true
	}
}

// seat is what the trainer is told about its place.
func (d *Daemon) seat(do elastic.SeatAction) wire.Seat {
	w := &d.state.World
	s := wire.Seat{Generation: w.Generation, Branch: uint64(d.state.Branch), Action: wire.Action(do), Rank: phalanx.NoRank, World: w.Size(), GroupSize: w.GroupSize, SlotCount: w.SlotCount}
	if d.state.Spec != nil {
		s.LastStep = d.state.Spec.LastStep
	}
	seat := d.life.machine.Seat()
	if seat == nil {
		return s
	}
	floor := d.state.Floor.Label(seat.Coordinate)
	s.Rank, s.Coordinate, s.SlotFirst, s.SlotEnd = seat.Rank, seat.Coordinate, seat.Slots.First, seat.Slots.End
	s.ResumeStep, s.ResumeGeneration, s.ResumeDigest = floor.Step, floor.Generation, floor.Digest
	for _, o := range w.Seats {
		if o.Member.Host() == d.cfg.Host {
			if o.Rank < seat.Rank {
				s.LocalRank++
			}
			s.LocalWorld++
		}
	}
	return s
}

// abort revokes collectives; the machine hears when every worker has left.
func (d *Daemon) abort(g phalanx.Generation) {
	d.kv.revoke(g)
	if d.plain != nil {
		d.plain.abort(g)
		return
	}
	if d.form != nil && !g.Less(d.form.generation) {
		d.stopForming()
	}
	left := d.engine.Revoke(g)
	failpoint.Here("revoked")
	l := d.life
	d.postDescriptors() // what waited for the generation to be formed
	d.ends.Go(func() {
		<-left // the engine's workers check at every chunk
		d.post(func() {
			if d.life == l {
				d.run(l.machine.Step(elastic.WorkersLeft{Generation: g}))
			}
		})
	})
}

// fenced ends this life: the log has removed it.
func (d *Daemon) fenced(why string) {
	l := d.life
	if l.died == nil {
		l.died = &phalanx.Evidence{Kind: phalanx.Asked, About: l.who, Source: d.me(), UnixNS: time.Now().UnixNano(), Detail: why}
	}
	failpoint.Here("fenced-out")
	if l.trainer != nil {
		l.trainer.kill()
		d.before, l.trainer = l.trainer, nil
	}
	d.log.Info("fenced out", "incarnation", uint64(l.who.Incarnation), "why", why)
	if d.leaving {
		d.end(Outcome{Code: CodePreempted, Reason: "left the job in order", Generation: d.state.World.Generation, Step: d.state.Floor.Step})
		return
	}
	if m := d.state.Member(d.me()); m != nil && m.Drained && m.Incarnation == l.who.Incarnation {
		d.end(Outcome{Code: CodeOK, Reason: "drained: " + why, Generation: d.state.World.Generation, Step: d.state.Floor.Step})
		return
	}
	// The next life begins once the loop has left the machine: ensureTrainer follows every new state.
}

// jobEnded ends the daemon with the job.
func (d *Daemon) jobEnded(why string) {
	s := d.state
	o := Outcome{Reason: why, Generation: s.World.Generation, Step: d.committed()}
	switch {
	case s.Done != nil:
		o.Code, o.Done, o.Step, o.Digest = CodeOK, true, s.Done.Step, s.Done.Digest
		if d.plain != nil {
			o.Step = 0 // its steps are the trainers' own
		}
	case s.Halt != nil:
		o.Code, o.Hint = haltOutcome(s.Halt.Kind, d.cfg.Dir, d.failedAs)
	default:
		o.Code, o.Hint = CodeFailed, seeExplain
	}
	d.end(o)
}

// committed is the newest step that this daemon knows to be decided.
func (d *Daemon) committed() phalanx.Step {
	step := d.state.Floor.Step
	if l := d.life; l != nil && l.seen.Holds && d.state.OfLineage(l.seen.Label) {
		step = max(step, l.seen.Label.Step)
	}
	return step
}

// forming is the formation of one generation's communicators under way.
type forming struct {
	generation phalanx.Generation
	cancel     context.CancelFunc // when another generation is formed or this one ends: nobody waits for its connections
}

// mapped are the mappings of a sibling's life, kept across generations so that survivors form at once.
type mapped struct {
	segment, board *wire.Region
}

type lifeKey struct {
	index int
	life  phalanx.Incarnation
	kinds memoryKinds
}

// memoryKinds are the kinds of the files that hold a segment and a board.
type memoryKinds struct{ segment, board string }

func plainKinds(g phalanx.Generation) memoryKinds {
	return memoryKinds{plainSegment + g.String(), plainBoard + g.String()}
}

// startForming maps this host's peers and connects to the others, then hands them to the engine.
func (d *Daemon) startForming(g phalanx.Generation) {
	d.refreshSiblings()
	d.stopForming()
	failpoint.Here("form-begun")
	ctx, cancel := context.WithCancel(d.ctx)
	d.form = &forming{g, cancel}
	world := d.state.World.Clone()
	l := d.life
	d.ends.Go(func() {
		defer cancel()
		links, err := d.formEngine(ctx, world, l.who, &l.retired, l.segment, l.board, memoryKinds{"seg", "board"})
		d.post(func() {
			if d.life != l || d.form == nil || d.form.generation != g {
				return
			}
			d.form = nil
			switch {
			case errors.Is(err, phalanx.ErrStaleGeneration):
			case err != nil:
				d.log.Warn("not formed", "generation", g.String(), "error", err)
				if d.state.World.Generation == g {
					time.AfterFunc(100*time.Millisecond, func() { d.post(func() { d.formAgain(g) }) })
				}
			default:
				d.timings.FormedNS = time.Now().UnixNano()
				d.links = usedLinks{g, links}
				failpoint.Here("formed")
				d.setLease()
				d.run(l.machine.Step(elastic.Formed{Generation: g}))
				d.rereadVotes()
				d.giveGroups(g) // others may wait for this member's groups, whatever it posts
				d.postDescriptors()
				d.dirty = true
			}
		})
	})
}

// stopForming gives up the formation under way, if there is one.
func (d *Daemon) stopForming() {
	if d.form != nil {
		d.form.cancel()
		d.form = nil
	}
}

// formAgain tries a formation again: a peer's memory or port was not there yet. The leader ends what does not get ready.
func (d *Daemon) formAgain(g phalanx.Generation) {
	if d.state.World.Generation == g && d.form == nil && d.life.machine.State() == elastic.LocalForming {
		d.startForming(g)
	}
}

// formEngine runs beside the loop and returns the connections to other hosts that the engine uses now. It touches the mappings,
// which only one formation at a time does.
func (d *Daemon) formEngine(ctx context.Context, world phalanx.World, who phalanx.Incarnate, retired *atomic.Bool, segment, board *wire.Region,
	kinds memoryKinds) ([]host.RemotePeer, error) {
	d.forming.Lock()
	defer d.forming.Unlock()
	seat := world.SeatOf(who.Member)
	if retired.Load() || ctx.Err() != nil { // its memory is unmapped under the same lock
		return nil, fmt.Errorf("form %s: %w", world.Generation, phalanx.ErrStaleGeneration)
	}
	if seat == nil || segment == nil || board == nil {
		return nil, fmt.Errorf("form %s: the trainer has no segment", world.Generation)
	}
	var locals []host.LocalPeer
	keep := map[lifeKey]bool{}
	for _, o := range world.Seats {
		if o.Member == who.Member || o.Member.Host() != d.cfg.Host {
			continue
		}
		key := lifeKey{o.Member.Index(), o.Incarnation, kinds}
		m, err := d.mapSibling(key)
		if err != nil {
			return nil, fmt.Errorf("form %s with %s: %w", world.Generation, o.Incarnate, err)
		}
		keep[key] = true
		locals = append(locals, host.LocalPeer{Rank: o.Rank, Segment: m.segment.Bytes(), Board: m.board.Bytes(), Ring: d.bells.Bell(2 * key.index).Ring})
	}
	remotes, err := d.peers.dataLinks(ctx, &world, seat.Rank)
	if err != nil {
		return nil, fmt.Errorf("form %s with %w", world.Generation, err)
	}
	failpoint.Here("peers-mapped")
	self := host.Self{Rank: seat.Rank, Segment: segment.Bytes(), Board: board.Bytes()}
	if err := d.engine.Form(world, self, locals, remotes); err != nil {
		return nil, err
	}
	for key, m := range d.mappings { // the engine uses none of these any more
		if !keep[key] {
			_ = m.segment.Unmap()
			_ = m.board.Unmap()
			delete(d.mappings, key)
		}
	}
	return remotes, nil
}

func (d *Daemon) mapSibling(key lifeKey) (mapped, error) {
	if m, ok := d.mappings[key]; ok {
		return m, nil
	}
	segment, err := d.paths.memory.OpenRegion(d.paths.Shared(key.index, key.life, key.kinds.segment), false)
	if err != nil {
		return mapped{}, err
	}
	board, err := d.paths.memory.OpenRegion(d.paths.Shared(key.index, key.life, key.kinds.board), false)
	if err != nil {
		return mapped{}, errors.Join(err, segment.Unmap())
	}
	m := mapped{segment, board}
	d.mappings[key] = m
	return m, nil
}

// groupOf is the engine's group of a descriptor's: the replicas of the own coordinate, or the whole world.
func groupOf(g uint64) int {
	if g == ^uint64(0) {
		return host.GroupWorld
	}
	return host.GroupReplicas
}

// postDescriptor hands one collective to the engine. Its completion is written from the engine's goroutine: the word has
// one writer, and nobody posts this descriptor twice.
func (d *Daemon) postDescriptor(l *life, v wire.Descriptor) {
	op := host.Op{
		Seq: v.Sequence, Kind: host.Kind(v.Op), DType: host.DType(v.DType), Group: groupOf(v.Group), Root: v.Root, Count: v.Count,
		InOffset: v.InOffset, InStride: v.InStride, InNodes: v.InNodes, OutOffset: v.OutOffset, Scale: v.Scale == wire.ScaleMean,
		Reduction: host.Reduction(v.Reduction), Peer: v.Peer, Tag: v.Tag, Counts: v.Flags&uint64(wire.CollFlagCounts) != 0, CountsOffset: v.CountsOffset,
	}
	if isMade(v.Group) {
		op.ID = v.Group
	}
	d.engine.Post(v.Generation, op, func(err error) {
		status := wire.StatusOK
		switch {
		case err == nil:
		case errors.Is(err, host.ErrPeer) && op.ID != 0: // an abort is an end in order; watchLinks complains of what broke
			status = wire.StatusRevoked
		case errors.Is(err, host.ErrPeer):
			status = wire.StatusRevoked
			d.ends.Go(func() { d.post(func() { d.peerGaveUp(l, v.Generation, err, false) }) }) // the loop itself may be running this
		case errors.Is(err, phalanx.ErrRevoked), errors.Is(err, phalanx.ErrStaleGeneration):
			status = wire.StatusRevoked
		default:
			status = wire.StatusFailed
			d.log.Error("collective failed", "sequence", v.Sequence, "error", err)
		}
		failpoint.Here("collective-completing")
		l.page.CompleteDescriptor(v.Sequence, status)
		failpoint.Here("collective-completed")
		d.ringTrainer()
	})
}
