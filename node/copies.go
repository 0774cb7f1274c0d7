// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"phalanx"
	"phalanx/ckpt/peer"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// A coordinate that is in the memory of one host alone is lost with that host. The leader lets a member of another host keep a
// copy of it (a replica of the slab, not of the trainer), which serves heals like any slab. copyplan.go says who keeps what.

// CopyAsk asks a member to keep a copy of a staged state in its own memory.
type CopyAsk struct {
	Generation phalanx.Generation `json:"generation"`
	Label      phalanx.Label      `json:"label"`
	From       []phalanx.MemberID `json:"from"` // who has it in slabs
}

// copyFiles are the files for copies in a member's shared memory: one is kept while the next one is filled.
var copyFiles = []string{"copy0", "copy1"}

// copying is a copy that is being made.
type copying struct {
	label  phalanx.Label
	bytes  int64
	cancel context.CancelFunc
}

// copyAsked begins a copy, unless the state is here already or is being copied.
func (s *saver) copyAsked(m *CopyAsk) {
	d := s.d
	layout, _ := d.state.LayoutOf(m.Label.Coordinate)
	if m.Generation != d.state.World.Generation || d.plain != nil || len(layout) == 0 || !d.state.OfLineage(m.Label) {
		return
	}
	if slices.Contains(s.slabs(), m.Label) || s.copy != nil && s.copy.label == m.Label {
		return
	}
	if s.copy != nil {
		s.copy.cancel() // a newer state; this one is asked for again
		return
	}
	place, err := wire.LayoutSlab(layout)
	if err != nil {
		d.log.Warn("no copy is kept", "error", err)
		return
	}
	file, err := s.copyRoom(place.Total)
	if err != nil {
		if s.refused != m.Label.Step {
			d.log.Warn("no copy of a staged state is kept", "step", uint64(m.Label.Step), "error", err)
		}
		s.refused = m.Label.Step
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	s.copy = &copying{m.Label, place.Total, cancel}
	s.countCopies()
	failpoint.Here("copy-begun")
	d.ends.Go(func() {
		defer cancel()
		held, err := s.makeCopy(ctx, m, file, layout, place)
		d.post(func() {
			s.copy = nil
			switch {
			case err == nil:
				s.copies = append(s.copies, held)
				d.log.Info("keeps a copy of a staged state", "step", uint64(m.Label.Step), "coordinate", m.Label.Coordinate, "bytes", place.Total)
				d.dirty = true
				failpoint.Here("copy-kept")
			case ctx.Err() == nil:
				d.log.Info("a staged state is not copied", "step", uint64(m.Label.Step), "error", err)
			}
			s.countCopies()
		})
	})
}

// copyRoom is the file for the next copy. Copies that are of no use any more have gone; of two that are, the older one goes.
func (s *saver) copyRoom(bytes int64) (string, error) {
	s.freeCopies()
	for len(s.copies) >= len(copyFiles) || len(s.copies) > 0 && !s.d.memory.fits(bytes) {
		s.dropCopy(0)
	}
	if !s.d.memory.fits(bytes) {
		return "", fmt.Errorf("%d bytes are more than --max-host-bytes leaves: %s", bytes, s.d.memory)
	}
	for _, kind := range copyFiles {
		name := s.d.paths.Shared(s.d.cfg.Index, 0, kind)
		if !slices.ContainsFunc(s.copies, func(h *heldSlab) bool { return h.path == name }) {
			_ = s.d.paths.memory.Remove(name) // of a copy that was not finished; none is as good
			return name, nil
		}
	}
	return "", fmt.Errorf("both files for copies are in use")
}

// makeCopy reads a state from its holders' slabs into a file of its own. It is whole when its header says so, and its digests are
// those that the holders say.
func (s *saver) makeCopy(ctx context.Context, m *CopyAsk, file string, layout []phalanx.TensorInfo, place wire.SlabLayout) (held *heldSlab, err error) {
	d := s.d
	r, err := d.paths.memory.CreateRegion(file, place.Total)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = r.Unmap()
			_ = d.paths.memory.Remove(file)
		}
	}()
	slab, err := wire.NewSlab(r.Bytes(), place)
	if err != nil {
		return nil, err
	}
	header := wire.SlabHeader{LabelGeneration: m.Label.Generation, LabelStep: m.Label.Step, LabelDigest: m.Label.Digest, Coordinate: m.Label.Coordinate,
		State: wire.SlabStateFilling, LayoutHash: place.Hash}
	slab.WriteHeader(header)
	var donors []peer.Donor
	for _, id := range m.From {
		if p, ok := d.roster.peer(id); ok {
			do := elastic.Heal{Generation: m.Generation, Label: m.Label, Source: elastic.Source{Kind: elastic.FromSlab}}
			donors = append(donors, &donor{d: d, who: p.Incarnate, addr: p.Addr, do: do, tensors: len(layout)})
		}
	}
	if _, own := splitOwn(layout); len(own) > 0 && len(donors) > 1 {
		donors = donors[:1] // the holders differ in what each has of its own: a copy is of one of them
	}
	sink := &paced{slab: slab, rate: d.cfg.CopyRate, begun: time.Now()}
	verify := func(_ context.Context, want []phalanx.Digest) error {
		for i, x := range slabDigests(slab, layout) {
			if x != want[i] {
				return fmt.Errorf("tensor %s is %s here, its holder has %s", layout[i].Name, x, want[i])
			}
		}
		return nil
	}
	sink.ctx = ctx
	report, err := peer.Fetch(ctx, donors, layout, sink, peer.Options{ChunkBytes: ringChunk, ReadTimeout: 10 * time.Second, Verify: verify})
	if err != nil {
		return nil, err
	}
	failpoint.Here("copy-filled")
	header.State = wire.SlabStateFull
	slab.WriteHeader(header)
	held = &heldSlab{path: file, label: m.Label, region: r, slab: slab, layout: layout}
	for _, x := range report.Digests {
		held.digests = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(held.digests, x[0]), x[1])
	}
	return held, nil
}

