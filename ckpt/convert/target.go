// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/minio/crc64nvme"

	"phalanx/ckpt"
)

// Target is where a checkpoint is written. Until Commit nothing of it has its final name, or the file by which it is found
// is not there; Abort removes what was written. Exactly one of the two is called.
type Target interface {
	// Place is a path or URL, for messages.
	Place() string
	// Create begins an object of a size in bytes.
	Create(ctx context.Context, name string, size int64) (File, error)
	Commit(ctx context.Context) error
	Abort()
}

// File takes the bytes of one object, in any order, each once.
type File interface {
	io.WriterAt
	// Close makes the object durable.
	Close(ctx context.Context) error
	// Discard ends the writing of an object that will not be whole. Exactly one of the two is called.
	Discard() error
}

// ErrOccupied: something is at the target already.
var ErrOccupied = errors.New("something is there already")

// NewFolder writes into a folder of the local file system that does not exist yet, or is empty.
func NewFolder(path string) (Target, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 { // a folder cannot take its name
		return nil, fmt.Errorf("%s is a symbolic link: %w; name what it leads to", path, ErrOccupied)
	}
	switch entries, err := os.ReadDir(path); {
	case err == nil && len(entries) > 0:
		return nil, fmt.Errorf("folder %s: %w", path, ErrOccupied)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil { //nolint:gosec // the user's umask decides
		return nil, err
	}
	partial, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".partial-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(partial, 0o777&^umask()); err != nil {
		return nil, err
	}
	return &folder{path: path, partial: partial}, nil
}

type folder struct{ path, partial string }

func (f *folder) Place() string { return f.path }

func (f *folder) Create(_ context.Context, name string, size int64) (File, error) {
	path := filepath.Join(f.partial, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil { //nolint:gosec // the user's umask decides
		return nil, err
	}
	return createFile(path, size)
}

func (f *folder) Commit(context.Context) error {
	if err := syncFolder(f.partial); err != nil {
		return err
	}
	if err := os.Rename(f.partial, f.path); err != nil {
		if errors.Is(err, os.ErrExist) || errors.Is(err, syscall.ENOTDIR) { // made since, as by another conversion
			return fmt.Errorf("folder %s: %w", f.path, ErrOccupied)
		}
		return err
	}
	return syncFolder(filepath.Dir(f.path))
}

func (f *folder) Abort() { _ = os.RemoveAll(f.partial) }

// Partial is where the files are until Commit.
func (f *folder) Partial() string { return f.partial }

// NewFile writes one file that does not exist yet.
func NewFile(path string) (Target, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s: %w", path, ErrOccupied)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil { //nolint:gosec // the user's umask decides
		return nil, err
	}
	return &single{path: path, partial: fmt.Sprintf("%s.partial-%d", path, os.Getpid())}, nil
}

type single struct{ path, partial string }

func (s *single) Place() string { return s.path }

func (s *single) Create(_ context.Context, _ string, size int64) (File, error) {
	return createFile(s.partial, size)
}

func (s *single) Commit(context.Context) error {
	if err := os.Link(s.partial, s.path); err != nil { // unlike a rename, it replaces nothing
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s: %w", s.path, ErrOccupied)
		}
		if err := os.Rename(s.partial, s.path); err != nil { // a file system without links
			return err
		}
		return syncFolder(filepath.Dir(s.path))
	}
	if err := os.Remove(s.partial); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(s.path))
}

func (s *single) Abort() { _ = os.Remove(s.partial) }

// localFile is a file that is made durable when it is closed.
type localFile struct{ *os.File }

func createFile(path string, size int64) (File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666) //nolint:gosec // the user's umask decides
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return localFile{f}, nil
}

func (f localFile) Close(context.Context) error {
	err := f.Sync()
	return errors.Join(err, f.File.Close())
}

func (f localFile) Discard() error { return f.File.Close() }

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// NewPrefix writes below a prefix of a store where nothing is yet. An object is spooled to a file of the local file system,
// below the directory for temporary files, and sent whole.
func NewPrefix(ctx context.Context, s ckpt.Store, prefix, place string) (Target, error) {
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	page, err := s.List(ctx, prefix, "", 1)
	if err != nil {
		return nil, err
	}
	if len(page) > 0 {
		return nil, fmt.Errorf("%s holds %s: %w", place, page[0].Key, ErrOccupied)
	}
	return &prefixed{store: s, prefix: prefix, place: place}, nil
}

type prefixed struct {
	store         ckpt.Store
	prefix, place string
	sent          []string
}

func (p *prefixed) Place() string                { return p.place }
func (p *prefixed) Commit(context.Context) error { return nil }

// abortTimeout bounds the deleting of what an aborted conversion sent.
const abortTimeout = 30 * time.Second

func (p *prefixed) Abort() {
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	for i := len(p.sent) - 1; i >= 0; i-- { // the index first
		_ = p.store.Delete(ctx, p.sent[i])
	}
}

func (p *prefixed) Create(_ context.Context, name string, size int64) (File, error) {
	key := p.prefix + name
	if err := ckpt.ValidKey(key); err != nil {
		return nil, err
	}
	if most := p.store.Capabilities().MaxObjectBytes; most > 0 && size > most {
		return nil, fmt.Errorf("%s has %d bytes, the store takes at most %d at once; choose a smaller --shard-size", key, size, most)
	}
	f, err := os.CreateTemp("", "phalanx-spool-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil { // it lives as long as it is open
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &spool{File: f, to: p, key: key, size: size}, nil
}

// spool is an object before it is sent.
type spool struct {
	*os.File
	to   *prefixed
	key  string
	size int64
}

func (s *spool) Close(ctx context.Context) error {
	defer s.File.Close() // nothing is kept in it
	h := crc64nvme.New()
	if _, err := io.Copy(h, io.NewSectionReader(s.File, 0, s.size)); err != nil {
		return err
	}
	err := s.to.store.PutIfAbsent(ctx, s.key, ckpt.Body{ReaderAt: s.File, Size: s.size, CRC64NVME: ckpt.CRC(h.Sum64())})
	if errors.Is(err, ckpt.ErrExists) { // another's: what Abort deletes is this one's alone
		return fmt.Errorf("%s: %w", s.key, ErrOccupied)
	}
	s.to.sent = append(s.to.sent, s.key)
	return err
}

func (s *spool) Discard() error { return s.File.Close() }
