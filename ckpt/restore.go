// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Read is one chunk that a restore fetches.
type Read struct {
	Tensor int
	Off    int64 // first byte in the tensor
	Length int64
	Object string // name in the attempt's folder
	At     int64  // offset in the object

	chunk int // index in the tensor's chunks
}

// PlanReads lists the chunks of the given tensors (nil: all) in the order in which the objects hold them. It is pure.
func PlanReads(m *Manifest, tensors []int) ([]Read, error) {
	if tensors == nil {
		for i := range m.Tensors {
			tensors = append(tensors, i)
		}
	}
	var reads []Read
	for _, i := range tensors {
		if i < 0 || i >= len(m.Tensors) {
			return nil, fmt.Errorf("plan reads: tensor %d of %d: %w", i, len(m.Tensors), ErrNotFound)
		}
		for n, c := range m.Tensors[i].Chunks {
			reads = append(reads, Read{Tensor: i, Off: c.Off, Length: c.Length, Object: c.Object, At: c.At, chunk: n})
		}
	}
	slices.SortFunc(reads, func(a, b Read) int {
		return cmp.Or(strings.Compare(a.Object, b.Object), cmp.Compare(a.At, b.At))
	})
	return reads, nil
}

// DealReads cuts reads into n contiguous shares of about equal bytes, so that n ranks that need the same state each fetch a
// share and pass it on: the store is read once, whatever the size of the world. It is pure and deterministic.
func DealReads(reads []Read, n int) [][]Read {
	if n < 1 {
		return nil
	}
	var total, at int64
	for _, r := range reads {
		total += r.Length
	}
	shares := make([][]Read, n)
	for _, r := range reads {
		k := shareOf(at+r.Length/2, total, int64(n))
		shares[k] = append(shares[k], r)
		at += r.Length
	}
	return shares
}

// Sink takes the bytes of a state. Write may be called by several goroutines at once, never twice for the same bytes, and
// keeps nothing of p.
type Sink interface {
	Write(tensor int, off int64, p []byte) error
}

// MemorySink is a Sink whose memory Restore reads into, without a copy.
type MemorySink interface {
	Sink
	// Memory returns the memory of the bytes [off, off+n) of a tensor, nil when they must go through Write. It holds anything
	// until Restore has returned nil.
	Memory(tensor int, off, n int64) []byte
}

// Restore fetches the reads into a sink, at most parallel chunks at a time (0: 4), each verified before it is written. A
// MemorySink has it in its memory before it is verified, and an error if it does not verify. It holds parallel chunks, and none
// for a MemorySink. The caller digests what arrived and compares it with Digests: that covers its own memory too.
func (st *State) Restore(ctx context.Context, reads []Read, parallel int, sink Sink) error {
	if parallel <= 0 {
		parallel = 4
	}
	for _, r := range reads {
		if r.Tensor < 0 || r.Tensor >= len(st.Manifest.Tensors) || r.chunk >= len(st.Manifest.Tensors[r.Tensor].Chunks) {
			return fmt.Errorf("restore: chunk %d of tensor %d is not of this state", r.chunk, r.Tensor)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(parallel, len(reads)) {
		group.Go(func() error {
			var buffer []byte
			for {
				i := int(next.Add(1)) - 1
				if i >= len(reads) || gctx.Err() != nil {
					return gctx.Err()
				}
				if err := st.restore(gctx, reads[i], sink, &buffer); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// restore fetches one chunk. buffer is used, and replaced by a larger one, where the sink has no memory to read into.
func (st *State) restore(ctx context.Context, r Read, sink Sink, buffer *[]byte) error {
	if m, ok := sink.(MemorySink); ok {
		if p := m.Memory(r.Tensor, r.Off, r.Length); p != nil {
			if int64(len(p)) != r.Length {
				return fmt.Errorf("restore tensor %.60q at %d: memory of %d bytes, not %d", st.Manifest.Tensors[r.Tensor].Name, r.Off, len(p), r.Length)
			}
			if err := st.readChunk(ctx, r.Tensor, r.chunk, p); err != nil {
				return fmt.Errorf("restore: %w", err)
			}
			return nil
		}
	}
	if int64(cap(*buffer)) < r.Length {
		*buffer = make([]byte, r.Length)
	}
	p := (*buffer)[:r.Length]
	if err := st.readChunk(ctx, r.Tensor, r.chunk, p); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := sink.Write(r.Tensor, r.Off, p); err != nil {
		return fmt.Errorf("restore tensor %.60q at %d: %w", st.Manifest.Tensors[r.Tensor].Name, r.Off, err)
	}
	return nil
}
