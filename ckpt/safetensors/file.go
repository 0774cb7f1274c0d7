// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// What callers branch on.
var (
	// ErrDamaged: the bytes are not what the format says. The file is truncated, was changed, or is no safetensors file.
	ErrDamaged = errors.New("not a whole safetensors file")
	// ErrUnsupported: the format has a name for it that phalanx has no dtype for, or the other way round.
	ErrUnsupported = errors.New("element type not supported")
	// ErrTooMany: there are more tensors than are read.
	ErrTooMany = errors.New("too many tensors")
)

const (
	// MaxHeader bounds the header, as all readers of the format do.
	MaxHeader = 100_000_000
	// prefetch is how much of a file the first read takes: the headers of most files fit.
	prefetch = 64 << 10
	// align is what the buffer begins at a multiple of in files that are written here.
	align = 64
	// lengthBytes is the size of the header's length.
	lengthBytes = 8
	// maxTensors bounds the tensors of a file: an entry of a header may have few bytes, and every tensor costs its reader far more.
	maxTensors = 1 << 18
)

// Tensor is one tensor of one file.
type Tensor struct {
	Name string
	// DType is one of phalanx.DTypes, "" when none is like the stored one.
	DType string
	// DTypeName is the name in the file, such as "BF16".
	DTypeName string
	// Shape is never nil; it is empty for a scalar.
	Shape []int
	// At is the offset of the first byte in the file, Length the number of bytes.
	At, Length int64
}

// Readable returns nil, or ErrUnsupported with the reason why the elements cannot be read.
func (t Tensor) Readable() error {
	if t.DType != "" {
		return nil
	}
	return fmt.Errorf("tensor %.200q: %w: %s has elements smaller than a byte; leave the tensor out, or convert it with the program that wrote it", t.Name, ErrUnsupported, t.DTypeName)
}

// File describes a safetensors file.
type File struct {
	// Metadata is __metadata__, nil when there is none.
	Metadata map[string]string
	// Tensors are in the order of their bytes.
	Tensors []Tensor
	// DataAt is where the buffer begins, Size where it and the file end.
	DataAt, Size int64
}

// Find returns the tensor of a name.
func (f *File) Find(name string) (Tensor, bool) {
	i := slices.IndexFunc(f.Tensors, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return Tensor{}, false
	}
	return f.Tensors[i], true
}

// Get reads n bytes from offset off of one file. It may return fewer only where the file ends.
type Get func(ctx context.Context, off, n int64) ([]byte, error)

// Read reads and checks the header of a file of size bytes. It reads no tensor.
func Read(ra io.ReaderAt, size int64) (*File, error) {
	return ReadRanges(context.Background(), size, func(_ context.Context, off, n int64) ([]byte, error) {
		p := make([]byte, n)
		k, err := ra.ReadAt(p, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return p[:k], nil
	})
}

// ReadRanges is Read over an object store: it takes one ranged get, or two where the header is long.
func ReadRanges(ctx context.Context, size int64, get Get) (*File, error) {
	if size < lengthBytes {
		return nil, fmt.Errorf("%w: %d bytes, less than the 8 bytes of the header's length", ErrDamaged, size)
	}
	head, err := exactly(ctx, get, 0, min(size, prefetch))
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(head)
	switch {
	case n > MaxHeader:
		return nil, fmt.Errorf("%w: offset 0: the header has %d bytes, more than the limit of %d", ErrDamaged, n, MaxHeader)
	case int64(n) > size-lengthBytes:
		return nil, fmt.Errorf("%w: offset 0: the header has %d bytes and ends at %d, the file has %d", ErrDamaged, n, n+lengthBytes, size)
	}
	if end := int64(n) + lengthBytes; end > int64(len(head)) {
		rest, err := exactly(ctx, get, int64(len(head)), end-int64(len(head)))
		if err != nil {
			return nil, err
		}
		head = append(head, rest...)
	}
	return decode(head[lengthBytes:lengthBytes+n], size)
}

func exactly(ctx context.Context, get Get, off, n int64) ([]byte, error) {
	p, err := get(ctx, off, n)
	if err != nil {
		return nil, fmt.Errorf("read %d bytes at offset %d: %w", n, off, err)
	}
	if int64(len(p)) != n {
		return nil, fmt.Errorf("%w: read %d bytes at offset %d, got %d", ErrDamaged, n, off, len(p))
	}
	return p, nil
}

// decode turns the JSON of a header into a File that keeps all rules of the format.
func decode(header []byte, size int64) (*File, error) {
	f := &File{DataAt: lengthBytes + int64(len(header)), Size: size}
	w, err := newWalker(header, "offset", lengthBytes)
	if err != nil {
		return nil, err
	}
	if header[0] != '{' {
		return nil, w.errorAt(0, `the header begins with %q, want "{"`, header[0])
	}
	err = w.object(func(name string) error {
		if name == metadataKey {
			return w.strings(&f.Metadata)
		}
		if len(f.Tensors) == maxTensors {
			return fmt.Errorf("%w: the header has more than %d tensors; write several files", ErrTooMany, maxTensors)
		}
		t, err := w.tensor(name, f.DataAt)
		f.Tensors = append(f.Tensors, t)
		return err
	})
	if err == nil {
		err = w.end()
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(f.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Length, b.Length), cmp.Compare(a.Name, b.Name))
	})
	return f, f.covers()
}

// metadataKey is the one name of the header that is no tensor.
const metadataKey = "__metadata__"

// covers checks that the tensors, which are sorted, lie one after the other from the begin of the buffer to the file's end.
func (f *File) covers() error {
	at := f.DataAt
	before := func(i int) string {
		if i == 0 {
			return "the header"
		}
		return fmt.Sprintf("tensor %.200q", f.Tensors[i-1].Name)
	}
	for i, t := range f.Tensors {
		switch end := t.At + t.Length; {
		case t.At > at:
			return fmt.Errorf("%w: bytes [%d, %d) between %s and tensor %.200q belong to no tensor", ErrDamaged, at, t.At, before(i), t.Name)
		case t.At < at:
			return fmt.Errorf("%w: tensor %.200q begins at offset %d, inside of %s, which ends at %d", ErrDamaged, t.Name, t.At, before(i), at)
		case end > f.Size:
			return fmt.Errorf("%w: tensor %.200q has bytes [%d, %d), the file ends at %d: %d bytes are missing", ErrDamaged, t.Name, t.At, end, f.Size, end-f.Size)
		default:
			at = end
		}
	}
	if at != f.Size {
		return fmt.Errorf("%w: %s ends at offset %d, the file has %d bytes: %d bytes belong to no tensor", ErrDamaged, before(len(f.Tensors)), at, f.Size, f.Size-at)
	}
	return nil
}

// length is the number of bytes of a tensor; ok is false when it is no whole number of bytes or too large to count, also
// without the dimensions that are 0 (strides must have a value).
func length(bitsEach int64, shape []int) (n int64, ok bool) {
	const limit = 1 << 62
	product, empty := uint64(bitsEach), false
	for _, d := range shape {
		if d == 0 {
			empty = true
			continue
		}
		high, low := bits.Mul64(product, uint64(d))
		if high != 0 || low > limit {
			return 0, false
		}
		product = low
	}
	if empty {
		return 0, true
	}
	return int64(product / 8), product%8 == 0
}
