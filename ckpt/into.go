// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"io"

	"github.com/minio/crc64nvme"
)

// IntoGetter is a Store that reads into memory of the caller: the bytes are copied once, their checksum is taken while they are
// in the processor's cache, and nothing is allocated. A store that wraps another one has it by calling GetInto.
type IntoGetter interface {
	// GetInto fills p from offset off, like Get of len(p) bytes. It returns how many bytes it read and their checksum; fewer
	// than len(p) only where the object ends. After an error p holds anything.
	GetInto(ctx context.Context, key string, off int64, p []byte) (n int, sum CRC, err error)
}

// GetInto is IntoGetter's for any store.
func GetInto(ctx context.Context, s Store, key string, off int64, p []byte) (int, CRC, error) {
	if direct, ok := s.(IntoGetter); ok {
		return direct.GetInto(ctx, key, off, p)
	}
	b, err := s.Get(ctx, key, off, int64(len(p)))
	if err != nil {
		return 0, 0, err
	}
	n := copy(p, b)
	return n, Checksum(p[:n]), nil
}

// FillFrom fills p from r in pieces that the processor's cache holds, for implementations of GetInto. read reads all of its
// argument, or as much as there is up to the end, which is io.EOF or io.ErrUnexpectedEOF.
func FillFrom(ctx context.Context, p []byte, read func(p []byte) (int, error)) (n int, sum CRC, err error) {
	crc := crc64nvme.New()
	for n < len(p) && err == nil {
		if err := ctx.Err(); err != nil {
			return n, 0, err
		}
		piece := p[n:min(n+pieceBytes, len(p))]
		var m int
		m, err = read(piece)
		_, _ = crc.Write(piece[:m]) // a hash never fails
		n += m
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, CRC(crc.Sum64()), err
}

// memory is a body that lies in memory.
type memory []byte

// ReadAt implements io.ReaderAt.
func (m memory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// view gives up to n bytes from offset off, without copying them.
func (m memory) view(off int64, n int) []byte { return m[off:min(off+int64(n), int64(len(m)))] }

// Pieces calls do with the content from the beginning, in pieces that the processor's cache holds and that are valid during
// the call only. It ends with the first error, with io.ErrUnexpectedEOF when the content is shorter than Size, and with ctx.
func (b Body) Pieces(ctx context.Context, do func(p []byte) error) error {
	m, inMemory := b.ReaderAt.(memory)
	if inMemory && int64(len(m)) < b.Size {
		return io.ErrUnexpectedEOF
	}
	var buffer []byte
	for off := int64(0); off < b.Size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := int(min(pieceBytes, b.Size-off))
		var p []byte
		if inMemory {
			p = m.view(off, n)
		} else {
			if buffer == nil {
				buffer = make([]byte, n) // the first piece is the largest
			}
			p = buffer[:n]
			if m, err := b.ReaderAt.ReadAt(p, off); m < n {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
		}
		if err := do(p); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}
