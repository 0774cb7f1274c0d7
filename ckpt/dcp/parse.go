// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"strings"

	"phalanx/ckpt/archive"
	"phalanx/ckpt/pickle"
)

// ErrRecord is wrapped by the error for bytes that are no record of a tensor.
var ErrRecord = errors.New("not a record of a tensor")

// RecordInfo says where a record has its tensor's bytes, and how they lie there.
type RecordInfo struct {
	pickle.Tensor // Offset is in elements, from At on

	At     int64  // of the storage's first byte, in the record
	CRC32  uint32 // of the storage's StorageBytes bytes, as the record has it: for whoever reads them to check
	Swap   bool   // numbers are big-endian: pickle.SwapBytes turns them
	Member string // "data/0": the storage's name in the archive, without its folder
}

// Limits of what surrounds the storages of a record. For one tensor PyTorch writes a few hundred bytes.
const (
	maxMembers = 1 << 16
	maxTensor  = 1 << 20  // bytes of the pickle of a tensor
	maxObject  = 64 << 20 // of something else
	maxSmall   = 64
)

// ParseRecord reads the description of a record of one tensor, written by any version of PyTorch since 1.6 or by this
// package, from its size bytes. It reads the archive's directory and the pickle in it, with its checksum, but nothing of
// the storage, and executes nothing. That the storage lies inside the record and all of the tensor inside the storage is
// checked. Errors wrap ErrRecord, or come from the pickle.
func ParseRecord(ra io.ReaderAt, size int64) (RecordInfo, error) {
	a, err := openArchive(ra, size)
	if err != nil {
		return RecordInfo{}, err
	}
	doc, err := a.pickle(maxTensor, pickle.Policy{KnownIn: pickle.TensorGlobal, PersistentIDs: true})
	if err != nil {
		return RecordInfo{}, err
	}
	if !pickle.IsTensor(doc.Value) {
		return RecordInfo{}, fmt.Errorf("%w: it holds %s", ErrRecord, pickle.Describe(doc.Value))
	}
	t, err := pickle.AsTensor(doc.Value)
	if err != nil {
		return RecordInfo{}, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	info := RecordInfo{Tensor: *t, Member: "data/" + t.Storage}
	if info.Swap, err = a.bigEndian(); err != nil {
		return RecordInfo{}, err
	}
	f := a.files[info.Member]
	if f == nil {
		return RecordInfo{}, fmt.Errorf("%w: it has no member %q", ErrRecord, info.Member)
	}
	if f.Method != zip.Store || f.UncompressedSize64 != f.CompressedSize64 || f.UncompressedSize64 != uint64(t.StorageBytes) {
		return RecordInfo{}, fmt.Errorf("%w: its member %q has %d bytes stored as %d, and its storage %d", ErrRecord, info.Member, f.UncompressedSize64, f.CompressedSize64, t.StorageBytes)
	}
	if info.At, err = a.zip.Body(f); err != nil {
		return RecordInfo{}, fmt.Errorf("%w: its member %q: %w", ErrRecord, info.Member, err)
	}
	if info.At < 0 || info.At > size || t.StorageBytes > size-info.At {
		return RecordInfo{}, fmt.Errorf("%w: its member %q with %d bytes begins at %d of %d", ErrRecord, info.Member, t.StorageBytes, info.At, size)
	}
	info.CRC32 = f.CRC32
	return info, nil
}

// ReadObject reads a record of something that is no tensor, as data: numbers, strings, and containers of them are values as
// package pickle has them; everything else is an object that is not entered (pickle.Object). Tensors inside it are
// descriptions without their bytes. It executes nothing.
func ReadObject(ra io.ReaderAt, size int64) (any, error) {
	a, err := openArchive(ra, size)
	if err != nil {
		return nil, err
	}
	doc, err := a.pickle(maxObject, pickle.Policy{KnownIn: pickle.TensorGlobal, Foreign: true, PersistentIDs: true})
	if err != nil {
		return nil, err
	}
	return doc.Value, nil
}

// members is a torch.save file: a zip archive whose members are all in one folder.
type members struct {
	zip   *archive.Reader
	files map[string]*zip.File // without the folder
}

func openArchive(ra io.ReaderAt, size int64) (*members, error) {
	r, err := archive.Open(io.NewSectionReader(ra, 0, size), size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if len(r.Files) > maxMembers {
		return nil, fmt.Errorf("%w: it has %d members", ErrRecord, len(r.Files))
	}
	a := &members{zip: r, files: map[string]*zip.File{}}
	for _, f := range r.Files {
		_, name, ok := strings.Cut(f.Name, "/")
		if !ok {
			return nil, fmt.Errorf("%w: its member %q is in no folder", ErrRecord, f.Name)
		}
		if a.files[name] != nil {
			return nil, fmt.Errorf("%w: it has two members %q", ErrRecord, name)
		}
		a.files[name] = f
	}
	return a, nil
}

// read returns a member of at most limit bytes, and has checked its checksum.
func (a *members) read(name string, limit int64) ([]byte, error) {
	f := a.files[name]
	if f == nil {
		return nil, fmt.Errorf("%w: it has no member %q", ErrRecord, name)
	}
	if f.UncompressedSize64 > uint64(limit) {
		return nil, fmt.Errorf("%w: its member %q has %d bytes", ErrRecord, name, f.UncompressedSize64)
	}
	if _, err := a.zip.Body(f); err != nil {
		return nil, fmt.Errorf("%w: its member %q: %w", ErrRecord, name, err)
	}
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: its member %q: %w", ErrRecord, name, err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%w: its member %q: %w", ErrRecord, name, err)
	}
	return b, nil
}

func (a *members) pickle(limit int64, p pickle.Policy) (*pickle.Document, error) {
	b, err := a.read("data.pkl", limit)
	if err != nil {
		return nil, err
	}
	doc, err := pickle.Decode(b, p, pickle.Limits{})
	if err != nil {
		return nil, fmt.Errorf("record: data.pkl: %w", err)
	}
	return doc, nil
}

// bigEndian reads the byte order. Archives of older versions do not name it: they are little-endian.
func (a *members) bigEndian() (bool, error) {
	if a.files["byteorder"] == nil {
		return false, nil
	}
	b, err := a.read("byteorder", maxSmall)
	if err != nil {
		return false, err
	}
	big, known := archive.BigEndian(b)
	if !known {
		return false, fmt.Errorf("%w: its byte order is %.20q", ErrRecord, b)
	}
	return big, nil
}
