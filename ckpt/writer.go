// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// WriteShard writes the share of a rank: its data objects, then its part file. It holds one object in memory, starts no
// goroutine and ends soon after ctx does. What it writes depends on attempt, rank, plan and state only, so it may be
// repeated, by the same daemon or by another holder of the same state that takes over a dead rank's share: objects that
// exist with the same content count as written. ErrExists means that they exist with another content.
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
	w := writer{ctx: ctx, store: s, attempt: a, source: source, layout: plan.Layout}
	w.part = Part{
		Format: FormatVersion, Container: ContainerRaw, Attempt: a.Name(), Rank: rank, Coordinate: plan.Coordinate,
		Layout: layoutHash(plan.Layout), Tensors: []PartTensor{}, Objects: []Object{}, Chunks: []StoredChunk{},
	}
	w.object = make([]byte, 0, min(plan.ObjectBytes, shard.Bytes+Align*int64(len(shard.Boxes))))
	w.capacity = plan.ObjectBytes
	if err := w.shard(shard); err != nil {
		return fail(err)
	}
	ref, err := w.finish()
	if err != nil {
		return fail(err)
	}
	return ref, nil
}

// writer packs boxes into objects.
type writer struct {
	ctx      context.Context
	store    Store
	attempt  Attempt
	source   Source
	layout   []phalanx.TensorInfo
	capacity int64

	part   Part
	object []byte // the object that is being filled
	spare  []byte // for bytes that are digested and not written
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
	t := w.layout[index]
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

// digest reads the bytes [from, to) of a tensor that another rank writes.
func (w *writer) digest(hasher *kernels.TensorHasher, tensor int, from, to int64) error {
	const piece = 1 << 20
	if from < to && w.spare == nil {
		w.spare = make([]byte, piece)
	}
	for from < to {
		p := w.spare[:min(piece, to-from)]
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
		return fmt.Errorf("read tensor %.60q at %d: %w", w.layout[tensor].Name, off, err)
	}
	return nil
}

// chunk puts a box into the object, after writing the object out when it is full.
func (w *writer) chunk(hasher *kernels.TensorHasher, b Box, off, length int64) error {
	at := aligned(int64(len(w.object)))
	if at+length > w.capacity {
		if err := w.flush(); err != nil {
			return err
		}
		at = 0
	}
	w.object = append(w.object, make([]byte, at-int64(len(w.object)))...)
	w.object = slices.Grow(w.object, int(length))[:at+length]
	p := w.object[at:]
	if err := w.read(b.Tensor, off, p); err != nil {
		return err
	}
	hasher.Write(p)
	w.part.Chunks = append(w.part.Chunks, StoredChunk{
		Box: b, Object: len(w.part.Objects), At: at, Length: length, Codec: CodecRaw, CRC64NVME: Checksum(p),
	})
	return nil
}

func aligned(n int64) int64 { return (n + Align - 1) / Align * Align }

// flush writes the object out.
func (w *writer) flush() error {
	if len(w.object) == 0 {
		return nil
	}
	body := Bytes(w.object)
	o := Object{Name: objectName(w.part.Rank, len(w.part.Objects)), Size: body.Size, CRC64NVME: body.CRC64NVME}
	if err := putOnce(w.ctx, w.store, w.attempt.Folder()+"/"+o.Name, w.object); err != nil {
		return err
	}
	w.part.Objects = append(w.part.Objects, o)
	w.object = w.object[:0]
	return nil
}

// finish writes the last object and the part file.
func (w *writer) finish() (PartRef, error) {
	if err := w.flush(); err != nil {
		return PartRef{}, err
	}
	b, err := w.part.Encode()
	if err != nil {
		return PartRef{}, err
	}
	name := partName(w.part.Rank)
	if err := putOnce(w.ctx, w.store, w.attempt.Folder()+"/"+name, b); err != nil {
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
	body := Bytes(content)
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
