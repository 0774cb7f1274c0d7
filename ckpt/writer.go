// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/kernels"
)

// Source gives the bytes of a state that does not change while it is read: a slab. They are read twice, first for the digests.
type Source interface {
	// Layout lists the tensors; the same list at every call.
	Layout() []phalanx.TensorInfo
	// ReadAt fills p with the bytes of a tensor from offset off. Several goroutines may call it at once, none after the
	// function that was given the source has returned.
	ReadAt(tensor int, off int64, p []byte) error
}

// WriteShard writes the share of a rank: its data objects, then its part file. It holds no more of the state in memory than each
// put under way needs, which is a piece for a directory, and ends, with everything that it started, soon after ctx does. What it writes depends on attempt, rank, plan and state only, so
// it may be repeated, by the same daemon or by another holder of the same state that takes over a dead rank's share: objects
// that exist with the same content count as written. ErrExists means that they exist with another content.
func WriteShard(ctx context.Context, s Store, a Attempt, rank phalanx.Rank, plan *Plan, source Source) (PartRef, error) {
	fail := func(err error) (PartRef, error) {
		return PartRef{}, fmt.Errorf("write shard of rank %d to %s: %w", rank, a.Folder(), err)
	}
	if err := a.Validate(); err != nil {
		return fail(err)
	}
	shard := plan.Shard(rank)
	if shard == nil {
		return fail(errors.New("the plan gives this rank nothing; it does not hold this coordinate"))
	}
	if layoutHash(source.Layout()) != layoutHash(plan.Layout) {
		return fail(fmt.Errorf("the state differs from the plan: %s", CompareLayouts(source.Layout(), plan.Layout)))
	}
	if limit := s.Capabilities().MaxObjectBytes; limit > 0 && plan.ObjectBytes > limit {
		return fail(fmt.Errorf("objects of %d bytes, the store takes at most %d; lower the object size", plan.ObjectBytes, limit))
	}
	w := newWriter(ctx, s, a, rank, plan, source)
	err := w.shard(shard)
	if err == nil {
		err = w.flush()
	}
	if putErr := w.puts.Wait(); putErr != nil {
		err = putErr // what stopped the rest
	}
	if err != nil {
		return fail(err)
	}
	ref, err := w.finish(ctx)
	if err != nil {
		return fail(err)
	}
	return ref, nil
}

// writer packs boxes into objects. One goroutine digests the state in their order; each object that is complete is written
// beside it, and reads the source again: copies that are kept meanwhile would cost more than the second read, in memory and in
// time. A source that changes in between does not have the checksums any more, and the store refuses it.
type writer struct {
	ctx     context.Context // ends when a put fails
	store   Store
	attempt Attempt
	source  Source
	plan    *Plan
	frame   frame
	puts    *errgroup.Group

	part   Part
	object *object // that is being filled
	piece  []byte  // that is being digested
}

func newWriter(ctx context.Context, s Store, a Attempt, rank phalanx.Rank, plan *Plan, source Source) *writer {
	w := &writer{
		store: s, attempt: a, source: source, plan: plan, frame: frame{plan.Container},
		object: newObject(source), piece: make([]byte, pieceBytes),
	}
	w.puts, w.ctx = errgroup.WithContext(ctx)
	w.puts.SetLimit(plan.Puts)
	w.part = Part{
		Format: FormatVersion, Container: plan.Container, Attempt: a.Name(), Rank: rank, Coordinate: plan.Coordinate,
		Layout: layoutHash(plan.Layout), Tensors: []PartTensor{}, Objects: []Object{}, Chunks: []StoredChunk{},
	}
	return w
}

func (w *writer) shard(shard *Shard) error {
	boxes := shard.Boxes
	for _, tensor := range shard.Digests {
		n := 0
		for n < len(boxes) && boxes[n].Tensor == tensor {
			n++
		}
		if err := w.tensor(tensor, boxes[:n]); err != nil {
			return err
		}
		boxes = boxes[n:]
	}
	if len(boxes) > 0 {
		return fmt.Errorf("the plan writes tensor %d and does not digest it, or is out of order", boxes[0].Tensor)
	}
	return nil
}

// tensor digests a whole tensor and writes this rank's boxes of it.
func (w *writer) tensor(index int, boxes []Box) error {
	t := w.plan.Layout[index]
	hasher := kernels.NewTensorHasher(digestSeed, t.Name, t.DType, t.Shape)
	var at int64
	for _, b := range boxes {
		off, length, err := b.Range(t)
		if err != nil {
			return err
		}
		if err := w.digest(hasher, index, at, off); err != nil {
			return err
		}
		if err := w.chunk(hasher, b, off, length); err != nil {
			return err
		}
		at = off + length
	}
	if err := w.digest(hasher, index, at, t.Bytes()); err != nil {
		return err
	}
	if t.Shape == nil {
		t.Shape = []int{}
	}
	w.part.Tensors = append(w.part.Tensors, PartTensor{Index: index, TensorInfo: t, D1: hasher.Sum()})
	return nil
}

// pieceBytes is how much is read at a time, so that all digests find it in the processor's cache.
const pieceBytes = 256 << 10

