// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// object is the content of a data object before it is stored: what the container adds, and ranges of the source, which are read
// when they are wanted. So it takes no memory, whatever its size.
type object struct {
	source   Source
	segments []segment
	size     int64
	sum      CRC

	mu   sync.RWMutex // held while the source is read
	over bool         // nobody may read any more: the source may be gone
}

// segment is a part of an object: bytes, or a range of a tensor.
type segment struct {
	at, length int64
	bytes      []byte // nil: of the tensor
	tensor     int
	off        int64
}

func newObject(source Source) *object { return &object{source: source, sum: Checksum(nil)} }

// add appends bytes.
func (o *object) add(p []byte) {
	o.append(segment{length: int64(len(p)), bytes: p}, Checksum(p))
}

// refer appends a range of a tensor that has the given checksum.
func (o *object) refer(tensor int, off, length int64, sum CRC) {
	o.append(segment{length: length, tensor: tensor, off: off}, sum)
}

func (o *object) append(s segment, sum CRC) {
	if s.length == 0 {
		return
	}
	s.at = o.size
	o.segments = append(o.segments, s)
	o.size += s.length
	o.sum = joinCRC(o.sum, sum, s.length)
}

// errOver is what readers get that outlive the write, as a broken connection's sender may.
var errOver = errors.New("the write has ended")

// ReadAt implements io.ReaderAt.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.over {
		return 0, errOver
	}
	if off < 0 || off > o.size {
		return 0, fmt.Errorf("read at %d of %d bytes: %w", off, o.size, io.ErrUnexpectedEOF)
	}
	i, found := slices.BinarySearchFunc(o.segments, off, func(s segment, off int64) int {
		switch {
		case s.at+s.length <= off:
			return -1
		case s.at > off:
			return 1
		}
		return 0
	})
	n := 0
	for ; found && n < len(p) && i < len(o.segments); i++ {
		s := o.segments[i]
		from := off + int64(n) - s.at
		part := p[n:min(int64(n)+s.length-from, int64(len(p)))]
		if s.bytes != nil {
			copy(part, s.bytes[from:])
		} else if err := o.source.ReadAt(s.tensor, s.off+from, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// end waits for readers and turns away those that come later.
func (o *object) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
}
