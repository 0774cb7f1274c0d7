// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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

// Sink takes the bytes of a state. Write may be called by several goroutines at once, never twice for the same bytes.
type Sink interface {
	Write(tensor int, off int64, p []byte) error
}

// Restore fetches the reads into a sink, at most parallel chunks at a time (0: 4), each verified before it is written. The
// caller digests what arrived and compares it with Digests: that covers its own memory too.
func (st *State) Restore(ctx context.Context, reads []Read, parallel int, sink Sink) error {
	if parallel <= 0 {
		parallel = 4
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, r := range reads {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if r.Tensor < 0 || r.Tensor >= len(st.Manifest.Tensors) || r.chunk >= len(st.Manifest.Tensors[r.Tensor].Chunks) {
				return fmt.Errorf("restore: chunk %d of tensor %d is not of this state", r.chunk, r.Tensor)
			}
			content, err := st.readChunk(gctx, r.Tensor, r.chunk)
			if err != nil {
				return fmt.Errorf("restore: %w", err)
			}
			if err := sink.Write(r.Tensor, r.Off, content); err != nil {
				return fmt.Errorf("restore tensor %.60q at %d: %w", st.Manifest.Tensors[r.Tensor].Name, r.Off, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err() // the loop may have ended early
}