// digest reads the bytes [from, to) of a tensor that another rank writes.
func (w *writer) digest(hasher *kernels.TensorHasher, tensor int, from, to int64) error {
	return w.pieces(tensor, from, to, func(p []byte) { hasher.Write(p) })
}

// pieces reads the bytes [from, to) of a tensor.
func (w *writer) pieces(tensor int, from, to int64, use func(p []byte)) error {
	for from < to {
		p := w.piece[:min(pieceBytes, to-from)]
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.source.ReadAt(tensor, from, p); err != nil {
			return fmt.Errorf("read tensor %.60q at %d: %w", w.plan.Layout[tensor].Name, from, err)
		}
		use(p)
		from += int64(len(p))
	}
	return nil
}

// chunk puts a box into the object, after sending the object off when it is full.
func (w *writer) chunk(hasher *kernels.TensorHasher, b Box, off, length int64) error {
	start := aligned(w.object.size)
	if w.object.size > 0 && start+w.frame.around(length)+length > w.plan.ObjectBytes {
		if err := w.flush(); err != nil {
			return err
		}
		start = 0
	}
	crc, sum32 := crc64nvme.New(), uint32(0)
	err := w.pieces(b.Tensor, off, off+length, func(p []byte) {
		hasher.Write(p)
		_, _ = crc.Write(p) // a hash never fails
		if w.frame.needsCRC32() {
			sum32 = crc32.Update(sum32, crc32.IEEETable, p)
		}
	})
	if err != nil {
		return err
	}
	before, after, err := w.frame.wrap(w.plan.Layout[b.Tensor].DType, b.Size, length, sum32)
	if err != nil {
		return err
	}
	o, sum := w.object, CRC(crc.Sum64())
	o.add(make([]byte, start-o.size))
	o.add(before)
	at := o.size
	o.refer(b.Tensor, off, length, sum)
	o.add(after)
	w.part.Chunks = append(w.part.Chunks, StoredChunk{
		Box: b, Object: len(w.part.Objects), At: at, Length: length, Codec: CodecRaw, CRC64NVME: sum,
	})
	return nil
}

func aligned(n int64) int64 { return (n + Align - 1) / Align * Align }

// flush sends the object off.
func (w *writer) flush() error {
	if w.object.size == 0 {
		return nil
	}
	content := w.object
	w.object = newObject(w.source)
	o := Object{Name: w.frame.objectName(w.part.Rank, len(w.part.Objects)), Size: content.size, CRC64NVME: content.sum}
	w.part.Objects = append(w.part.Objects, o)
	w.puts.Go(func() error {
		defer content.end()
		return putBody(w.ctx, w.store, w.attempt.Folder()+"/"+o.Name, Body{ReaderAt: content, Size: o.Size, CRC64NVME: o.CRC64NVME})
	})
	return w.ctx.Err()
}

// finish writes the part file.
func (w *writer) finish(ctx context.Context) (PartRef, error) {
	b, err := w.part.Encode()
	if err != nil {
		return PartRef{}, err
	}
	name := partName(w.part.Rank)
	if err := putOnce(ctx, w.store, w.attempt.Folder()+"/"+name, b); err != nil {
		return PartRef{}, err
	}
	return PartRef{
		Name: name, Rank: w.part.Rank, Coordinate: w.part.Coordinate,
		Size: int64(len(b)), CRC64NVME: Checksum(b), SHA256: sha256Hex(b),
	}, nil
}

// putTries is how often a write whose outcome is unknown is offered again before the caller decides.
const putTries = 4

// putOnce creates an object, or finds that it exists with the same content.
func putOnce(ctx context.Context, s Store, key string, content []byte) error {
	return putBody(ctx, s, key, Bytes(content))
}

func putBody(ctx context.Context, s Store, key string, body Body) error {
	var err error
	for try := range putTries {
		if try > 0 {
			if werr := wait(ctx, time.Duration(try)*50*time.Millisecond); werr != nil {
				return fmt.Errorf("%w (gave up: %w)", err, werr)
			}
		}
		err = s.PutIfAbsent(ctx, key, body)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrExists):
			return sameContent(ctx, s, key, body)
		case !errors.Is(err, ErrConflict):
			return err
		}
		// Unknown outcome: offering the same bytes again is harmless, and the answer settles it.
	}
	return err
}

// sameContent checks that an object is what would have been written.
func sameContent(ctx context.Context, s Store, key string, body Body) error {
	info, err := s.Stat(ctx, key)
	if err != nil {
		return fmt.Errorf("compare %s with what exists: %w", key, err)
	}
	have := info.CRC64NVME
	if info.Size == body.Size && !info.HasCRC {
		b, err := readWhole(ctx, s, key, body.Size)
		if err != nil {
			return fmt.Errorf("compare %s with what exists: %w", key, err)
		}
		have = Checksum(b)
	}
	if info.Size != body.Size || have != body.CRC64NVME {
		return fmt.Errorf("%s exists with %d bytes and crc64nvme %s, this state has %d and %s: %w",
			key, info.Size, have, body.Size, body.CRC64NVME, ErrExists)
	}
	return nil
}

// wait sleeps, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
