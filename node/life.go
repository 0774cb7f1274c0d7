// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/host"
	"phalanx/elastic"
	"phalanx/membership"
)

// The daemon's own part of a segment lies behind the trainer's: rings through which a heal is served and received, then the
// digests of the tensors.
const (
	ringChunk  = 1 << 20
	ringBytes  = (wire.ServeCount + wire.FillCount) * ringChunk
	digestSize = 16
	// maxSegment is far beyond any memory and leaves room for our part without overflow.
	maxSegment = 1 << 56
)

// life is one incarnation of the member: its page, its trainer and the shared memory between them. The loop owns it.
type life struct {
	who     phalanx.Incarnate
	page    *wire.Page
	segment *wire.Region
	board   *wire.Region
	layout  []phalanx.TensorInfo
	slabs   []ownSlab // of the state, in the order of slabKinds
	ring    int64     // offset of the daemon's part of the segment
	machine *elastic.Machine
	trainer *trainerProcess
	// hello is the trainer's identity on the page; zero before its hello. It may be a child of the started process.
	helloPID   int
	helloStart uint64
	spec       *phalanx.JobSpec
	pin        phalanx.Pin          // where alone the trainer may sit, by its hello
	place      phalanx.Pin          // what it was told when it asked
	said       []phalanx.TensorInfo // of an adopted life: what its trainer registered
	posted     uint64               // descriptors handed to the engine
	seen       elastic.Trainer
	died       *phalanx.Evidence // why the trainer is gone
	finished   bool
	digest     phalanx.Digest
	startedAt  time.Time // of the trainer
	stopped    membership.Stopped
	lastMove   time.Time // of its progress counter
	progress   uint64
	plain      bool        // without the step protocol
	lost       int64       // bytes of the segment that was
	broken     error       // why memory that an adopted trainer was given cannot be mapped
	retired    atomic.Bool // its memory is about to be unmapped
	pulse      *pulse      // nil: the trainer keeps none, or none was seen yet
	ringOf     *plainRing  // of a plain trainer that has said hello
	groups     []*madeGroup
	aborts     [wire.AbortCount]uint64 // how often each T_ABORT was written when it was looked at
	oneSlab    string                  // why it has one slab although two were asked for
	changed    bool                    // the trainer's tensors may hold what others made: a heal from one of them was begun
}

// ownSlab is memory of a life for one whole state.
type ownSlab struct {
	*wire.Slab
	region *wire.Region
}

// slabKinds are the files of a life's slabs. A life without the second one has one.
var slabKinds = []string{"slab", "slab1"}

// newLife makes the shared memory of an incarnation that was never used.
func newLife(paths Paths, index int, who phalanx.Incarnate) (*life, error) {
	page, err := paths.memory.CreatePage(paths.Shared(index, who.Incarnation, "page"), 2*index, 2*index+1)
	if err != nil {
		return nil, fmt.Errorf("start incarnation %d: %w", who.Incarnation, err)
	}
	return &life{who: who, page: page}, nil
}

// adoptLife takes over the newest page of the member, nil when there is none of this boot. It waits for the lock that the
// kernel frees when the daemon before this one ends. The error wraps wire.ErrFormat when that page is damaged.
func adoptLife(paths Paths, index int, id phalanx.MemberID, wait time.Duration) (*life, error) {
	boot0, boot1 := bootWords(paths.system)
	lives := paths.Lives(index)
	for i := len(lives) - 1; i >= 0; i-- {
		n := lives[i]
		var page *wire.Page
		var err error
		for end := time.Now().Add(wait); ; {
			if page, err = paths.memory.AdoptPage(paths.Shared(index, n, "page")); err == nil || !errors.Is(err, wire.ErrLocked) || time.Now().After(end) {
				break
			}
			time.Sleep(5 * time.Millisecond) // the kernel frees the lock at the old daemon's end; nothing signals it
		}
		if errors.Is(err, wire.ErrLocked) {
			return nil, &Problem{CodeLocked, fmt.Errorf("take over %s: its daemon still lives", id), "end it first; phalanx status names its pid"}
		}
		if err != nil {
			return nil, fmt.Errorf("take over %s: %w", id, err)
		}
		identity, seq := page.ReadIdentity()
		if seq == 0 || identity.Member != id || identity.Incarnation != n || identity.Boot0 != boot0 || identity.Boot1 != boot1 {
			_ = page.Unmap()
			continue // another boot's, another host name's, or never used: it holds no promise of ours
		}
		if identity.State == wire.LifeLeaving {
			return nil, page.Unmap() // it ended in order: what lives it had before are over too
		}
		l := &life{who: phalanx.Incarnate{Member: id, Incarnation: n}, page: page}
		l.reopen(paths, index, identity)
		return l, nil
	}
	return nil, nil
}

