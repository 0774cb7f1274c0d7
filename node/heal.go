// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"phalanx"
	"phalanx/ckpt/peer"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// healing brings the state of the floor into the own trainer: it reads the bytes from living members, from slabs or from
// the store, and passes them through the fill ring, from which the trainer copies them into its registered memory.
type healing struct {
	d      *Daemon
	life   *life
	do     elastic.Heal
	cancel context.CancelFunc
	done   chan struct{}
	free   chan int // the places of the fill ring that are free
	slots  [wire.FillCount]chan uint64
	seq    atomic.Uint64
	bytes  atomic.Int64
	total  int64
	begun  time.Time
	// made says that a tensor of which nothing is written is as the trainer made it.
	made bool
}

// sequenceBase is above every number that an earlier daemon on this page has used: they grow with the clock.
func sequenceBase() uint64 { return uint64(time.Now().UnixMicro()) }

func (d *Daemon) startHealing(do elastic.Heal) {
	d.stopHealing()
	l := d.life
	if l.segment == nil || len(l.layout) == 0 {
		l.layout, _ = d.state.LayoutOf(do.Label.Coordinate)
	}
	if l.segment == nil {
		return // the trainer is gone; its death is reported
	}
	ctx, cancel := context.WithCancel(d.ctx)
	h := &healing{d: d, life: l, do: do, cancel: cancel, done: make(chan struct{}), free: make(chan int, wire.FillCount), begun: time.Now()}
	h.made = l.asMade()
	if do.Source.Kind != elastic.FromWarmStart {
		l.changed = true
	}
	h.seq.Store(sequenceBase())
	for i := range h.slots {
		h.slots[i] = make(chan uint64, 1) // 1: one answer is waited for at a time
		h.free <- i
	}
	for _, t := range l.layout {
		h.total += t.Bytes()
	}
	d.heal = h
	failpoint.Here("heal-begun")
	world, state, last := d.state.World.Clone(), d.state, d.healed
	d.healed = h.done
	d.log.Info("heals", "generation", do.Generation.String(), "to", do.Label.String(), "source", string(do.Source.Kind), "bytes", h.total)
	d.ends.Go(func() {
		defer close(h.done)
		if last != nil {
			<-last // each place of the fill ring has one writer
		}
		err := h.persist(ctx, world, state)
		if err == nil || ctx.Err() != nil {
			return
		}
		d.post(func() {
			if d.heal == h {
				d.log.Warn("heal broken off", "generation", do.Generation.String(), "error", err)
				d.run(l.machine.Step(elastic.HealBroken{Generation: do.Generation, Why: err.Error()}))
			}
		})
	})
}

// asMade reports whether the tensors of the trainer are those that it was started with, but for what a warm start has written.
func (l *life) asMade() bool {
	applied, _ := l.page.ReadApplied()
	return !l.changed && (applied.TrainerStart != l.helloStart || applied.Step == 0)
}

// stopHealing ends the heal under way, if there is one.
func (d *Daemon) stopHealing() {
	if d.heal != nil {
		d.heal.cancel()
		d.heal = nil
	}
}

// moved passes the trainer's answers on to the writers that wait for them. The loop calls it.
func (h *healing) moved() {
	for i := range h.slots {
		word := h.life.page.Filled(i)
		select {
		case h.slots[i] <- word:
		default: // nobody has taken the last one yet: replace it
			select {
			case <-h.slots[i]:
			default:
			}
			select {
			case h.slots[i] <- word:
			default:
			}
		}
	}
	if h.life.seen.Healed.Generation == h.do.Generation && h.life.seen.Healed.OK && h.d.timings.HealedNS == 0 {
		failpoint.Here("heal-result-seen")
		h.d.timings.HealedNS = time.Now().UnixNano()
		h.d.meters.heals.Observe(time.Since(h.begun).Seconds())
		h.d.dirty = true
	}
}

