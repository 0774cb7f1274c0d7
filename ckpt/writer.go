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

// Source gives the bytes of a state that does not change while it is read: a slab.
type Source interface {
	// Layout lists the tensors; the same list at every call.
	Layout() []phalanx.TensorInfo
	// ReadAt fills p with the bytes of a tensor from offset off.
	ReadAt(tensor int, off int64, p []byte) error
}

// WriteShard writes the share of a rank: its data objects, then its part file. It holds plan.Puts + 1 objects in memory and
// ends, with everything that it started, soon after ctx does. What it writes depends on attempt, rank, plan and state only, so
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

// writer packs boxes into objects. One goroutine reads, digests and fills; full objects are written beside it.
type writer struct {
	ctx     context.Context // ends when a put fails
	store   Store
	attempt Attempt
	source  Source
	plan    *Plan
	frame   frame
	puts    *errgroup.Group
	buffers chan []byte // free ones; a full object's comes back when it is written
	expect  int64       // capacity of a buffer: an object's, or less for a small share

	part   Part
	object []byte // the object that is being filled, nil: none
	sum    CRC    // of it
	spare  []byte // for bytes that are digested and not written
}

func newWriter(ctx context.Context, s Store, a Attempt, rank phalanx.Rank, plan *Plan, source Source) *writer {
	w := &writer{store: s, attempt: a, source: source, plan: plan, frame: frame{plan.Container}}
	w.puts, w.ctx = errgroup.WithContext(ctx)
	w.puts.SetLimit(plan.Puts)
	if shard := plan.Shard(rank); shard != nil {
		w.expect = min(plan.ObjectBytes, shard.Bytes+(Align+w.frame.around(plan.ObjectBytes))*int64(len(shard.Boxes)))
	}
	w.buffers = make(chan []byte, plan.Puts+1) // all there are; nil is one that was not needed yet
	for range plan.Puts + 1 {
		w.buffers <- nil
	}
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

// tensor digests a whole tensor and writes this rank's boxes of it. The digest is taken from the very buffer that is
// written.
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
	if from < to && w.spare == nil {
		w.spare = make([]byte, pieceBytes)
	}
	for from < to {
		p := w.spare[:min(pieceBytes, to-from)]
		if err := w.read(tensor, from, p); err != nil {
			return err
		}
		hasher.Write(p)
		from += int64(len(p))
	}
	return nil
}

func (w *writer) read(tensor int, off int64, p []byte) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if err := w.source.ReadAt(tensor, off, p); err != nil {
		return fmt.Errorf("read tensor %.60q at %d: %w", w.plan.Layout[tensor].Name, off, err)
	}
	return nil
}

// chunk puts a box into the object, after sending the object off when it is full.
func (w *writer) chunk(hasher *kernels.TensorHasher, b Box, off, length int64) error {
	start := aligned(int64(len(w.object)))
	if len(w.object) > 0 && start+w.frame.around(length)+length > w.plan.ObjectBytes {
		if err := w.flush(); err != nil {
			return err
		}
		start = 0
	}
	if err := w.room(start + w.frame.around(length) + length); err != nil {
		return err
	}
	end := len(w.object)
	at := start + w.frame.before()
	w.object = w.object[:at+length]
	clear(w.object[end:at])
	p := w.object[at:]
	sum, sum32, err := w.fill(hasher, b.Tensor, off, p)
	if err != nil {
		return err
	}
	before, after, err := w.frame.wrap(w.plan.Layout[b.Tensor].DType, b.Size, length, sum32)
	if err != nil {
		return err
	}
	copy(w.object[start:], before)
	w.sum = joinCRC(w.sum, Checksum(w.object[end:at]), at-int64(end))
	w.sum = joinCRC(w.sum, sum, length)
	w.object = append(w.object, after...)
	w.sum = joinCRC(w.sum, Checksum(after), int64(len(after)))
	w.part.Chunks = append(w.part.Chunks, StoredChunk{
		Box: b, Object: len(w.part.Objects), At: at, Length: length, Codec: CodecRaw, CRC64NVME: sum,
	})
	return nil
}

// fill reads the bytes of a chunk and takes all checksums while they are in the cache.
func (w *writer) fill(hasher *kernels.TensorHasher, tensor int, off int64, p []byte) (sum CRC, sum32 uint32, err error) {
	crc := crc64nvme.New()
	for len(p) > 0 {
		piece := p[:min(pieceBytes, len(p))]
		if err := w.read(tensor, off, piece); err != nil {
			return 0, 0, err
		}
		hasher.Write(piece)
		_, _ = crc.Write(piece) // a hash never fails
		if w.frame.needsCRC32() {
			sum32 = crc32.Update(sum32, crc32.IEEETable, piece)
		}
		p, off = p[len(piece):], off+int64(len(piece))
	}
	return CRC(crc.Sum64()), sum32, nil
}

// room makes the object large enough. A fresh one waits until a buffer is free: as many are under way as the plan allows.
func (w *writer) room(size int64) error {
	if w.object == nil {
		select {
		case w.object = <-w.buffers:
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
		w.object, w.sum = w.object[:0], Checksum(nil)
	}
	if int64(cap(w.object)) < size {
		w.object = append(make([]byte, 0, max(size, w.expect)), w.object...)
	}
	return nil
}

func aligned(n int64) int64 { return (n + Align - 1) / Align * Align }

// flush sends the object off.
func (w *writer) flush() error {
	if len(w.object) == 0 {
		return nil
	}
	content, sum := w.object, w.sum
	w.object = nil
	o := Object{Name: w.frame.objectName(w.part.Rank, len(w.part.Objects)), Size: int64(len(content)), CRC64NVME: sum}
	w.part.Objects = append(w.part.Objects, o)
	w.puts.Go(func() error {
		defer func() { w.buffers <- content }()
		return putBody(w.ctx, w.store, w.attempt.Folder()+"/"+o.Name, Body{ReaderAt: memory(content), Size: o.Size, CRC64NVME: sum})
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