// reopen maps what the trainer of an adopted page was given.
func (l *life) reopen(paths Paths, index int, identity wire.Identity) {
	l.helloPID, l.helloStart = identity.TrainerPID, identity.TrainerStart
	alive := l.helloPID > 0 && paths.system.Alive(l.helloPID, l.helloStart)
	healing, _ := l.page.ReadHealing()
	l.changed = healing.TrainerStart == l.helloStart && !healing.Generation.IsZero() // of what, the daemon before this one knew
	l.posted = 0
	for l.posted < l.page.RingHead() && l.page.Completion(l.posted+1) != wire.StatusNone {
		l.posted++
	}
	if head := l.page.RingHead(); head > wire.DescriptorCount && l.posted < head-wire.DescriptorCount {
		l.posted = head - wire.DescriptorCount
	}
	if identity.SegmentBytes == 0 {
		if !alive {
			l.helloPID, l.helloStart = 0, 0
		}
		return
	}
	if alive {
		l.trainer = &trainerProcess{system: paths.system, pid: l.helloPID, start: l.helloStart}
	}
	if x := findRegistration(paths, index, l.who.Incarnation); x != nil {
		l.spec, l.pin, l.said = &x.Spec, x.Coordinate, x.State
	}
	if l.broken = l.mapSegment(paths, index); l.broken != nil {
		for _, r := range []*wire.Region{l.segment, l.board} {
			if r != nil {
				_ = r.Unmap() // it was of no use
			}
		}
		l.segment, l.board, l.ring, l.lost = nil, nil, 0, identity.SegmentBytes
	}
}

// mapSegment maps the segment and the board of an adopted life.
func (l *life) mapSegment(paths Paths, index int) (err error) {
	if l.segment, err = paths.memory.OpenRegion(paths.Shared(index, l.who.Incarnation, "seg"), true); err != nil {
		return fmt.Errorf("take over the segment: %w", err)
	}
	if l.board, err = paths.memory.OpenRegion(paths.Shared(index, l.who.Incarnation, "board"), true); err != nil {
		return fmt.Errorf("take over the board: %w", err)
	}
	l.ring = int64(len(l.segment.Bytes())) - ringBytes
	if l.ring < 0 || len(l.board.Bytes()) < host.BoardBytes {
		return fmt.Errorf("take over the segment: %d bytes and a board of %d are too few", len(l.segment.Bytes()), len(l.board.Bytes()))
	}
	return nil
}

// openSlab maps the slab once the layout of the state is known, if the life has one.
func (l *life) openSlab(paths Paths, index int, layout []phalanx.TensorInfo) error {
	if l.slabs != nil || len(layout) == 0 {
		return nil
	}
	place, err := wire.LayoutSlab(layout)
	if err != nil {
		return err
	}
	if room := int64(len(layout))*digestSize + 4095; l.ring < room&^4095 {
		return fmt.Errorf("take over the slab: no room for the digests of %d tensors in the segment", len(layout))
	}
	var slabs []ownSlab
	for _, kind := range slabKinds {
		var s *wire.Slab
		r, err := paths.memory.OpenRegion(paths.Shared(index, l.who.Incarnation, kind), true)
		if len(slabs) > 0 && errors.Is(err, os.ErrNotExist) {
			break
		}
		if err == nil {
			s, err = wire.NewSlab(r.Bytes(), place)
			slabs = append(slabs, ownSlab{s, r})
		}
		if err != nil { // without one of two nobody knows where its trainer stages to
			unmapSlabs(slabs)
			return fmt.Errorf("take over the slab: %w", err)
		}
	}
	l.slabs, l.layout = slabs, layout
	return nil
}

