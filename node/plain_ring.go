// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/host"
	"phalanx/elastic"
)

// plainRing is what the trainer of a job without the step protocol has for collectives: memory of one process, and so of one
// generation, beside the page of the life. The loop owns it; formations read it.
type plainRing struct {
	generation     phalanx.Generation
	pid            int
	start          uint64
	segment, board *wire.Region
	cancel         context.CancelFunc // of the formation under way
	silent         uint64             // count of the signs of life on the page before this process gave one
}

// Kinds of the files of a plain trainer, before the generation.
const (
	plainSegment = "seg-"
	plainBoard   = "board-"
)

// groupBoard is how many groups the trainer's board has room for.
func (l *life) groupBoard() int {
	b := l.board
	if l.ringOf != nil {
		b = l.ringOf.board
	}
	if b == nil {
		return 0
	}
	return host.Lanes(b.Bytes())
}

// hello answers a plain trainer that wants collectives.
func (p *plainRun) hello(h *wire.Hello) (*wire.Welcome, *wire.Error) {
	d, l, x := p.d, p.d.life, p.proc
	switch {
	case !h.Plain:
		return nil, d.wrongKind("this job runs without the step protocol, and its trainer wants it", "run it with --plain=false")
	case l == nil || x == nil: // it was not started by this daemon, or that is not noted yet
		return nil, &wire.Error{Message: "no trainer was started yet", Hint: "ask again", Code: wire.CodeBusy}
	case l.died != nil || x.life != l || x.over || x.Generation != d.state.World.Generation || !x.stopping.IsZero():
		return nil, &wire.Error{Message: fmt.Sprintf("generation %s is over", x.Generation), Hint: "exit; a new trainer is started", Code: wire.CodeFenced}
	case h.ProtocolMax < wire.Protocol || h.ProtocolMin > wire.Protocol:
		return nil, &wire.Error{Message: fmt.Sprintf("client speaks protocol %d to %d, the daemon %d", h.ProtocolMin, h.ProtocolMax, wire.Protocol), Hint: "use client and daemon of one release", Code: wire.CodeProtocol}
	case h.SegmentBytes < 0 || h.SegmentBytes > maxSegment:
		return nil, &wire.Error{Message: fmt.Sprintf("segment of %d bytes: want 0 to %d", h.SegmentBytes, int64(maxSegment)), Hint: "ask for less", Code: wire.CodeBadRequest}
	}
	r := l.ringOf
	switch {
	case r == nil || r.generation != x.Generation:
		if refused := p.outfit(h); refused != nil {
			return nil, refused
		}
		r = l.ringOf
	case r.pid != h.PID || r.start != h.Start:
		return nil, &wire.Error{Message: fmt.Sprintf("member %s has a trainer with collectives, pid %d", d.me(), r.pid), Hint: "one process per daemon", Code: wire.CodeBusy}
	case int64(len(r.segment.Bytes())) < h.SegmentBytes:
		return nil, &wire.Error{Message: fmt.Sprintf("the segment has %d bytes, of which others read already", len(r.segment.Bytes())), Hint: "ask for all in the first hello of the process", Code: wire.CodeNoSpace}
	}
	n := l.who.Incarnation
	return &wire.Welcome{
		Member: d.me(), Incarnation: n, Page: d.paths.Shared(d.cfg.Index, n, "page"), Bells: d.paths.Bells(),
		DaemonBell: 2 * d.cfg.Index, TrainerBell: 2*d.cfg.Index + 1, Segment: d.paths.Shared(d.cfg.Index, n, plainSegment+x.Generation.String()),
		SegmentBytes: int64(len(r.segment.Bytes())), Protocol: wire.Protocol, Spec: *plainSpec(),
	}, nil
}

// outfit makes the memory of a plain trainer, writes its seat and begins to form its generation.
func (p *plainRun) outfit(h *wire.Hello) *wire.Error {
	d, l, g := p.d, p.d.life, p.proc.Generation
	bytes := max((h.SegmentBytes+4095)&^4095, 4096)
	board := host.BoardBytes + host.GroupBytes(host.MaxGroups)
	if err := d.memory.admit(outfitBytes(bytes, board, 0, 0)); err != nil {
		return &wire.Error{Message: err.Error(), Hint: "raise --max-host-bytes, or run fewer members on each host", Code: wire.CodeNoSpace}
	}
	p.dropRing(l)
	d.paths.removePlain(d.cfg.Index, l.who.Incarnation)
	r := &plainRing{generation: g, pid: h.PID, start: h.Start, cancel: func() {}}
	var err error
	// The board comes first: who finds the segment finds both.
	if r.board, err = d.paths.memory.CreateRegion(d.paths.Shared(d.cfg.Index, l.who.Incarnation, plainBoard+g.String()), board); err == nil {
		r.segment, err = d.paths.memory.CreateRegion(d.paths.Shared(d.cfg.Index, l.who.Incarnation, plainSegment+g.String()), bytes)
	}
	if err != nil {
		_ = r.unmap()
		d.paths.removePlain(d.cfg.Index, l.who.Incarnation)
		return &wire.Error{Message: err.Error(), Hint: "free shared memory", Code: wire.CodeNoSpace}
	}
	l.ringOf = r
	before, _ := l.page.ReadProgress()
	r.silent = before.Counter
	d.voidAborts()
	l.page.WriteSeat(d.seat(elastic.SeatRun))
	p.formRing(r)
	return nil
}

