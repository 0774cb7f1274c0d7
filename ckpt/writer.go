// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync"
	"sync/atomic"
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

// writer packs boxes into objects, in their order. Tensors are digested ahead of it; each object that is complete is written
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

	nameless bool // digests are of the content alone
	first    int  // number of the first object
	part     Part
	roots    []kernels.Part // of the contents, when nameless
	object   *object        // that is being filled
}

func newWriter(ctx context.Context, s Store, a Attempt, rank phalanx.Rank, plan *Plan, source Source) *writer {
	w := &writer{
		store: s, attempt: a, source: source, plan: plan, frame: frame{plan.Container},
		object: newObject(source),
	}
	w.puts, w.ctx = errgroup.WithContext(ctx)
	w.puts.SetLimit(plan.Puts)
	w.part = Part{
		Format: FormatVersion, Container: plan.Container, Attempt: a.Name(), Rank: rank, Coordinate: plan.Coordinate,
		Layout: layoutHash(plan.Layout), Tensors: []PartTensor{}, Objects: []Object{}, Chunks: []StoredChunk{},
	}
	return w
}

// shard digests the tensors, several at a time, and puts them into objects in their order.
func (w *writer) shard(shard *Shard) error {
	jobs, err := w.jobs(shard)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(w.ctx)
	var next atomic.Int64
	var workers sync.WaitGroup
	defer func() { stop(); workers.Wait() }()
	for range min(digesters(w.plan.Puts), len(jobs)) {
		workers.Go(func() {
			piece := make([]byte, pieceBytes)
			for k := next.Add(1) - 1; k < int64(len(jobs)); k = next.Add(1) - 1 {
				jobs[k].err = w.digest(ctx, jobs[k], piece)
				close(jobs[k].done)
			}
		})
	}
	for _, job := range jobs {
		<-job.done
		if job.err != nil {
			return job.err
		}
		for _, c := range job.chunks {
			if err := w.chunk(c); err != nil {
				return err
			}
		}
		t := w.plan.Layout[job.tensor]
		if t.Shape == nil {
			t.Shape = []int{}
		}
		w.part.Tensors = append(w.part.Tensors, PartTensor{Index: job.tensor, TensorInfo: t, D1: job.root.Root})
		w.roots = append(w.roots, job.root)
	}
	return nil
}

// digesters is how many tensors are digested at once. One core digests faster than most stores write, and training goes on
// beside it: a quarter of the processors at most, and no more than there are puts to be fed.
func digesters(puts int) int { return max(1, min(puts, runtime.GOMAXPROCS(0)/4)) }

// digesting is one tensor: this rank's boxes of it, and what digesting it gives. done is closed when that is there.
type digesting struct {
	tensor int
	chunks []digested
	root   kernels.Part
	err    error
	done   chan struct{}
}

// digested is a box with its bytes' place and checksums.
type digested struct {
	box         Box
	off, length int64
	sum         CRC
	sum32       uint32
}

// jobs lists what is to be digested, in the order of the plan.
func (w *writer) jobs(shard *Shard) ([]*digesting, error) {
	boxes := shard.Boxes
	var jobs []*digesting
	for _, tensor := range shard.Digests {
		job := &digesting{tensor: tensor, done: make(chan struct{})}
		for len(boxes) > 0 && boxes[0].Tensor == tensor {
			off, length, err := boxes[0].Range(w.plan.Layout[tensor])
			if err != nil {
				return nil, err
			}
			job.chunks = append(job.chunks, digested{box: boxes[0], off: off, length: length})
			boxes = boxes[1:]
		}
		jobs = append(jobs, job)
	}
	if len(boxes) > 0 {
		return nil, fmt.Errorf("the plan writes tensor %d and does not digest it, or is out of order", boxes[0].Tensor)
	}
	return jobs, nil
}

// pieceBytes is how much is read at a time, so that all digests find it in the processor's cache.
const pieceBytes = 256 << 10

// digest reads a whole tensor once and takes all checksums: of the tensor, and of this rank's boxes of it.
func (w *writer) digest(ctx context.Context, job *digesting, piece []byte) error {
	t := w.plan.Layout[job.tensor]
	hasher := kernels.NewContentHasher(digestSeed)
	if !w.nameless {
		hasher = kernels.NewTensorHasher(digestSeed, t.Name, t.DType, t.Shape)
	}
	only := func(p []byte) { hasher.Write(p) }
	var at int64
	for i := range job.chunks {
		c := &job.chunks[i]
		if err := w.pieces(ctx, job.tensor, at, c.off, piece, only); err != nil {
			return err
		}
		crc := crc64nvme.New()
		err := w.pieces(ctx, job.tensor, c.off, c.off+c.length, piece, func(p []byte) {
			hasher.Write(p)
			_, _ = crc.Write(p) // a hash never fails
			if w.frame.needsCRC32() {
				c.sum32 = crc32.Update(c.sum32, crc32.IEEETable, p)
			}
		})
		if err != nil {
			return err
		}
		c.sum = CRC(crc.Sum64())
		at = c.off + c.length
	}
	if err := w.pieces(ctx, job.tensor, at, t.Bytes(), piece, only); err != nil {
		return err
	}
	job.root = hasher.Part()
	return nil
}

// pieces reads the bytes [from, to) of a tensor.
func (w *writer) pieces(ctx context.Context, tensor int, from, to int64, piece []byte, use func(p []byte)) error {
	for from < to {
		p := piece[:min(pieceBytes, to-from)]
		if err := ctx.Err(); err != nil {
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
func (w *writer) chunk(c digested) error {
	start := aligned(w.object.size)
	if w.object.size > 0 && start+w.frame.around(c.length)+c.length > w.plan.ObjectBytes {
		if err := w.flush(); err != nil {
			return err
		}
		start = 0
	}
	before, after, err := w.frame.wrap(w.plan.Layout[c.box.Tensor].DType, c.box.Size, c.length, c.sum32)
	if err != nil {
		return err
	}
	o := w.object
	o.add(make([]byte, start-o.size))
	o.add(before)
	at := o.size
	o.refer(c.box.Tensor, c.off, c.length, c.sum)
	o.add(after)
	w.part.Chunks = append(w.part.Chunks, StoredChunk{
		Box: c.box, Object: len(w.part.Objects), At: at, Length: c.length, Codec: CodecRaw, CRC64NVME: c.sum,
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
	o := Object{Name: w.frame.objectName(w.part.Rank, w.first+len(w.part.Objects)), Size: content.size, CRC64NVME: content.sum}
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