func unmapSlabs(slabs []ownSlab) (errs []error) {
	for _, s := range slabs {
		errs = append(errs, s.region.Unmap())
	}
	return errs
}

// needs is the host memory that a trainer's hello asks for, by part.
func (l *life) needs(hello *wire.Hello) map[string]int64 {
	place, err := wire.LayoutSlab(hello.State)
	if err != nil || hello.SegmentBytes < 0 || hello.SegmentBytes > maxSegment {
		return nil // outfit says what is wrong
	}
	return outfitBytes(hello.SegmentBytes+int64(len(hello.State))*digestSize+ringBytes, boardBytes(hello), place.Total, place.Total)
}

// boardBytes is the size of the board of a trainer.
func boardBytes(hello *wire.Hello) int64 {
	return host.BoardBytes + host.GroupBytes(min(hello.Groups, host.MaxGroups))
}

// outfit makes the shared memory that a trainer's hello asks for.
func (l *life) outfit(paths Paths, index int, hello *wire.Hello) (err error) {
	place, err := wire.LayoutSlab(hello.State)
	if err != nil {
		return err
	}
	if hello.SegmentBytes < 0 || hello.SegmentBytes > maxSegment {
		return fmt.Errorf("segment of %d bytes: want 0 to %d", hello.SegmentBytes, int64(maxSegment))
	}
	n := l.who.Incarnation
	l.ring = (hello.SegmentBytes + 4095) &^ 4095
	digests := (int64(len(hello.State))*digestSize + 4095) &^ 4095
	if l.segment, err = paths.memory.CreateRegion(paths.Shared(index, n, "seg"), l.ring+digests+ringBytes); err != nil {
		return err
	}
	l.ring = int64(len(l.segment.Bytes())) - ringBytes
	if l.board, err = paths.memory.CreateRegion(paths.Shared(index, n, "board"), boardBytes(hello)); err != nil {
		return err
	}
	l.slabs = nil
	if err := l.addSlab(paths, index, place); err != nil {
		return err
	}
	if err := keepRegistration(paths, index, n, hello); err != nil {
		return err
	}
	l.layout = hello.State
	spec := hello.Spec
	l.spec, l.pin = &spec, hello.Coordinate
	l.helloPID, l.helloStart = hello.PID, hello.Start
	return nil
}

// addSlab makes memory for one more whole state.
func (l *life) addSlab(paths Paths, index int, place wire.SlabLayout) error {
	r, err := paths.memory.CreateRegion(paths.Shared(index, l.who.Incarnation, slabKinds[len(l.slabs)]), place.Total)
	if err != nil {
		return err
	}
	s, err := wire.NewSlab(r.Bytes(), place)
	if err != nil {
		return errors.Join(err, r.Unmap())
	}
	l.slabs = append(l.slabs, ownSlab{s, r})
	return nil
}

// slabBytes is the size of each slab, 0 without one.
func (l *life) slabBytes() int64 {
	if len(l.slabs) == 0 {
		return 0
	}
	return int64(len(l.slabs[0].region.Bytes()))
}

// slabPaths are the files of the slabs.
func (l *life) slabPaths(paths Paths, index int) []string {
	var out []string
	for i := range l.slabs {
		out = append(out, paths.Shared(index, l.who.Incarnation, slabKinds[i]))
	}
	return out
}

// digestOffset is where the expected digests of a heal lie in the segment.
func (l *life) digestOffset() int64 {
	return l.ring - (int64(len(l.layout))*digestSize+4095)&^4095
}

// serveSlot and fillSlot are the places of the rings in the segment.
func (l *life) serveSlot(i int) int64 { return l.ring + int64(i)*ringChunk }
func (l *life) fillSlot(i int) int64  { return l.ring + int64(wire.ServeCount+i)*ringChunk }