// paced is a sink into a slab that takes no more bytes a second than it may.
type paced struct {
	ctx   context.Context
	slab  *wire.Slab
	rate  int64 // bytes a second, 0: any
	begun time.Time

	mu    sync.Mutex
	taken int64
}

func (x *paced) Write(tensor int, off int64, p []byte) error {
	copy(x.slab.Tensor(tensor)[off:], p)
	if x.rate <= 0 {
		return nil
	}
	x.mu.Lock()
	x.taken += int64(len(p))
	due := x.begun.Add(time.Duration(float64(x.taken) / float64(x.rate) * float64(time.Second)))
	x.mu.Unlock()
	sleepUntil(x.ctx, due)
	return x.ctx.Err()
}

func sleepUntil(ctx context.Context, at time.Time) {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// useful reports whether a copy may still be read: nothing newer is in the memory of two hosts, or durable.
func useful(s *elastic.State, l phalanx.Label) bool {
	if !s.OfLineage(l) || reachedStep(s.Levels.Memory) > l.Step {
		return false
	}
	p := s.NewestPublished()
	return p == nil || p.Step <= l.Step
}

// freeCopies lets copies go that are of no use any more.
func (s *saver) freeCopies() {
	for i := len(s.copies) - 1; i >= 0; i-- {
		if !useful(s.d.state, s.copies[i].label) {
			s.dropCopy(i)
		}
	}
}

func (s *saver) dropCopy(i int) {
	h := s.copies[i]
	s.copies = slices.Delete(s.copies, i, i+1)
	s.mu.Lock()
	h.gone = true
	_ = h.region.Unmap()
	s.mu.Unlock()
	_ = s.d.paths.memory.Remove(h.path)
	s.d.dirty = true
	s.countCopies()
}

// countCopies tells what copies take.
func (s *saver) countCopies() {
	var n int64
	for _, h := range s.copies {
		n += int64(len(h.region.Bytes()))
	}
	if s.copy != nil {
		n += s.copy.bytes
	}
	s.d.memory.set(partCopies, n)
}

// findCopies takes over what an earlier daemon of the member kept, once the layout of the state is known. One that was not finished
// is removed.
func (s *saver) findCopies() {
	d := s.d
	if _, all := layoutsKnown(d.state); s.looked || !all || d.plain != nil {
		return
	}
	s.looked = true
	for _, kind := range copyFiles {
		name := d.paths.Shared(d.cfg.Index, 0, kind)
		h, err := openHeld(d.paths, name, d.state)
		if err != nil {
			_ = d.paths.memory.Remove(name) // none, or not whole
			continue
		}
		h.path = name
		s.copies = append(s.copies, h)
		d.dirty = true
	}
	s.countCopies()
	slices.SortFunc(s.copies, func(a, b *heldSlab) int { return int(a.label.Step) - int(b.label.Step) })
}

// forgetCopies removes them at the end of the job.
func (s *saver) forgetCopies() {
	for len(s.copies) > 0 {
		s.dropCopy(0)
	}
	for _, kind := range copyFiles {
		if err := s.d.paths.memory.Remove(s.d.paths.Shared(s.d.cfg.Index, 0, kind)); err != nil && !os.IsNotExist(err) {
			s.d.log.Debug("a copy is not removed", "error", err)
		}
	}
}
