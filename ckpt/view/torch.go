// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/torchfile"
)

// openTorch views one file of torch.save. Its objects are values inside of the pickle, so they have no bytes of their own.
func openTorch(ctx context.Context, f Files, name string) (*View, error) {
	size, err := f.Size(ctx, name)
	if err != nil {
		return nil, err
	}
	reader := &blocks{ra: ReaderAt(ctx, f, name, 0, size), size: size}
	file, err := torchfile.Open(reader, size)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", f.Place(), name, reader.explain(torchError(err)))
	}
	v := &View{Format: Torch, File: name, files: f, Paths: map[string][]any{}}
	for i := range file.Tensors {
		t := &file.Tensors[i]
		shape := nonNil(t.Shape)
		s := Shard{Box: Whole(shape), Object: name, Length: t.StorageBytes, First: t.Offset * int64(phalanx.DTypeSize(t.DType)), Sum: Sum{CRC32, uint64(t.CRC32)}, Swap: t.Swap, PutOff: t.PutOff}
		if !isRowMajor(shape, t.Strides) {
			s.Strides = t.Strides
		}
		v.Tensors = append(v.Tensors, Tensor{Name: t.Name, DType: t.DType, DTypeName: t.DTypeName, Shape: shape, RequiresGrad: t.RequiresGrad, Shards: []Shard{s}})
		v.Paths[t.Name] = t.Path
	}
	for _, o := range file.Objects {
		v.Objects = append(v.Objects, Object{Name: o.Name, Object: name, Text: torchfile.Text(o.Value, 200)})
	}
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range file.Tensors {
		group.Go(func() error {
			at, err := file.Locate(&file.Tensors[i])
			v.Tensors[i].Shards[0].At = at
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", f.Place(), name, reader.explain(torchError(err)))
	}
	return v, nil
}

// torchError marks errors for callers that branch.
func torchError(err error) error {
	if errors.Is(err, torchfile.ErrUnsupported) {
		return fmt.Errorf("%w: %w", err, ckpt.ErrFormat)
	}
	return damagedFormat(err)
}

// explain prefers the error of reaching the bytes to what followed from it.
func (b *blocks) explain(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil {
		return b.failed
	}
	return err
}
