// SPDX-License-Identifier: Apache-2.0

// Package archive finds the bytes of members of zip archives. Package archive/zip takes a member's name from the directory
// at the end, and does not compare it with the one before the bytes: an archive whose two names differ is another one to
// programs that read from front to back.
package archive

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// BigEndian reads what PyTorch's member "byteorder" says; known is false for anything but its two words.
func BigEndian(content []byte) (big, known bool) {
	switch string(content) {
	case "little":
		return false, true
	case "big":
		return true, true
	}
	return false, false
}

// localBytes is the length of a local header without its name and extra field.
const localBytes = 30

// Reader is the directory of an archive. It is safe for concurrent use, if its io.ReaderAt is, but that no file of it may be
// opened while Body runs.
type Reader struct {
	Files []*zip.File

	ra     io.ReaderAt
	header *header    // what archive/zip reads through
	mu     sync.Mutex // held over one small read
}

// header is an io.ReaderAt that knows where the last read began. archive/zip does not tell where local headers are.
type header struct {
	ra io.ReaderAt
	at atomic.Int64
}

func (h *header) ReadAt(p []byte, off int64) (int, error) {
	h.at.Store(off)
	return h.ra.ReadAt(p, off)
}

// Open reads the directory of an archive of size bytes.
func Open(ra io.ReaderAt, size int64) (*Reader, error) {
	r := &Reader{ra: ra, header: &header{ra: ra}}
	z, err := zip.NewReader(r.header, size)
	if err != nil {
		return nil, err
	}
	r.Files = z.File
	return r, nil
}

// Body returns the offset of a member's first byte. It reads the local header before it, and refuses one of another name or
// method than the directory has.
func (r *Reader) Body(f *zip.File) (int64, error) {
	r.mu.Lock() // so that the last read is that of this member
	at, err := f.DataOffset()
	header := r.header.at.Load()
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	b := make([]byte, localBytes+len(f.Name))
	if at < header+int64(len(b)) {
		return 0, errors.New("the header before its bytes has another name than the directory")
	}
	if n, err := r.ra.ReadAt(b, header); n < len(b) {
		return 0, fmt.Errorf("read the header before its bytes: %w", err)
	}
	if length := int(binary.LittleEndian.Uint16(b[26:])); length != len(f.Name) || string(b[localBytes:]) != f.Name {
		return 0, errors.New("the header before its bytes has another name than the directory")
	}
	if method := binary.LittleEndian.Uint16(b[8:]); method != f.Method {
		return 0, fmt.Errorf("the header before its bytes has the method %d, the directory %d", method, f.Method)
	}
	return at, nil
}
