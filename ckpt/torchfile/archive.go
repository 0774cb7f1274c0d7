// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"phalanx/ckpt/archive"
)

// What callers branch on.
var (
	// ErrDamaged: the bytes are not what the format says. The file is truncated, was changed, or is no file of torch.save.
	ErrDamaged = errors.New("not a whole file of torch.save")
	// ErrUnsupported: a file or tensor of a kind that is not read here.
	ErrUnsupported = errors.New("not supported")
)

const (
	maxMembers = 1 << 20
	maxPickle  = 256 << 20
	maxSmall   = 64 // bytes of byteorder
	// Least bytes of a local header, a directory entry and the end of the directory, without names.
	localBytes, entryBytes, endBytes = 30, 46, 22
)

// What files begin with.
var (
	zipMagic    = []byte("PK\x03\x04")
	legacyMagic = []byte("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") // LONG1 of the number that begins a legacy file
)

// members is a zip archive whose members are all in one folder.
type members struct {
	ra     io.ReaderAt
	zip    *archive.Reader
	size   int64
	folder string
	files  map[string]*zip.File // without the folder
}

// recognize refuses what is no zip archive, with what it looks like.
func recognize(ra io.ReaderAt, size int64) error {
	head := make([]byte, min(size, 512))
	if n, err := ra.ReadAt(head, 0); err != nil && (!errors.Is(err, io.EOF) || n < len(head)) {
		return fmt.Errorf("read the first %d bytes: %w", len(head), err)
	}
	switch {
	case bytes.HasPrefix(head, zipMagic):
		return nil
	case len(head) > 14 && head[0] == 0x80 && bytes.HasPrefix(head[2:], legacyMagic):
		return fmt.Errorf("%w: this is a file of torch.save before 1.6, or with _use_new_zipfile_serialization=False; load it with PyTorch and save it again", ErrUnsupported)
	case len(head) >= 262 && string(head[257:262]) == "ustar":
		return fmt.Errorf("%w: this is a tar archive; PyTorch before 0.1.10 wrote such: load it with PyTorch and save it again", ErrUnsupported)
	case len(head) > 2 && head[0] == 0x80 && head[1] <= 5:
		return fmt.Errorf("%w: this is a bare pickle, not a file of torch.save", ErrUnsupported)
	}
	return fmt.Errorf("%w: it begins with % x, a zip archive with % x", ErrDamaged, head[:min(4, len(head))], zipMagic)
}

func openArchive(ra io.ReaderAt, size int64) (*members, error) {
	if err := recognize(ra, size); err != nil {
		return nil, err
	}
	r, err := archive.Open(ra, size)
	if err != nil {
		return nil, fmt.Errorf("%w: the directory at the end of the zip archive of %d bytes: %w; the file may be cut off", ErrDamaged, size, err)
	}
	if len(r.Files) > maxMembers {
		return nil, fmt.Errorf("%w: the archive has %d members, more than the limit of %d", ErrDamaged, len(r.Files), maxMembers)
	}
	a := &members{ra: ra, zip: r, size: size, files: make(map[string]*zip.File, len(r.Files))}
	if slices.ContainsFunc(r.Files, func(f *zip.File) bool { return strings.HasSuffix(f.Name, "/constants.pkl") }) {
		return nil, fmt.Errorf("%w: this is a TorchScript archive (torch.jit.save); save the state_dict of the loaded module with torch.save", ErrUnsupported)
	}
	room := uint64(size) - min(uint64(size), endBytes)
	for i, f := range r.Files {
		folder, name, ok := strings.Cut(f.Name, "/")
		if i == 0 {
			a.folder = folder
		}
		switch {
		case !ok || folder != a.folder:
			return nil, fmt.Errorf("%w: the member %.80q is not in the folder %.80q like the first one", ErrDamaged, f.Name, a.folder)
		case a.files[name] != nil:
			return nil, fmt.Errorf("%w: there are two members %.80q", ErrDamaged, f.Name)
		case f.Method != zip.Store:
			return nil, fmt.Errorf("%w: the member %.80q is compressed (method %d), torch.save stores all as they are; unpack the archive and pack it without compression (zip -0)", ErrUnsupported, f.Name, f.Method)
		case f.Flags&1 != 0:
			return nil, fmt.Errorf("%w: the member %.80q is encrypted", ErrUnsupported, f.Name)
		case f.CompressedSize64 != f.UncompressedSize64:
			return nil, fmt.Errorf("%w: the member %.80q is stored, but has %d bytes as %d", ErrDamaged, f.Name, f.UncompressedSize64, f.CompressedSize64)
		}
		takes := uint64(localBytes + entryBytes + 2*len(f.Name))
		if f.CompressedSize64 > room || takes > room-f.CompressedSize64 {
			return nil, fmt.Errorf("%w: the members have more bytes than the file, which has %d: %.80q has %d and there is room for %d", ErrDamaged, size, f.Name, f.CompressedSize64, room)
		}
		room -= f.CompressedSize64 + takes
		a.files[name] = f
	}
	if a.files["data.pkl"] == nil {
		return nil, fmt.Errorf("%w: the zip archive has no member data.pkl, so torch.save did not write it", ErrUnsupported)
	}
	return a, nil
}