// identify writes who the page belongs to now.
func (l *life) identify(system System, index int, leaving bool) {
	boot0, boot1 := bootWords(system)
	v := wire.Identity{Member: l.who.Member, Incarnation: l.who.Incarnation, Boot0: boot0, Boot1: boot1, Index: index, TrainerPID: l.helloPID, TrainerStart: l.helloStart}
	v.DaemonPID, v.DaemonStart = system.Self()
	v.SegmentBytes = l.lost // also then the page says that there was a trainer
	if l.segment != nil {
		v.SegmentBytes = int64(len(l.segment.Bytes()))
	}
	v.SlabBytes = l.slabBytes()
	if leaving {
		v.State = wire.LifeLeaving
	}
	l.page.WriteIdentity(v)
}

// promises is what the page says to a daemon that adopts it.
func (l *life) promises() elastic.Page {
	var p elastic.Page
	if v, n := l.page.ReadSealed(); n > 0 {
		p.Sealed = v.Generation
	}
	if v, n := l.page.ReadVote(); n > 0 {
		p.Vote = elastic.Vote{Generation: v.Generation, Step: v.Step, OK: v.OK, Digest: v.Digest}
	}
	if v, n := l.page.ReadRefusal(); n > 0 {
		p.Refused = elastic.Refusal{Generation: v.Generation, Step: v.Step, Who: v.Who, Why: phalanx.VotedNotOK}
		if v.Why == wire.WhyDigestsUnequal {
			p.Refused.Why = phalanx.DigestsUnequal
		}
	}
	if v, n := l.page.ReadCommit(); n > 0 {
		p.Told = elastic.WriteCommit{Generation: v.Generation, Step: v.Step}
	}
	return p
}

// readTrainer is what the page says about the trainer. Fields of another trainer's are void.
func (l *life) readTrainer() elastic.Trainer {
	if l.plain {
		return l.plainTrainer()
	}
	var t elastic.Trainer
	if l.helloPID == 0 || l.died != nil {
		return t
	}
	t.Trainer = true
	applied, n := l.page.ReadApplied()
	applying, _ := l.page.ReadApplying()
	healing, _ := l.page.ReadHealing()
	if n > 0 && applied.TrainerStart == l.helloStart {
		t.Label, t.Holds = applied.Label(), applied.Valid
		if healing.On && healing.TrainerStart == l.helloStart {
			t.Possession = t.Torn()
		}
	}
	if !t.Holds {
		t.Label = phalanx.Label{}
	}
	if applying.TrainerStart == l.helloStart {
		t.Applying = applying.Step
	}
	if g, n := l.page.ReadGradient(); n > 0 && g.TrainerStart == l.helloStart {
		t.Gradient = elastic.Gradient{Generation: g.Generation, Step: g.Step, Digest: g.Digest, Coordinate: g.Coordinate}
	}
	if v, n := l.page.ReadVoteRequest(); n > 0 && v.TrainerStart == l.helloStart {
		t.Request = elastic.Vote{Generation: v.Generation, Step: v.Step, OK: v.OK, Digest: v.Digest}
	}
	if h, n := l.page.ReadHealResult(); n > 0 {
		t.Healed = elastic.HealResult{Generation: h.Generation, OK: h.OK}
	}
	return t
}

// slabLabels are the states that the slabs hold whole.
func (l *life) slabLabels() (out []phalanx.Label) {
	for _, s := range l.slabs {
		if label, whole := wholeLabel(s.Slab); whole {
			out = append(out, label)
		}
	}
	return out
}

// wholeLabel is the label of the state that a slab holds whole.
func wholeLabel(s *wire.Slab) (label phalanx.Label, whole bool) {
	h, n := s.ReadHeader()
	if n == 0 || h.State != wire.SlabStateFull || h.LayoutHash != s.Layout().Hash {
		return phalanx.Label{}, false
	}
	return h.Label(), true
}

// unmap lets the shared memory go. The files stay until the log calls the incarnation gone.
func (l *life) unmap() error {
	l.pulse.end()
	var errs []error
	if l.ringOf != nil {
		errs = append(errs, l.ringOf.unmap())
		l.ringOf = nil
	}
	for _, r := range []*wire.Region{l.segment, l.board} {
		if r != nil {
			errs = append(errs, r.Unmap())
		}
	}
	errs = append(errs, unmapSlabs(l.slabs)...)
	l.segment, l.board, l.slabs = nil, nil, nil
	errs = append(errs, l.page.Unmap())
	return errors.Join(errs...)
}
