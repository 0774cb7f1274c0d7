// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
	"phalanx/ckpt/view"
)

// Rewrite copies the files of a DCP checkpoint as they are and writes its index anew, so that every PyTorch from 2.6 on reads it:
// 2.15 writes an index that older ones cannot read. Tensors with a checksum are verified where they were copied to when the
// target is a folder, and in the source otherwise.
func Rewrite(ctx context.Context, v *view.View, to Target, progress func(done, total int64)) (Result, error) {
	result, err := rewrite(ctx, v, to, progress)
	if err == nil {
		err = to.Commit(ctx)
	}
	if err != nil {
		to.Abort()
		return Result{}, fmt.Errorf("write %s: %w", to.Place(), err)
	}
	return result, nil
}

func rewrite(ctx context.Context, v *view.View, to Target, progress func(done, total int64)) (Result, error) {
	r := Result{Tensors: len(v.Tensors), Bytes: v.Bytes(), Copied: []string{}, LeftOut: []string{}}
	if v.Format != view.DCP {
		return r, fmt.Errorf("the index of a checkpoint of format %s cannot be rewritten: %w", v.Format, ErrFormat)
	}
	size, err := v.Files().Size(ctx, dcp.MetadataName)
	if err != nil {
		return r, err
	}
	b := make([]byte, size)
	if err := v.Files().Read(ctx, dcp.MetadataName, 0, b); err != nil {
		return r, err
	}
	m, err := dcp.DecodeMetadata(b, pickle.Limits{})
	if err != nil {
		return r, err
	}
	index, err := m.Encode()
	if err != nil {
		return r, err
	}
	names := v.Names()
	r.Files = len(names)
	for _, o := range v.Objects {
		r.Copied = append(r.Copied, o.Name)
	}
	if err := copyFiles(ctx, v.Files(), names, to, progress); err != nil {
		return r, err
	}
	if err := writeWhole(ctx, to, ckpt.MetadataName, index); err != nil {
		return r, err
	}
	return r, verifyCopy(ctx, v, to)
}

// copyPart is how much of a file is in memory while it is copied.
const copyPart = 8 << 20

func copyFiles(ctx context.Context, from view.Files, names []string, to Target, progress func(done, total int64)) error {
	sizes := make([]int64, len(names))
	var done, total int64
	for i, name := range names {
		var err error
		if sizes[i], err = from.Size(ctx, name); err != nil {
			return err
		}
		total += sizes[i]
	}
	buffer := make([]byte, copyPart)
	for i, name := range names {
		f, err := to.Create(ctx, name, sizes[i])
		if err != nil {
			return err
		}
		for off := int64(0); off < sizes[i]; off += copyPart {
			p := buffer[:min(copyPart, sizes[i]-off)]
			if err = from.Read(ctx, name, off, p); err != nil {
				break
			}
			if _, err = f.WriteAt(p, off); err != nil {
				break
			}
			done += int64(len(p))
			if progress != nil {
				progress(done, total)
			}
		}
		if err != nil {
			return errors.Join(err, f.Discard())
		}
		if err := f.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// writeWhole writes an object of a few bytes.
func writeWhole(ctx context.Context, to Target, name string, b []byte) error {
	f, err := to.Create(ctx, name, int64(len(b)))
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Close(ctx)
}

// verifyCopy reads every tensor that can be read.
func verifyCopy(ctx context.Context, v *view.View, to Target) error {
	if f, ok := to.(*folder); ok {
		copied, err := view.Open(ctx, f.partial, nil, view.Options{})
		if err != nil {
			return err
		}
		v = copied
	}
	var tensors []int
	for i := range v.Tensors {
		readable := v.Tensors[i].DType != "" && !slices.ContainsFunc(v.Tensors[i].Shards, func(s view.Shard) bool { return len(s.Transforms) > 0 })
		if readable {
			tensors = append(tensors, i)
		}
	}
	return v.Stream(ctx, tensors, func(int, int64, []byte) error { return nil })
}
