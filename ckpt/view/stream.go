// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt"
)

// Stream reads tensors whole, in the given order, and hands their row-major bytes to consume from front to back: tensor is a
// place in Tensors, off the first byte of p in it. p is only valid during the call. A tensor without elements is handed over
// once, with no bytes. Memory is constant, whatever the size of tensors.
//
// Bytes are handed over before the whole shard that they are from was read: what was consumed is verified when Stream has
// returned nil, and not before.
func (v *View) Stream(ctx context.Context, tensors []int, consume func(tensor int, off int64, p []byte) error) error {
	batches := make(chan batch)  // 0: the next one is read while this one is consumed, no further
	free := make(chan []byte, 2) // 2: the buffers
	for range cap(free) {
		free <- nil
	}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return v.produce(gctx, tensors, free, batches)
	})
	group.Go(func() error {
		for {
			var b batch
			var more bool
			select {
			case b, more = <-batches:
			case <-gctx.Done():
				return gctx.Err()
			}
			if !more {
				return nil
			}
			for _, p := range b.pieces {
				if err := consume(p.tensor, p.off, p.dst); err != nil {
					return err
				}
			}
			free <- b.buffer // never blocks: there are as many places as buffers
		}
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return ctx.Err()
}

// batch is what is read at once: consecutive pieces.
type batch struct {
	buffer []byte
	pieces []placed
}

// placed is a piece and the byte of its tensor where it begins.
type placed struct {
	piece
	off int64
}

// produce reads the tensors batch by batch.
func (v *View) produce(ctx context.Context, tensors []int, free <-chan []byte, batches chan<- batch) error {
	r := reading{view: v, inOrder: true}
	var b batch
	var size int64
	flush := func() error {
		if len(b.pieces) == 0 {
			return nil
		}
		select {
		case b.buffer = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		if int64(len(b.buffer)) < size {
			b.buffer = make([]byte, size)
		}
		rest := b.buffer
		pieces := make([]piece, len(b.pieces))
		for i := range b.pieces {
			p := &b.pieces[i]
			n := p.box.Elements() * int64(phalanx.DTypeSize(v.Tensors[p.tensor].DType))
			p.dst, rest = rest[:n:n], rest[n:]
			pieces[i] = p.piece
		}
		if err := r.read(ctx, pieces); err != nil {
			return err
		}
		select {
		case batches <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
		b, size = batch{}, 0
		return nil
	}
	for _, i := range tensors {
		if i < 0 || i >= len(v.Tensors) {
			return fmt.Errorf("tensor %d of %d: %w", i, len(v.Tensors), ckpt.ErrNotFound)
		}
		var off int64
		for _, p := range v.pieces(i) {
			n := p.box.Elements() * int64(phalanx.DTypeSize(v.Tensors[i].DType))
			if size+n > v.limit().batch {
				if err := flush(); err != nil {
					return err
				}
			}
			b.pieces = append(b.pieces, placed{p, off})
			off, size = off+n, size+n
		}
	}
	return flush()
}

// pieces cuts a tensor into contiguous boxes of at most a batch, in order. One without elements is one piece.
func (v *View) pieces(tensor int) []piece {
	t := &v.Tensors[tensor]
	var out []piece
	for _, b := range ckpt.Chunks(tensor, t.Info(), v.limit().batch) {
		out = append(out, piece{tensor: tensor, box: Box{Offset: b.Offset, Shape: b.Size}})
	}
	if len(out) == 0 {
		out = []piece{{tensor: tensor, box: Whole(t.Shape)}}
	}
	return out
}
