// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"

	"phalanx/ckpt/pickle"
)

// Tensor is a tensor of a file.
type Tensor struct {
	// Name is the flattened name, Path the keys (strings) and places in lists (ints) that lead to it.
	Name string
	Path []any
	// Tensor describes it as a view of a storage; tensors of the same Storage share bytes. DType is "" when phalanx has none
	// for DTypeName: such a tensor is listed and cannot be read.
	pickle.Tensor
	// CRC32 is that of the whole storage, as the archive has it.
	CRC32 uint32
	// Swap: the storage is big-endian.
	Swap bool
}

// Readable returns nil, or ErrUnsupported with the reason why the elements cannot be read.
func (t *Tensor) Readable() error {
	if t.DType != "" {
		return nil
	}
	return fmt.Errorf("tensor %.200q: elements of the type torch.%s are %w; convert it with PyTorch first", t.Name, t.DTypeName, ErrUnsupported)
}

// Object is a value that is no tensor.
type Object struct {
	Name string
	Path []any
	// Value is as in package pickle. What it may not be entered into (pickle.Object of an unknown class) Text names.
	Value any
}

// File is a file of torch.save that is open for reading. It is safe for concurrent use, if its reader is.
type File struct {
	Tensors []Tensor
	// Objects are in the order of the file, as Tensors are.
	Objects []Object

	archive *members
	mu      sync.Mutex       // guards what follows; never held over I/O
	located map[string]int64 // where storages are, by key
	spans   []span           // of those with bytes, by at
}

// Strides and shared storages let a small file stand for tensors that fill any disk when each is written out. What a program
// saves for use is far from these bounds.
const (
	maxViews = 64
	minRoom  = 1 << 30
)

// span is the place of a storage in the file.
type span struct {
	key        string
	at, length int64
}

// Open reads the directory and the pickle of a file of size bytes. Errors wrap ErrDamaged, ErrUnsupported, those of package
// pickle (for a pickle that is none, exceeds its limits, or names what would run code in Python), or come from the reader.
func Open(ra io.ReaderAt, size int64) (*File, error) {
	a, err := openArchive(ra, size)
	if err != nil {
		return nil, err
	}
	swap, err := a.bigEndian()
	if err != nil {
		return nil, err
	}
	text, err := a.small("data.pkl", maxPickle)
	if err != nil {
		return nil, err
	}
	doc, err := pickle.Decode(text, pickle.Policy{Known: containers, KnownIn: pickle.TensorGlobal, Foreign: true, PersistentIDs: true}, pickle.Limits{})
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	f := &File{archive: a}
	if err := f.flatten(doc.Value, int64(len(text))); err != nil {
		return nil, err
	}
	room := max(minRoom, size*maxViews)
	for i := range f.Tensors {
		t := &f.Tensors[i]
		t.Swap = swap
		if room -= t.Bytes(); room < 0 {
			return nil, fmt.Errorf("%w: tensor %.200q: the tensors of this file have more than %d times its %d bytes, by repeating elements or sharing storages; clone() them before torch.save", ErrUnsupported, t.Name, maxViews, size)
		}
		m := a.files[member(t.Storage)]
		if m == nil {
			return nil, fmt.Errorf("%w: tensor %.200q: the archive has no member %.80q", ErrDamaged, t.Name, a.folder+"/"+member(t.Storage))
		}
		if m.CompressedSize64 != uint64(t.StorageBytes) {
			return nil, fmt.Errorf("%w: tensor %.200q: its storage has %d bytes, and the member %.80q has %d", ErrDamaged, t.Name, t.StorageBytes, m.Name, m.CompressedSize64)
		}
		t.CRC32 = m.CRC32
	}
	return f, nil
}

// member is the name of a storage in the archive, without its folder.
func member(storage string) string { return "data/" + storage }

// Locate returns the offset in the file of the first byte of a tensor's storage, which has StorageBytes bytes. It reads the
// member's local header once. Storages that overlap one that was located before are refused.
func (f *File) Locate(t *Tensor) (int64, error) {
	f.mu.Lock()
	at, known := f.located[t.Storage]
	f.mu.Unlock()
	if known {
		return at, nil
	}
	at, length, err := f.archive.where(member(t.Storage))
	if err != nil {
		return 0, fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.located[t.Storage]; known { // by another goroutine
		return at, nil
	}
	if length > 0 {
		i, _ := slices.BinarySearchFunc(f.spans, at, func(s span, at int64) int { return cmp.Compare(s.at, at) })
		for _, s := range f.spans[max(i-1, 0):min(i+1, len(f.spans))] { // those located do not overlap each other
			if at < s.at+s.length && s.at < at+length {
				return 0, fmt.Errorf("%w: the storages %.40q and %.40q share bytes of the file: [%d, %d) and [%d, %d)", ErrDamaged, s.key, t.Storage, s.at, s.at+s.length, at, at+length)
			}
		}
		f.spans = slices.Insert(f.spans, i, span{t.Storage, at, length})
	}
	if f.located == nil {
		f.located = map[string]int64{}
	}
	f.located[t.Storage] = at
	return at, nil
}
