// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/ckpt"
)

// Store keeps objects as files below one directory.
type Store struct {
	root     string
	readOnly bool
	madeTemp bool // by New
}

var (
	_ ckpt.Store      = (*Store)(nil)
	_ ckpt.IntoGetter = (*Store)(nil)
)

const (
	tempDir  = ".tmp"
	lockFile = ".lock"
	// orphanAge is how old an unlocked temporary file must be before it is swept.
	orphanAge = time.Hour
)

// New opens a directory for reading and writing. It creates what is missing of it, proves that it can be written by writing,
// and sweeps what killed writers left.
func New(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("fs: open %s: %w", root, err)
	}
	s := &Store{root: root}
	err = os.MkdirAll(root, 0o777)
	if err == nil {
		err = os.Mkdir(filepath.Join(root, tempDir), 0o777)
		s.madeTemp = err == nil
	}
	if err != nil && !errors.Is(err, iofs.ErrExist) {
		if errors.Is(err, unix.ENOTDIR) {
			return nil, fmt.Errorf("fs: open %s: %w: part of the path is a file", root, unix.ENOTDIR)
		}
		return nil, s.explain("open", root, err)
	}
	if err := s.probe(); err != nil {
		return nil, err
	}
	if err := s.sweep(time.Now()); err != nil {
		return nil, err
	}
	return s, nil
}

// NewReadOnly opens an existing directory for reading.
func NewReadOnly(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("fs: open %s: %w", root, err)
	}
	s := &Store{root: root, readOnly: true}
	st, err := os.Stat(root)
	if errors.Is(err, iofs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("fs: open %s: no such directory: %w", root, ckpt.ErrNotFound)
	}
	if err != nil {
		return nil, s.explain("open", root, err)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("fs: open %s: not a directory; name the directory that holds the checkpoints", root)
	}
	return s, nil
}

// Root is the absolute path of the directory.
func (s *Store) Root() string { return s.root }

// Capabilities implements ckpt.Store. A file carries no checksum of its own: readers verify with the manifest's.
func (s *Store) Capabilities() ckpt.Capabilities {
	return ckpt.Capabilities{Name: "file://" + s.root, ConditionalCreate: true, ConditionalReplace: true, Durable: true}
}

// probe writes, links and removes one file: permissions, a full disk and file systems without hard links show here and not
// in the first save.
func (s *Store) probe() error {
	f, err := s.createTemp()
	if err != nil {
		return s.explain("probe", s.root, err)
	}
	defer s.discard(f)
	if _, err := f.WriteString("phalanx probe\n"); err != nil {
		return s.explain("probe", s.root, err)
	}
	if err := f.Sync(); err != nil {
		return s.explain("probe", s.root, err)
	}
	linked := f.Name() + "-linked"
	if err := os.Link(f.Name(), linked); err != nil {
		return fmt.Errorf("fs: probe %s: the file system must allow hard links for exclusive creation; use another directory: %w", s.root, err)
	}
	if err := os.Remove(linked); err != nil {
		return s.explain("probe", s.root, err)
	}
	return nil
}

// sweep removes temporary files of writers that are gone.
func (s *Store) sweep(now time.Time) error {
	dir := filepath.Join(s.root, tempDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return s.explain("sweep", dir, err)
	}
	for _, e := range entries {
		st, err := e.Info()
		if err != nil || now.Sub(st.ModTime()) < orphanAge {
			continue // gone meanwhile, or young
		}
		path := filepath.Join(dir, e.Name())
		if held(path) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return s.explain("sweep", path, err)
		}
	}
	return nil
}

// held reports whether a writer lives that has the temporary file open.
func held(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return !errors.Is(err, iofs.ErrNotExist)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// createTemp makes a file that is locked until it is closed.
func (s *Store) createTemp() (*os.File, error) {
	dir := filepath.Join(s.root, tempDir)
	f, err := os.CreateTemp(dir, "put-*")
	for tries := 0; errors.Is(err, iofs.ErrNotExist) && tries < 16; tries++ { // another process has tidied up
		if err = os.MkdirAll(dir, 0o777); err == nil { //nolint:gosec // the user's umask decides
			f, err = os.CreateTemp(dir, "put-*")
		}
	}
	if err != nil {
		return nil, err
	}
	// A file system without locks still has the age rule.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSYS) {
		s.discard(f)
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := f.Chmod(0o644); err != nil {
		s.discard(f)
		return nil, err
	}
	return f, nil
}

// discard closes and removes a temporary file; what it cannot remove the next sweep will.
func (s *Store) discard(f *os.File) {
	_ = os.Remove(f.Name())
	_ = f.Close()
}

// path is the file of a key.
func (s *Store) path(key string) (string, error) {
	if err := ckpt.ValidKey(key); err != nil {
		return "", err
	}
	return filepath.Join(s.root, filepath.FromSlash(key)), nil
}

// begin returns the path of a key for a request, or why the request cannot begin.
func (s *Store) begin(ctx context.Context, verb, key string, writes bool) (string, error) {
	path, err := s.path(key)
	switch {
	case err != nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case writes && s.readOnly:
		err = ckpt.ErrReadOnly
	}
	if err != nil {
		return "", fmt.Errorf("fs: %s %s: %w", verb, key, err)
	}
	return path, nil
}

// Get implements ckpt.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	f, size, err := s.openAt(ctx, key, off)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if n < 0 || n > size-off {
		n = size - off
	}
	p := make([]byte, n)
	for at := 0; at < len(p); {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("fs: get %s: %w", key, err)
		}
		piece := p[at:min(at+readBytes, len(p))]
		m, err := f.ReadAt(piece, off+int64(at))
		if m < len(piece) {
			return nil, s.explain("get", f.Name(), fmt.Errorf("short read at %d: %w", off+int64(at+m), err))
		}
		at += m
	}
	return p, nil
}