// voidAborts makes what an earlier process of the life has asked to abort no concern of the present one.
func (d *Daemon) voidAborts() {
	for i := range wire.AbortCount {
		_, d.life.aborts[i] = d.life.page.ReadAbort(i)
	}
}

func (r *plainRing) unmap() (err error) {
	for _, x := range []*wire.Region{r.segment, r.board} {
		if x != nil {
			err = errors.Join(err, x.Unmap())
		}
	}
	return err
}

// adoptRing takes over the memory that a plain trainer was given by the daemon before this one.
func (p *plainRun) adoptRing(x *plainProcess) {
	d, l, g := p.d, x.life, x.Generation.String()
	segment, err := d.paths.memory.OpenRegion(d.paths.Shared(d.cfg.Index, l.who.Incarnation, plainSegment+g), true)
	if err != nil {
		return // it has said no hello
	}
	board, err := d.paths.memory.OpenRegion(d.paths.Shared(d.cfg.Index, l.who.Incarnation, plainBoard+g), true)
	if err != nil || len(board.Bytes()) < host.BoardBytes {
		d.log.Warn("the collectives of the trainer cannot be taken over; they fail until its next start", "error", err)
		_ = segment.Unmap()
		return
	}
	l.ringOf = &plainRing{generation: x.Generation, pid: x.PID, start: x.Start, segment: segment, board: board, cancel: func() {}}
}

// formRing forms the collectives of the generation, once all members of this host have said hello. It goes on until the generation
// ends: the others' trainers come when they like.
func (p *plainRun) formRing(r *plainRing) {
	d, l := p.d, p.d.life
	ctx, cancel := context.WithCancel(d.ctx)
	r.cancel = cancel
	world := d.state.World.Clone()
	if world.Generation != r.generation {
		cancel()
		return
	}
	d.ends.Go(func() {
		defer cancel()
		for told := false; ; {
			links, err := d.formEngine(ctx, world, l.who, &l.retired, r.segment, r.board, plainKinds(world.Generation))
			switch {
			case errors.Is(err, phalanx.ErrStaleGeneration) || ctx.Err() != nil:
				return
			case err == nil:
				d.post(func() {
					if d.life == l && l.ringOf == r {
						d.links = usedLinks{world.Generation, links}
						d.giveGroups(world.Generation)
						d.postDescriptors()
					}
				})
				return
			case !told && !errors.Is(err, os.ErrNotExist):
				told = true
				d.log.Info("collectives are not formed yet", "generation", world.Generation.String(), "error", err)
			}
			select {
			case <-time.After(20 * time.Millisecond): // a file appears, or a port: nothing signals it
			case <-ctx.Done():
				return
			}
		}
	})
}

// endRing revokes the collectives of a generation and older ones. The channel is closed when nobody is in their memory any more.
func (p *plainRun) endRing(g phalanx.Generation) <-chan struct{} {
	d := p.d
	if r := d.life.ringOf; r != nil && !g.Less(r.generation) {
		r.cancel()
	}
	left := d.engine.Revoke(g)
	d.postDescriptors() // what waited for the generation to be formed
	return left
}

// dropRing lets go of the memory of an earlier process of a life, once nobody is in it any more.
func (p *plainRun) dropRing(l *life) {
	r := l.ringOf
	if r == nil {
		return
	}
	l.ringOf = nil
	r.cancel()
	d := p.d
	left := d.engine.Revoke(r.generation)
	d.ends.Go(func() {
		<-left
		d.forming.Lock() // a formation that was under way reads it
		defer d.forming.Unlock()
		if err := r.unmap(); err != nil {
			d.log.Debug("unmap", "error", err)
		}
	})
}

// trouble is evidence against a plain trainer that has said where it is, and is there for too long. Who waits in a collective waits
// for others: the one that never entered it is named. A trainer that says nothing is never called hung.
func (p *plainRun) trouble(now time.Time) *phalanx.Evidence {
	d, l, x := p.d, p.d.life, p.proc
	if l == nil || l.died != nil || l.finished || l.ringOf == nil || x == nil || x.over || !x.stopping.IsZero() {
		return nil
	}
	if r := l.ringOf; r.generation != x.Generation {
		return nil // what stands on the page is of the process before
	}
	at, said := l.moved(now)
	if !said || at.Counter == l.ringOf.silent || at.Phase != wire.PhaseCompute {
		return nil
	}
	silence := now.Sub(l.lastMove)
	if d.cfg.Hang == 0 || silence <= d.cfg.Hang {
		return nil
	}
	x.hung = true
	return &phalanx.Evidence{
		About: l.who, Source: d.me(), UnixNS: now.UnixNano(), Kind: phalanx.Hung, Step: at.Step,
		Detail: fmt.Sprintf("no progress for %.1f s in %s of step %d", silence.Seconds(), at.Phase, at.Step),
	}
}
