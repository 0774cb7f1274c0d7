// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
	"phalanx/kernels"
)

// slabPiece is how many bytes of a slab are copied at a time under the lock that keeps slabs mapped: the loop takes it too.
const slabPiece = 1 << 20

// errNoSlab: the wanted state is not in a slab here, and will not be: the reader looks elsewhere.
var errNoSlab = errors.New("not in host memory")

// heldSlab is a whole staged state in memory of this host that outlives its trainer: that of the present life, which owns
// its memory, or that of an earlier life, whose memory is the saver's.
type heldSlab struct {
	owner   *life               // whose memory it is; nil: region is the saver's
	life    phalanx.Incarnation // that it was staged in
	region  *wire.Region
	path    string // of a copy for another host
	gone    bool   // under the saver's lock: region is unmapped
	label   phalanx.Label
	slab    *wire.Slab
	layout  []phalanx.TensorInfo
	digests []byte // of all tensors, once somebody asked
	served  atomic.Int64
}

func (h *heldSlab) bytes() (n int64) {
	for _, t := range h.layout {
		n += t.Bytes()
	}
	return n
}

// slabs are the labels of the whole states in this host's memory that outlive the trainer.
func (s *saver) slabs() []phalanx.Label {
	var out []phalanx.Label
	if s.d.life != nil {
		out = s.d.life.slabLabels()
	}
	for _, h := range slices.Concat(s.old, s.copies) {
		out = append(out, h.label)
	}
	return out
}

// find is the slab that holds the state of a step of the lineage at a coordinate, nil when none does. The loop calls it.
func (s *saver) find(step phalanx.Step, coordinate int) *heldSlab {
	fits := func(l phalanx.Label) bool {
		return l.Step == step && l.Coordinate == coordinate && s.d.state.OfLineage(l)
	}
	if l := s.d.life; l != nil {
		for i, x := range l.slabs {
			if label, whole := wholeLabel(x.Slab); whole && fits(label) {
				if own := s.own[i]; own == nil || own.owner != l || own.label != label {
					s.own[i] = &heldSlab{owner: l, life: l.who.Incarnation, label: label, slab: x.Slab, layout: l.layout}
				}
				return s.own[i]
			}
		}
	}
	for _, h := range slices.Concat(s.old, s.copies) {
		if fits(h.label) {
			return h
		}
	}
	return nil
}

// copyOut copies bytes of a tensor, and looks whether they are still those of the label.
func (s *saver) copyOut(h *heldSlab, tensor int, off int64, p []byte) error {
	return s.pieces(h, tensor, off, int64(len(p)), func(b []byte) {
		copy(p, b)
		p = p[len(b):]
	})
}

// pieces gives use the bytes of a tensor, a piece at a time. They are those of the label when it returns nil.
func (s *saver) pieces(h *heldSlab, tensor int, off, length int64, use func([]byte)) error {
	if tensor < 0 || tensor >= len(h.layout) {
		return fmt.Errorf("tensor %d is not in the slab", tensor)
	}
	for length > 0 {
		n := min(length, slabPiece)
		if err := s.piece(h, tensor, off, n, use); err != nil {
			return err
		}
		off, length = off+n, length-n
	}
	return nil
}

func (s *saver) piece(h *heldSlab, tensor int, off, length int64, use func([]byte)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := h.holds(); err != nil {
		return err
	}
	b := h.slab.Tensor(tensor)
	if off < 0 || off > int64(len(b))-length {
		return fmt.Errorf("tensor %d has %d bytes, not %d from %d", tensor, len(b), length, off)
	}
	use(b[off : off+length])
	return h.holds()
}

// holds says why the slab cannot be read as the state of its label any more. The saver's lock is held.
func (h *heldSlab) holds() error {
	if h.gone || h.owner != nil && h.owner.retired.Load() {
		return fmt.Errorf("the slab of %s is here no more: %w", h.label, errNoSlab)
	}
	if label, whole := wholeLabel(h.slab); !whole || label != h.label {
		return fmt.Errorf("the slab of %s was filled anew: %w", h.label, errNoSlab)
	}
	return nil
}

// slabSource reads a slab for the store, and counts what was read: that is the progress of a save.
type slabSource struct {
	saver *saver
	held  *heldSlab
	read  *atomic.Int64
}

// Layout lists the tensors.
func (x slabSource) Layout() []phalanx.TensorInfo { return x.held.layout }

// ReadAt copies bytes of a tensor.
func (x slabSource) ReadAt(tensor int, off int64, p []byte) error {
	x.read.Add(int64(len(p)))
	return x.saver.copyOut(x.held, tensor, off, p)
}

// serveSlab reads from the slab with the wanted label: the present life's or an earlier one's.
func (s *saver) serveSlab(ctx context.Context, q stateQuery, use func([]byte) error) error {
	answer := make(chan *heldSlab, 1) // 1: the loop answers once
	s.d.post(func() {
		h := s.find(q.label.Step, q.label.Coordinate)
		if h != nil && h.label != q.label {
			h = nil
		}
		answer <- h
	})
	var h *heldSlab
	select {
	case h = <-answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	if h == nil {
		return fmt.Errorf("no slab of %s here: %w", q.label, errNoSlab)
	}
	if q.tensor < 0 {
		b, err := s.digestsOf(h)
		if err != nil {
			return err
		}
		return use(b)
	}
	b := make([]byte, q.length)
	if err := s.copyOut(h, q.tensor, q.off, b); err != nil {
		return err
	}
	if err := use(b); err != nil {
		return err
	}
	if h.served.Add(q.length) >= h.bytes()/2 {
		failpoint.Here("slab-served")
	}
	return nil
}

// digestsOf are the digests of all tensors. Those of a slab that does not change any more are computed once.
func (s *saver) digestsOf(h *heldSlab) ([]byte, error) {
	s.digesting.Lock() // one at a time; the others find it done
	defer s.digesting.Unlock()
	if h.digests != nil {
		return h.digests, nil
	}
	out := make([]byte, 0, len(h.layout)*digestSize)
	for i, t := range h.layout {
		x := kernels.NewTensorHasher(0, t.Name, t.DType, t.Shape)
		if err := s.pieces(h, i, 0, t.Bytes(), func(b []byte) { x.Write(b) }); err != nil {
			return nil, err
		}
		d := x.Sum()
		out = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(out, d[0]), d[1])
	}
	h.digests = out
	return out, nil
}

