// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"phalanx"
)

// Pair is a tensor of two checkpoints.
type Pair struct{ A, B int } // places in the tensors of each

// Verdict is what is known of the content of a pair without reading it.
type Verdict uint8

// Verdicts.
const (
	Unknown   Verdict = iota // both must be read
	Equal                    // by digests or checksums
	Different                // likewise
)

// Pairs lists the tensors that both checkpoints have with one dtype and shape, in the order of a. It is pure.
func Pairs(a, b *View) []Pair {
	place := make(map[string]int, len(b.Tensors))
	for i := range b.Tensors {
		place[b.Tensors[i].Name] = i
	}
	var pairs []Pair
	for i := range a.Tensors {
		t := &a.Tensors[i]
		k, found := place[t.Name]
		if found && t.DType != "" && t.DType == b.Tensors[k].DType && slices.Equal(t.Shape, b.Tensors[k].Shape) {
			pairs = append(pairs, Pair{i, k})
		}
	}
	return pairs
}

// Judge compares two tensors of one name, dtype and shape by what their indexes say. It is pure.
func Judge(a, b *Tensor) Verdict {
	if a.Bytes() == 0 && a.DType != "" {
		return Equal
	}
	if len(a.Digests) > 0 && len(a.Digests) == len(b.Digests) {
		same, alike := true, true
		for i := range a.Digests {
			x, y := &a.Digests[i], &b.Digests[i]
			alike = alike && slices.Equal(x.Offset, y.Offset) && slices.Equal(x.Shape, y.Shape)
			same = same && x.D1 == y.D1
		}
		if alike {
			return verdict(same)
		}
	}
	if len(a.Shards) != len(b.Shards) || len(a.Shards) == 0 {
		return Unknown
	}
	elem := int64(phalanx.DTypeSize(a.DType))
	same := true
	for i := range a.Shards {
		x, y := &a.Shards[i], &b.Shards[i]
		if !slices.Equal(x.Offset, y.Offset) || !slices.Equal(x.Shape, y.Shape) || x.Sum.Kind == NoSum || x.Sum.Kind != y.Sum.Kind || !x.exact(elem) || !y.exact(elem) || x.Swap || y.Swap || x.PutOff != y.PutOff {
			return Unknown
		}
		if x.Sum != y.Sum {
			return Different // whatever the other shards are
		}
		// A CRC-32 says for certain that content differs, but not that it is the same: there are few of them.
		same = same && x.Sum.Kind == CRC64NVME
	}
	if !same {
		return Unknown
	}
	return Equal
}

func verdict(same bool) Verdict {
	if same {
		return Equal
	}
	return Different
}

// Blocks streams pairs of tensors of one shape from both checkpoints beside each other, and calls f with the same elements of
// both. Dtypes may differ. Memory is that of two Streams.
func Blocks(ctx context.Context, a, b *View, pairs []Pair, f func(p Pair, x, y []byte) error) error {
	r, w := io.Pipe()
	group, gctx := errgroup.WithContext(ctx)
	of := func(side func(Pair) int) []int {
		out := make([]int, len(pairs))
		for i, p := range pairs {
			out[i] = side(p)
		}
		return out
	}
	group.Go(func() error {
		err := a.Stream(gctx, of(func(p Pair) int { return p.A }), func(_ int, _ int64, p []byte) error {
			if len(p) == 0 { // the other side reads nothing of it, and may be done
				return nil
			}
			_, err := w.Write(p)
			return err
		})
		return errors.Join(err, w.CloseWithError(err))
	})
	group.Go(func() error {
		at := 0
		var x []byte
		err := b.Stream(gctx, of(func(p Pair) int { return p.B }), func(tensor int, _ int64, y []byte) error {
			for pairs[at].B != tensor { // Stream keeps the order
				at++
			}
			sizeA, sizeB := phalanx.DTypeSize(a.Tensors[pairs[at].A].DType), phalanx.DTypeSize(b.Tensors[tensor].DType)
			const block = 1 << 16 // elements
			for len(y) > 0 {
				n := min(block, len(y)/sizeB)
				if cap(x) < n*sizeA {
					x = make([]byte, block*16)
				}
				part := x[:n*sizeA]
				if _, err := io.ReadFull(r, part); err != nil {
					return fmt.Errorf("the other checkpoint: %w", err)
				}
				if err := f(pairs[at], part, y[:n*sizeB]); err != nil {
					return err
				}
				y = y[n*sizeB:]
			}
			return nil
		})
		return errors.Join(err, r.CloseWithError(err))
	})
	return group.Wait()
}

// Differing reads the pairs and returns those whose bytes differ.
func Differing(ctx context.Context, a, b *View, pairs []Pair, progress func(done int64)) (map[Pair]bool, error) {
	differ := map[Pair]bool{}
	var done int64
	err := Blocks(ctx, a, b, pairs, func(p Pair, x, y []byte) error {
		if !bytes.Equal(x, y) {
			differ[p] = true
		}
		done += int64(len(x))
		if progress != nil {
			progress(done)
		}
		return nil
	})
	return differ, err
}
