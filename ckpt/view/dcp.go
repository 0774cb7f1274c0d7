// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
)

// openDCP views a folder of PyTorch's distributed checkpoint.
func openDCP(ctx context.Context, f Files) (*View, error) {
	b, err := readAll(ctx, f, dcp.MetadataName, maxIndexBytes)
	if err != nil {
		return nil, err
	}
	m, err := dcp.DecodeMetadata(b, pickle.Limits{})
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", f.Place(), dcp.MetadataName, damagedFormat(err))
	}
	v := &View{Format: DCP, Place: f.Place(), files: f, index: dcp.MetadataName, Paths: m.Paths, Metadata: map[string]string{}}
	if m.Version != "" {
		v.Metadata["version"] = m.Version
	}
	if m.PropertyItems > 5 {
		v.Notes = append(v.Notes, "its index is one of PyTorch 2.15, which older versions cannot read; phalanx ckpt convert SRC DST writes one that they can")
	}
	for _, g := range m.Foreign {
		v.Notes = append(v.Notes, fmt.Sprintf("the index names %s.%s (at byte %d), which was looked past", g.Module, g.Name, g.Offset))
	}
	for i := range m.Tensors {
		v.Tensors = append(v.Tensors, fromDCP(&m.Tensors[i]))
	}
	for _, o := range m.Objects {
		v.Objects = append(v.Objects, Object{Name: o.Name, Object: o.File, At: o.At, Length: o.Length, Transforms: o.Transforms})
	}
	if err := v.CheckCover(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Place(), err)
	}
	return v, nil
}

// damagedFormat marks errors of foreign formats for callers that branch: an index that was changed is damage, names in it that
// this program does not know are a format that it does not read.
func damagedFormat(err error) error {
	var foreign *pickle.UnknownGlobalError
	if errors.As(err, &foreign) {
		return fmt.Errorf("%w: %w", err, ckpt.ErrFormat)
	}
	return fmt.Errorf("%w: %w", err, ckpt.ErrDamaged)
}

// fromDCP is a tensor of an index. Shards are whole records until their payload is looked for.
func fromDCP(t *dcp.Tensor) Tensor {
	out := Tensor{Name: t.Name, DType: t.DType, DTypeName: t.DTypeName, Shape: t.Shape, RequiresGrad: t.RequiresGrad}
	if out.Shape == nil {
		out.Shape = []int{}
	}
	for _, c := range t.Chunks {
		if c.Elements() == 0 && len(t.Chunks) > 1 || c.File == "" {
			continue
		}
		out.Shards = append(out.Shards, Shard{Box: Box{nonNil(c.Offset), nonNil(c.Size)}, Object: c.File, At: c.At, Length: c.Length, Record: true, Transforms: c.Transforms})
	}
	sortShards(out.Shards)
	return out
}

func nonNil(s []int) []int {
	if s == nil {
		return []int{}
	}
	return s
}

// openRecord finds the elements in an archive.
func (v *View) openRecord(ctx context.Context, tensor int, s *Shard) (Shard, error) {
	t := &v.Tensors[tensor]
	if len(s.Transforms) > 0 {
		return Shard{}, fmt.Errorf("tensor %.80q: its records were transformed by %s when they were written, which is not undone: %w", t.Name,
			strings.Join(s.Transforms, ", "), ckpt.ErrFormat)
	}
	reader := &blocks{ra: ReaderAt(ctx, v.files, s.Object, s.At, s.Length), size: s.Length}
	info, err := dcp.ParseRecord(reader, s.Length)
	switch {
	case err != nil && ctx.Err() != nil:
		return Shard{}, ctx.Err()
	case err != nil && reader.failed != nil && !errors.Is(reader.failed, ckpt.ErrCorrupt) && !errors.Is(reader.failed, ckpt.ErrNotFound):
		return Shard{}, fmt.Errorf("tensor %.80q: %w", t.Name, reader.failed)
	case err != nil && reader.failed != nil:
		return Shard{}, v.damage(tensor, s, s.Sum, reader.failed)
	case err != nil:
		return Shard{}, v.damage(tensor, s, s.Sum, damagedFormat(err))
	case info.DType == "" && t.DType != "":
		return Shard{}, fmt.Errorf("tensor %.80q: its record at byte %d of %s holds torch.%s, which cannot be read: %w", t.Name, s.At, s.Object, info.DTypeName, ckpt.ErrFormat)
	case info.DType != t.DType || !slices.Equal(info.Shape, s.Shape):
		return Shard{}, v.damage(tensor, s, s.Sum, fmt.Errorf("the record holds %s%v, the index says %s%v: %w", info.DType, info.Shape, t.DType, s.Shape, ckpt.ErrDamaged))
	}
	found := *s
	found.Record = false
	found.At, found.Length = s.At+info.At, info.StorageBytes
	found.First = info.Offset * int64(phalanx.DTypeSize(t.DType))
	found.Sum, found.Swap, found.PutOff = Sum{CRC32, uint64(info.CRC32)}, info.Swap, info.PutOff
	if !isRowMajor(info.Shape, info.Strides) {
		found.Strides = info.Strides
	}
	return found, nil
}

// isRowMajor reports whether strides are those of a row-major array; strides of dimensions of one element do not matter.
func isRowMajor(shape, strides []int) bool {
	for d, want := range rowMajor(shape) {
		if shape[d] > 1 && strides[d] != want {
			return false
		}
	}
	return true
}

// blocks reads a range in blocks and keeps the newest few: descriptions of archives are read by many small reads at both ends.
type blocks struct {
	ra     io.ReaderAt
	size   int64
	mu     sync.Mutex
	kept   []block
	failed error // the first error of reading
}

type block struct {
	at      int64
	content []byte
}

const blockBytes = 8 << 10

// ReadAt implements io.ReaderAt.
func (b *blocks) ReadAt(p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= b.size {
			return n, io.EOF
		}
		k, err := b.block(at / blockBytes * blockBytes)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], k.content[at-k.at:])
	}
	return n, nil
}

func (b *blocks) block(at int64) (block, error) {
	for _, k := range b.kept {
		if k.at == at {
			return k, nil
		}
	}
	k := block{at, make([]byte, min(blockBytes, b.size-at))}
	if _, err := b.ra.ReadAt(k.content, at); err != nil && !errors.Is(err, io.EOF) {
		if b.failed == nil {
			b.failed = err
		}
		return block{}, err
	}
	if len(b.kept) == 8 {
		b.kept = b.kept[1:]
	}
	b.kept = append(b.kept, k)
	return k, nil
}