// readBytes is how much is read at a time, so that a cancelled ctx ends a long read.
const readBytes = 8 << 20

// GetInto implements ckpt.IntoGetter.
func (s *Store) GetInto(ctx context.Context, key string, off int64, p []byte) (int, ckpt.CRC, error) {
	f, _, err := s.openAt(ctx, key, off)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	at := off
	n, sum, err := ckpt.FillFrom(ctx, p, func(p []byte) (int, error) {
		m, err := f.ReadAt(p, at)
		at += int64(m)
		return m, err
	})
	if err != nil {
		return n, 0, s.explain("get", f.Name(), err)
	}
	return n, sum, nil
}

// openAt opens an object that has an offset.
func (s *Store) openAt(ctx context.Context, key string, off int64) (f *os.File, size int64, err error) {
	path, err := s.begin(ctx, "get", key, false)
	if err != nil {
		return nil, 0, err
	}
	if f, err = s.openFresh(path); err != nil {
		return nil, 0, s.explain("get", path, err)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		err = s.explain("get", path, err)
	case !st.Mode().IsRegular():
		err = fmt.Errorf("fs: get %s: %w", key, ckpt.ErrNotFound)
	case off < 0 || off > st.Size():
		err = fmt.Errorf("fs: get %s from %d of %d bytes: %w", key, off, st.Size(), ckpt.ErrNotFound)
	default:
		return f, st.Size(), nil
	}
	_ = f.Close() // nothing was written
	return nil, 0, err
}

// openFresh opens a file that another host may have written a moment ago. It never waits for a pipe that lies there instead.
func (s *Store) openFresh(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, iofs.ErrNotExist) || errors.Is(err, unix.ESTALE) {
		s.refresh(path)
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	return f, err
}

// refresh makes a network file system look again whether a name exists: clients remember for seconds that one did not, and
// opening and reading the directory asks the server (close-to-open consistency).
func (s *Store) refresh(path string) {
	for dir := filepath.Dir(path); len(dir) >= len(s.root); dir = filepath.Dir(dir) {
		if d, err := os.Open(dir); err == nil {
			_, _ = d.Readdirnames(1) // what it holds does not matter
			_ = d.Close()
			return
		}
	}
}

// Stat implements ckpt.Store.
func (s *Store) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	path, err := s.begin(ctx, "stat", key, false)
	if err != nil {
		return ckpt.Info{}, err
	}
	st, err := os.Stat(path)
	if errors.Is(err, iofs.ErrNotExist) {
		s.refresh(path)
		st, err = os.Stat(path)
	}
	if err != nil {
		return ckpt.Info{}, s.explain("stat", path, err)
	}
	if !st.Mode().IsRegular() {
		return ckpt.Info{}, fmt.Errorf("fs: stat %s: %w", key, ckpt.ErrNotFound)
	}
	return info(key, st), nil
}

// info makes the ETag of inode, time and size: a replaced object is another inode, and a reused inode has another time.
func info(key string, st iofs.FileInfo) ckpt.Info {
	inode := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return ckpt.Info{
		Key:  key,
		Size: st.Size(),
		ETag: fmt.Sprintf("%x-%x-%x", inode, st.ModTime().UnixNano(), st.Size()),
	}
}

// Delete implements ckpt.Store. A directory that became empty is removed too, when that succeeds at the first try: a writer
// that finds its directory gone between making it and linking into it gets an error and may try again.
func (s *Store) Delete(ctx context.Context, key string) error {
	path, err := s.begin(ctx, "delete", key, true)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		if errors.Is(err, iofs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return s.explain("delete", path, err)
	}
	dir := filepath.Dir(path)
	if dir != s.root && os.Remove(dir) == nil { // fails, as it should, when the directory has other entries
		dir = filepath.Dir(dir)
	}
	return s.syncDir(dir)
}

// explain turns an error of the operating system into one that says what to do, and maps what callers branch on.
func (s *Store) explain(verb, path string, err error) error {
	shown := strings.TrimPrefix(path, s.root+string(filepath.Separator))
	switch {
	case errors.Is(err, iofs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("fs: %s %s: no such file below %s: %w", verb, shown, s.root, ckpt.ErrNotFound)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("fs: %s %s: %s is mounted read-only (%v): %w", verb, shown, s.root, err, ckpt.ErrReadOnly)
	case errors.Is(err, iofs.ErrPermission):
		return fmt.Errorf("fs: %s %s: uid %d may not do this in %s, check owner and mode (%v): %w", verb, shown, os.Geteuid(), s.root, err, ckpt.ErrReadOnly)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("fs: %s %s: no space left for %s; make room, or keep fewer checkpoints (--keep): %w: %w", verb, shown, s.root, err, ckpt.ErrNoSpace)
	case errors.Is(err, unix.ESTALE), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EHOSTDOWN), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.EAGAIN):
		// A file server that is away, or a handle of what another host replaced: opening it again helps.
		return fmt.Errorf("fs: %s %s: the file server of %s does not answer now: %w: %w", verb, shown, s.root, err, ckpt.ErrUnavailable)
	}
	return fmt.Errorf("fs: %s %s: %w", verb, shown, err)
}