// persist tries again for as long as sources may still become readable: a donor that rolls forward, a connection that broke.
func (h *healing) persist(ctx context.Context, world phalanx.World, s *elastic.State) error {
	for try := 0; ; try++ {
		err := h.read(ctx, world, s)
		if err == nil || try == 4 {
			return err
		}
		h.d.log.Info("heal is tried again", "generation", h.do.Generation.String(), "error", err)
		select {
		case <-time.After(100 * time.Millisecond << try):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// read fetches the state, then tells the trainer which digests to expect.
func (h *healing) read(ctx context.Context, world phalanx.World, s *elastic.State) error {
	var digests []phalanx.Digest
	var err error
	switch h.do.Source.Kind {
	case elastic.FromStore:
		digests, err = h.fromStore(ctx, world)
	case elastic.FromLive, elastic.FromSlab:
		digests, err = h.fetch(ctx, world, h.do.Source.Kind, live{h, ctx}, nil)
	case elastic.FromWarmStart:
		digests, err = h.fromWarmStart(ctx, world, s.WarmStart)
	case elastic.FromSeed:
		err = fmt.Errorf("the trainer is not at the initial state of the seed")
	default:
		err = fmt.Errorf("source %q is unknown: %w", h.do.Source.Kind, errors.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	failpoint.Here("healed")
	l := h.life
	at := l.digestOffset()
	for i, x := range digests {
		binary.LittleEndian.PutUint64(l.segment.Bytes()[at+int64(i)*digestSize:], x[0])
		binary.LittleEndian.PutUint64(l.segment.Bytes()[at+int64(i)*digestSize+8:], x[1])
	}
	label := h.do.Label
	l.page.WriteHealEnd(wire.HealEnd{Generation: h.do.Generation, Sequence: h.seq.Add(1), LabelStep: label.Step, LabelGeneration: label.Generation,
		LabelDigest: label.Digest, Coordinate: label.Coordinate, DigestsOffset: at, DigestsCount: len(digests)})
	failpoint.Here("heal-end-written")
	h.d.ringTrainer()
	return nil
}

// byName orders stored digests like the trainer's tensors and maps stored indexes to the trainer's.
func byName(stored []phalanx.TensorInfo, have []phalanx.Digest, wanted []phalanx.TensorInfo) ([]int, []phalanx.Digest, error) {
	index, digests := make([]int, len(stored)), make([]phalanx.Digest, len(wanted))
	for i, t := range stored {
		j := slices.IndexFunc(wanted, func(w phalanx.TensorInfo) bool { return w.Name == t.Name })
		if j < 0 {
			return nil, nil, fmt.Errorf("tensor %q is not in the trainer's state", t.Name)
		}
		index[i], digests[j] = j, have[i]
	}
	return index, digests, nil
}

// renamed is the sink of a restore whose tensors are stored in another order.
type renamed struct {
	h     *healing
	index []int
	ctx   context.Context
}

func (r renamed) Write(tensor int, off int64, p []byte) error {
	return r.h.write(r.ctx, r.index[tensor], off, p)
}

// fetch reads the state from the source's holders: from their trainers or, with kind FromSlab, from slabs. agreed may refuse what
// the holders say that they have, before the first byte.
func (h *healing) fetch(ctx context.Context, world phalanx.World, kind elastic.SourceKind, sink peer.Sink, agreed func([]phalanx.Digest) error) ([]phalanx.Digest, error) {
	do := h.do
	do.Source.Kind = kind
	var donors []peer.Donor
	for _, id := range do.Source.Holders {
		seat := world.SeatOf(id)
		if id == h.life.who.Member && kind == elastic.FromLive {
			continue
		}
		if kind == elastic.FromLive && seat != nil && seat.Coordinate != do.Label.Coordinate {
			continue
		}
		addr := ""
		if id == h.life.who.Member {
			addr = h.d.addr()
		} else if p, ok := h.d.roster.peer(id); ok {
			addr = p.Addr
		}
		if addr == "" {
			continue
		}
		who := phalanx.Incarnate{Member: id}
		if seat != nil {
			who = seat.Incarnate
		}
		donors = append(donors, &donor{d: h.d, who: who, addr: addr, do: do, tensors: len(h.life.layout)})
	}
	if len(donors) == 0 {
		return nil, fmt.Errorf("nobody of %v can be reached for %s", do.Source.Holders, do.Label)
	}
	shared, own := splitOwn(h.life.layout)
	digests := make([]phalanx.Digest, len(h.life.layout))
	o := peer.Options{ChunkBytes: ringChunk, ReadTimeout: 10 * time.Second}
	if agreed != nil {
		o.Agreed = func(have []phalanx.Digest) error {
			scatter(digests, shared, have)
			return agreed(digests)
		}
	}
	if err := fetchSome(ctx, donors, h.life.layout, shared, sink, o, digests); err != nil {
		return nil, fmt.Errorf("heal from %d members: %w", len(donors), err)
	}
	if len(own) == 0 || agreed != nil { // who compares takes what is each rank's own from elsewhere
		return digests, nil
	}
	// Of what each rank has of its own there is one source: what this member had itself in an earlier life, if that is there.
	o.Agreed = nil
	slices.SortStableFunc(donors, func(a, b peer.Donor) int {
		mine := func(x peer.Donor) bool { return x.Member().Member == h.life.who.Member }
		return cmp.Compare(btoi(mine(b)), btoi(mine(a)))
	})
	var err error
	for i := range donors {
		if err = fetchSome(ctx, donors[i:i+1], h.life.layout, own, sink, o, digests); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("heal each rank's own tensors: %w", err)
	}
	return digests, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// live is the sink of a fetch.
type live struct {
	h   *healing
	ctx context.Context
}

func (w live) Write(tensor int, off int64, p []byte) error { return w.h.write(w.ctx, tensor, off, p) }

// write passes bytes through the fill ring into the trainer, piece by piece.
func (h *healing) write(ctx context.Context, tensor int, off int64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), ringChunk)
		if err := h.piece(ctx, tensor, off, p[:n]); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
		if h.bytes.Add(int64(n)) >= h.total/2 {
			failpoint.Here("heal-half-way")
		}
		h.d.meters.healed.WithLabelValues("read").Add(float64(n))
	}
	return nil
}

func (h *healing) piece(ctx context.Context, tensor int, off int64, p []byte) error {
	deadline := time.NewTimer(formDeadline)
	defer deadline.Stop()
	var i int
	select {
	case i = <-h.free:
	case <-ctx.Done():
		return ctx.Err()
	case <-deadline.C:
		return fmt.Errorf("the trainer gave no place for bytes free for %s", formDeadline)
	}
	l := h.life
	at := l.fillSlot(i)
	copy(l.segment.Bytes()[at:], p)
	seq := h.seq.Add(1)
	l.page.WriteFill(i, wire.Fill{Generation: h.do.Generation, Sequence: seq, Tensor: tensor, Offset: off, Length: int64(len(p)), SegmentOffset: at})
	h.d.ringTrainer()
	for {
		if got, status := wire.ParseAnswer(l.page.Filled(i)); got == seq {
			h.free <- i // answered: the trainer reads it no more
			if status != wire.StatusOK {
				return fmt.Errorf("the trainer refused bytes of tensor %d: %s", tensor, status)
			}
			return nil
		}
		select {
		case <-h.slots[i]:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("the trainer took no bytes of tensor %d for %s", tensor, formDeadline)
		}
	}
}

// rate is the bytes a second so far.
func (h *healing) rate() float64 {
	if s := time.Since(h.begun).Seconds(); s > 0 {
		return float64(h.bytes.Load()) / s
	}
	return 0
}
