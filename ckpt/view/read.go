// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"sync"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/pickle"
)

// parallel is how many requests are in flight: with the limit of a request it bounds the memory that reading takes beside its result.
const parallel = 8

// ReadBox fills p, which has exactly the box's size, with the elements of a box, row-major. Every byte was verified when its
// shard has a checksum. The error is a *DamageError when stored bytes cannot be read or verified; p holds nothing of use then.
func (v *View) ReadBox(ctx context.Context, tensor int, box Box, p []byte) error {
	if tensor < 0 || tensor >= len(v.Tensors) {
		return fmt.Errorf("read: tensor %d of %d: %w", tensor, len(v.Tensors), ckpt.ErrNotFound)
	}
	if err := box.Check(v.Tensors[tensor].Shape); err != nil {
		return fmt.Errorf("read tensor %.80q: %w", v.Tensors[tensor].Name, err)
	}
	if want := box.Elements() * int64(phalanx.DTypeSize(v.Tensors[tensor].DType)); int64(len(p)) != want {
		return fmt.Errorf("read tensor %.80q: %d bytes for a box of %d", v.Tensors[tensor].Name, len(p), want)
	}
	r := reading{view: v}
	if err := r.read(ctx, []piece{{tensor, box, p}}); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// sumKey names a running checksum.
type sumKey struct{ tensor, shard, piece int }

// runningSum is the checksum of a shard whose bytes pass in order.
type runningSum struct {
	hash hash.Hash
	next int64 // byte of the stored range
}

// reading reads pieces. With inOrder the pieces of all calls together hold every tensor they name whole, in order.
type reading struct {
	view    *View
	inOrder bool
	sums    map[sumKey]*runningSum // owned by the goroutine that calls read
}

// read fills the pieces.
func (r *reading) read(ctx context.Context, pieces []piece) error {
	v := r.view
	pl := planner{gap: v.files.Gap(), most: v.limit().fetch}
	plans := make([][]source, len(pieces))
	if err := v.locateAll(ctx, pieces); err != nil {
		return err
	}
	byShard := map[[2]int]*source{} // by piece and shard
	for i := range pieces {
		sources, err := v.sources(ctx, &pieces[i])
		if err != nil {
			return err
		}
		plans[i] = sources
		elem := int64(phalanx.DTypeSize(v.Tensors[pieces[i].tensor].DType))
		for k := range sources {
			s := &sources[k]
			how := v.strategyFor(&s.Shard, elem, r.inOrder)
			if how == earlier {
				if err := v.readThrough(ctx, pieces[i].tensor, &s.Shard); err != nil {
					return err
				}
			}
			pl.add(i, s, how)
			byShard[[2]int{i, s.index}] = s
		}
	}
	return r.run(ctx, pieces, byShard, pl.fetches())
}

// run makes the requests, several at a time, and takes their bytes in order.
func (r *reading) run(ctx context.Context, pieces []piece, sources map[[2]int]*source, fetches []fetch) error {
	v := r.view
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel + 1) // one is the one below that waits for the others
	type arrived struct {
		held []byte
		err  error
	}
	slots := make([]chan arrived, len(fetches))
	for i := range slots {
		slots[i] = make(chan arrived, 1) // 1: the fetch ends though nobody takes it
	}
	window := make(chan struct{}, parallel) // bytes that nobody has taken yet are bounded too
	group.Go(func() error {
		for i, f := range fetches {
			var a arrived
			select {
			case a = <-slots[i]:
			case <-gctx.Done():
				return gctx.Err()
			}
			<-window
			if a.err != nil {
				return v.blame(pieces, sources, f, a.err)
			}
			for _, seg := range f.segments {
				s := sources[[2]int{seg.piece, seg.shard}]
				part := a.held[s.At+seg.from-f.at:][:seg.to-seg.from]
				if err := r.take(&pieces[seg.piece], s, seg, part); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for i, f := range fetches {
		select {
		case window <- struct{}{}:
		case <-gctx.Done():
		}
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			held := make([]byte, f.length)
			err := v.files.Read(gctx, f.object, f.at, held)
			slots[i] <- arrived{held, err}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err() // the loop may have ended early
}

// take verifies bytes of a shard and copies what is asked for.
func (r *reading) take(p *piece, s *source, seg segment, part []byte) error {
	elem := int64(phalanx.DTypeSize(r.view.Tensors[p.tensor].DType))
	switch r.view.strategyFor(&s.Shard, elem, r.inOrder) {
	case whole:
		if err := r.sum(sumKey{p.tensor, s.index, seg.piece}, p.tensor, s, seg, part); err != nil {
			return err
		}
	case running:
		if err := r.sum(sumKey{p.tensor, s.index, -1}, p.tensor, s, seg, part); err != nil {
			return err
		}
	case unverified, earlier:
	}
	if dtype := r.view.Tensors[p.tensor].DType; s.Swap || !s.PutOff.None() {
		part = bytes.Clone(part) // segments begin and end at elements: requests are cut at multiples of all their sizes
		if s.Swap {
			pickle.SwapBytes(dtype, part)
		}
		if !s.PutOff.None() {
			if err := s.PutOff.Apply(dtype, part); err != nil {
				return fmt.Errorf("tensor %.80q: %w", r.view.Tensors[p.tensor].Name, err)
			}
		}
	}
	s.transfer.copyRuns(p.dst, part, seg.from, seg.to, seg.first, seg.runs)
	return nil
}

// sum adds bytes to the checksum of a shard and compares it after the last one.
func (r *reading) sum(key sumKey, tensor int, s *source, seg segment, part []byte) error {
	state := r.sums[key]
	if state == nil {
		state = &runningSum{hash: s.Sum.start()}
		if r.sums == nil {
			r.sums = map[sumKey]*runningSum{}
		}
		r.sums[key] = state
	}
	if seg.from != state.next {
		return fmt.Errorf("tensor %.80q: byte %d of a shard came after byte %d", r.view.Tensors[tensor].Name, seg.from, state.next) // a bug here
	}
	state.hash.Write(part)
	if state.next = seg.to; state.next < s.Length {
		return nil
	}
	delete(r.sums, key)
	if got := s.Sum.of(state.hash); got != s.Sum {
		return r.view.damage(tensor, &s.Shard, got, nil)
	}
	return nil
}

// blame says which tensor an error of reading is about: the first one that wanted the bytes.
func (v *View) blame(pieces []piece, sources map[[2]int]*source, f fetch, err error) error {
	if !errors.Is(err, ckpt.ErrCorrupt) && !errors.Is(err, ckpt.ErrNotFound) {
		return err
	}
	seg := f.segments[0]
	s := sources[[2]int{seg.piece, seg.shard}]
	return v.damage(pieces[seg.piece].tensor, &s.Shard, s.Sum, err)
}

// readThrough reads the stored bytes of a shard for their checksum, once for each range.
func (v *View) readThrough(ctx context.Context, tensor int, s *Shard) error {
	key := storedRange{s.Object, s.At, s.Length}
	v.mu.Lock()
	err, known := v.whole[key]
	v.mu.Unlock()
	if known {
		return err
	}
	err = v.checkSum(ctx, tensor, s)
	var damaged *DamageError
	if err != nil && !errors.As(err, &damaged) {
		return err // it may be readable the next time
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.whole == nil {
		v.whole = map[storedRange]error{}
	}
	v.whole[key] = err
	return err
}

// buffers are reused by reads that only sum.
var buffers = sync.Pool{New: func() any { p := make([]byte, usual.fetch); return &p }}

// checkSum reads the stored bytes of a shard and compares their checksum.
func (v *View) checkSum(ctx context.Context, tensor int, s *Shard) error {
	h, most := s.Sum.start(), min(v.limit().fetch, usual.fetch)
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for from := int64(0); from < s.Length; from += most {
		p := (*buffer)[:min(most, s.Length-from)]
		switch err := v.files.Read(ctx, s.Object, s.At+from, p); {
		case errors.Is(err, ckpt.ErrCorrupt), errors.Is(err, ckpt.ErrNotFound):
			return v.damage(tensor, s, s.Sum, err)
		case err != nil:
			return err
		}
		if h != nil {
			h.Write(p)
		}
	}
	if h == nil {
		return nil
	}
	if got := s.Sum.of(h); got != s.Sum {
		return v.damage(tensor, s, got, nil)
	}
	return nil
}

// locateAll finds the elements in the archives that pieces need, several at a time.
func (v *View) locateAll(ctx context.Context, pieces []piece) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, p := range pieces {
		t := &v.Tensors[p.tensor]
		if p.box.Check(t.Shape) != nil {
			continue // sources says so
		}
		for _, i := range v.touching(p.tensor, p.box) {
			if t.Shards[i].Record {
				group.Go(func() error {
					_, err := v.located(gctx, p.tensor, i)
					return err
				})
			}
		}
	}
	return group.Wait()
}

// located is a shard whose stored range is its elements: of a record, the payload inside of it.
func (v *View) located(ctx context.Context, tensor, shard int) (Shard, error) {
	s := v.Tensors[tensor].Shards[shard]
	if !s.Record {
		return s, nil
	}
	key := [2]int{tensor, shard}
	v.mu.Lock()
	found, known := v.found[key]
	v.mu.Unlock()
	if known {
		return found, nil
	}
	found, err := v.openRecord(ctx, tensor, &s)
	if err != nil {
		return Shard{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.found == nil {
		v.found = map[[2]int]Shard{}
	}
	v.found[key] = found
	return found, nil
}