// where is the range of a member's bytes in the file. It reads the member's local header.
func (a *members) where(name string) (at, length int64, err error) {
	f := a.files[name]
	if f == nil {
		return 0, 0, fmt.Errorf("%w: the archive has no member %.80q", ErrDamaged, a.folder+"/"+name)
	}
	if at, err = a.zip.Body(f); err != nil {
		return 0, 0, fmt.Errorf("%w: local header of member %.80q: %w", ErrDamaged, f.Name, err)
	}
	length = int64(f.CompressedSize64)
	if at < 0 || at > a.size || length > a.size-at {
		return 0, 0, fmt.Errorf("%w: member %.80q has bytes [%d, %d+%d), the file ends at %d", ErrDamaged, f.Name, at, at, length, a.size)
	}
	return at, length, nil
}

// small returns a member of at most limit bytes, with its checksum verified.
func (a *members) small(name string, limit int64) ([]byte, error) {
	at, length, err := a.where(name)
	if err != nil {
		return nil, err
	}
	if length > limit {
		return nil, fmt.Errorf("%w: member %.80q has %d bytes, more than the limit of %d", ErrDamaged, a.files[name].Name, length, limit)
	}
	p := make([]byte, length)
	if err := readFull(a.ra, p, at); err != nil {
		return nil, fmt.Errorf("member %.80q: %w", a.files[name].Name, err)
	}
	return p, a.sameSum(name, crc32.ChecksumIEEE(p))
}

// sameSum compares the checksum of a member's bytes with that in the directory.
func (a *members) sameSum(name string, got uint32) error {
	if f := a.files[name]; f.CRC32 != got {
		return fmt.Errorf("%w: member %.80q: its bytes have CRC-32 %08x, the archive says %08x", ErrDamaged, f.Name, got, f.CRC32)
	}
	return nil
}

// bigEndian reads the byte order. Archives of older versions do not name it: they are little-endian.
func (a *members) bigEndian() (bool, error) {
	if a.files["byteorder"] == nil {
		return false, nil
	}
	b, err := a.small("byteorder", maxSmall)
	if err != nil {
		return false, err
	}
	big, known := archive.BigEndian(b)
	if !known {
		return false, fmt.Errorf("%w: the byte order is %.20q, want little or big", ErrDamaged, b)
	}
	return big, nil
}

// readFull fills p from offset at.
func readFull(ra io.ReaderAt, p []byte, at int64) error {
	n, err := ra.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: bytes [%d, %d) are missing, the file ends at %d", ErrDamaged, at, at+int64(len(p)), at+int64(n))
	}
	return fmt.Errorf("read bytes [%d, %d): %w", at, at+int64(len(p)), err)
}