// slabDigests are the digests of all tensors of a slab that nobody else has yet.
func slabDigests(slab *wire.Slab, layout []phalanx.TensorInfo) []phalanx.Digest {
	out := make([]phalanx.Digest, len(layout))
	for i, t := range layout {
		out[i] = kernels.TensorDigest(0, kernels.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: slab.Tensor(i)})
	}
	return out
}

// oldKey is what the search for an old slab depends on besides the files.
type oldKey struct {
	life    phalanx.Incarnation
	layouts int // that are known
}

// layoutsKnown is how many coordinates have a layout in the log; all counts them.
func layoutsKnown(s *elastic.State) (n int, all bool) {
	for c := range s.GroupSize() {
		if _, known := s.LayoutOf(c); known {
			n++
		}
	}
	return n, n == s.GroupSize()
}

// findOld maps the whole slabs of the newest earlier life that has any, until the present life has newer ones.
func (s *saver) findOld() {
	d := s.d
	known, _ := layoutsKnown(d.state)
	if d.life == nil || known == 0 {
		return
	}
	if own := d.life.slabLabels(); len(own) > 0 && len(s.old) > 0 && newestStep(own) >= newestStep(labelsOf(s.old)) {
		s.drop()
		return
	}
	if key := (oldKey{d.life.who.Incarnation, known}); d.renamed || key != s.sought {
		s.sought = key
	} else {
		return // nothing has come since the last look
	}
	lives := d.paths.Lives(d.cfg.Index)
	for i := len(lives) - 1; i >= 0; i-- {
		n := lives[i]
		if n >= d.life.who.Incarnation {
			continue
		}
		if len(s.old) > 0 && s.old[0].life >= n {
			return
		}
		found := openOldSlabs(d.paths, d.cfg.Index, n, d.state)
		if len(found) == 0 {
			continue // none, or torn by its trainer's death
		}
		if len(s.old) > 0 && newestStep(labelsOf(s.old)) >= newestStep(labelsOf(found)) {
			for _, h := range found {
				_ = h.region.Unmap()
			}
			return
		}
		s.drop()
		s.old = found
		var bytes int64
		for _, h := range found {
			bytes += int64(len(h.region.Bytes()))
		}
		d.memory.set(partOld, bytes)
		d.dirty = true
		return
	}
}

// newestStep is the newest step among labels, 0 for none.
func newestStep(labels []phalanx.Label) (newest phalanx.Step) {
	for _, l := range labels {
		newest = max(newest, l.Step)
	}
	return newest
}

func labelsOf(held []*heldSlab) (out []phalanx.Label) {
	for _, h := range held {
		out = append(out, h.label)
	}
	return out
}

// drop lets the slabs of an earlier life go.
func (s *saver) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.old {
		h.gone = true
		_ = h.region.Unmap()
	}
	s.old = nil
	s.d.memory.set(partOld, 0)
}

// openOldSlabs maps what an earlier life has staged whole: the older one of two states may be the newest that all others have.
func openOldSlabs(paths Paths, index int, n phalanx.Incarnation, s *elastic.State) (found []*heldSlab) {
	for _, kind := range slabKinds {
		if h, err := openHeld(paths, paths.Shared(index, n, kind), s); err == nil {
			h.life = n
			found = append(found, h)
		}
	}
	return found
}

// openHeld maps a slab that is whole. Its header says of which coordinate it is, and the log how the state of that one lies.
func openHeld(paths Paths, name string, s *elastic.State) (*heldSlab, error) {
	r, err := paths.memory.OpenRegion(name, false)
	if err != nil {
		return nil, err
	}
	h, err := viewHeld(r, s)
	if err != nil {
		return nil, errors.Join(err, r.Unmap())
	}
	return h, nil
}

func viewHeld(r *wire.Region, s *elastic.State) (*heldSlab, error) {
	head, err := wire.NewSlab(r.Bytes(), wire.SlabLayout{Total: wire.SlabHeaderBytes})
	if err != nil {
		return nil, err
	}
	h, seq := head.ReadHeader()
	layout, known := s.LayoutOf(h.Coordinate)
	if seq == 0 || h.State != wire.SlabStateFull || !known {
		return nil, errors.New("the slab is not whole")
	}
	place, err := wire.LayoutSlab(layout)
	if err != nil {
		return nil, err
	}
	if h.LayoutHash != place.Hash {
		return nil, errors.New("the slab is of another state")
	}
	slab, err := wire.NewSlab(r.Bytes(), place)
	if err != nil {
		return nil, err
	}
	return &heldSlab{label: h.Label(), region: r, slab: slab, layout: layout}, nil
}

// needs reports whether the files of an earlier life hold a slab that is still the only copy.
func (s *saver) needs(n phalanx.Incarnation) bool {
	return len(s.old) > 0 && s.old[0].life == n
}
