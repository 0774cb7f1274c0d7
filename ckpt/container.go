// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"

	"phalanx"
	"phalanx/ckpt/dcp"
)

// Containers say what surrounds the chunks in a data object. The manifest is the same for all.
const (
	// ContainerDCP: every chunk is the payload of a record as torch.save writes it, and the attempt's folder is a checkpoint of
	// PyTorch's torch.distributed.checkpoint, with its index beside the parts. The default.
	ContainerDCP = "dcp"
	// ContainerRaw: objects are chunks at 64-byte boundaries, nothing else.
	ContainerRaw = "raw"
)

// CodecRaw: a chunk's stored bytes are the tensor's bytes.
const CodecRaw = "raw"

// checkContainer reports why a container cannot be one of a format version.
func checkContainer(format int, container string) error {
	switch {
	case container == ContainerRaw, container == ContainerDCP && format >= 2:
		return nil
	}
	return fmt.Errorf("container %.20q is unknown in format %d", container, format)
}

// frame says what a container puts around a chunk.
type frame struct{ container string }

// before and after are the bytes around a chunk of the given size.
func (f frame) before() int64 {
	if f.container == ContainerDCP {
		return dcp.PayloadAt
	}
	return 0
}

func (f frame) after(length int64) int64 {
	if f.container == ContainerDCP {
		return dcp.TrailerLen(length)
	}
	return 0
}

// around is an upper bound of both together.
func (f frame) around(length int64) int64 { return f.before() + f.after(length) }

// objectName is the name of a rank's n-th data object in the attempt's folder.
func (f frame) objectName(rank phalanx.Rank, n int) string {
	if f.container == ContainerDCP {
		return fmt.Sprintf("__%d_%d.distcp", rank, n)
	}
	return fmt.Sprintf("rank-%d-%05d.raw", rank, n)
}

// wrap returns what goes before and after a chunk with a CRC-32 (IEEE).
func (f frame) wrap(dtype string, size []int, length int64, sum uint32) (before, after []byte, err error) {
	if f.container != ContainerDCP {
		return nil, nil, nil
	}
	before, err = dcp.RecordHeader(dtype, size, length, sum)
	if err != nil {
		return nil, nil, err
	}
	return before, dcp.RecordTrailer(dtype, size, length, sum), nil
}

// needsCRC32 reports whether wrap uses the CRC-32.
func (f frame) needsCRC32() bool { return f.container == ContainerDCP }

// enclosed is a byte range of an object with a chunk and what its container put around it.
func (f frame) enclosed(c ManifestChunk) (at, length int64) {
	return c.At - f.before(), f.around(c.Length) + c.Length
}

// check compares what surrounds a chunk in the store with what the container puts there: PyTorch reads that part.
func (f frame) check(t phalanx.TensorInfo, c ManifestChunk, whole []byte) error {
	content := whole[f.before() : f.before()+c.Length]
	before, after, err := f.wrap(t.DType, c.Box.Size, c.Length, crc32.ChecksumIEEE(content))
	if err != nil {
		return err
	}
	if !bytes.Equal(before, whole[:len(before)]) || !bytes.Equal(after, whole[int64(len(before))+c.Length:]) {
		return fmt.Errorf("the record around the chunk is not what was written: %w", ErrDamaged)
	}
	return nil
}

// metadata describes the tensors of a checkpoint as PyTorch's index. Equal manifests give equal bytes.
func metadata(globals []GlobalTensor) ([]byte, error) {
	m := dcp.Metadata{Version: "1.0.0", Paths: map[string][]any{}}
	for _, g := range globals {
		m.Paths[g.Name] = g.path(g.Name)
		if g.Value {
			c := g.Pieces[0].Chunk // the bytes alone: the record around them is for the verifier
			m.Objects = append(m.Objects, dcp.Object{Name: g.Name, File: c.Object, At: c.At, Length: c.Length})
			continue
		}
		t := dcp.Tensor{Name: g.Name, DType: g.DType, Shape: g.Shape, RequiresGrad: g.RequiresGrad}
		for _, p := range g.Pieces {
			at, length := frame{ContainerDCP}.enclosed(p.Chunk)
			t.Chunks = append(t.Chunks, dcp.Chunk{Offset: p.Offset, Size: p.Size, File: p.Chunk.Object, At: at, Length: length})
		}
		m.Tensors = append(m.Tensors, t)
	}
	b, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", MetadataName, err)
	}
	return b, nil
}

// putMetadata writes PyTorch's index into the attempt's folder.
func putMetadata(ctx context.Context, s Store, a Attempt, globals []GlobalTensor) (*ObjectRef, error) {
	b, err := metadata(globals)
	if err != nil {
		return nil, err
	}
	if err := putOnce(ctx, s, a.Folder()+"/"+MetadataName, b); err != nil {
		return nil, err
	}
	return &ObjectRef{Name: MetadataName, Size: int64(len(b)), CRC64NVME: Checksum(b), SHA256: sha256Hex(b)}, nil
}
