// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"phalanx/ckpt"
)

// PutIfAbsent implements ckpt.Store: temporary file, sync, link, sync of the directory.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	return s.put(ctx, key, body, func(temp, path string) error {
		err := os.Link(temp, path)
		if err == nil || linked(temp) {
			// Over NFS the answer to a link that worked may be lost and the retry says "exists": the count of links knows.
			return nil
		}
		if errors.Is(err, iofs.ErrExist) {
			return fmt.Errorf("fs: put %s: %w", key, ckpt.ErrExists)
		}
		return s.explain("put", path, err)
	})
}

// Put implements ckpt.Store.
func (s *Store) Put(ctx context.Context, key string, body ckpt.Body) error {
	return s.put(ctx, key, body, func(temp, path string) error {
		unlock, err := s.lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		return s.replace(temp, path)
	})
}

// PutIfMatch implements ckpt.Store.
func (s *Store) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	return s.put(ctx, key, body, func(temp, path string) error {
		unlock, err := s.lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		st, err := os.Stat(path)
		if err != nil {
			return s.explain("put", path, err)
		}
		if present := info(key, st).ETag; present != etag {
			return fmt.Errorf("fs: put %s: it is %s, no longer %s: %w", key, present, etag, ckpt.ErrExists)
		}
		return s.replace(temp, path)
	})
}

func (s *Store) replace(temp, path string) error {
	if err := os.Rename(temp, path); err != nil {
		return s.explain("put", path, err)
	}
	return nil
}

// put writes the body to a temporary file and lets publish give it its name.
func (s *Store) put(ctx context.Context, key string, body ckpt.Body, publish func(temp, path string) error) error {
	path, err := s.begin(ctx, "put", key, true)
	if err != nil {
		return err
	}
	f, err := s.createTemp()
	if err != nil {
		return s.explain("put", path, err)
	}
	defer s.discard(f)
	if err := s.fill(ctx, f, key, body); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := s.publishIn(dir, func() error { return publish(f.Name(), path) }); err != nil {
		return err
	}
	if err := s.syncDir(dir); err != nil {
		// The name exists but may not survive a power cut.
		return fmt.Errorf("fs: put %s: %v: %w", key, err, ckpt.ErrConflict)
	}
	return nil
}

// publishIn makes the directory and publishes into it, again when a Delete took the empty directory away between the two.
func (s *Store) publishIn(dir string, publish func() error) error {
	var err error
	for range 16 {
		if err = s.makeDirs(dir); err == nil {
			err = publish()
		}
		if !errors.Is(err, ckpt.ErrNotFound) {
			return err
		}
	}
	return err
}

// fill writes and syncs the content, and checks it on the way.
func (s *Store) fill(ctx context.Context, f *os.File, key string, body ckpt.Body) error {
	crc := crc64nvme.New()
	err := body.Pieces(ctx, func(p []byte) error {
		_, _ = crc.Write(p) // a hash never fails
		_, err := f.Write(p)
		return err
	})
	if err == nil {
		if got := ckpt.CRC(crc.Sum64()); got != body.CRC64NVME {
			return fmt.Errorf("fs: put %s: body has crc64nvme %s, announced %s: %w", key, got, body.CRC64NVME, ckpt.ErrCorrupt)
		}
		err = f.Sync()
	}
	if err != nil {
		return s.explain("put", key, err)
	}
	return nil
}

// linked reports whether a temporary file has got a second name.
func linked(temp string) bool {
	st, err := os.Stat(temp)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink == 2
}

// makeDirs makes a directory below the root durable: each new one is synced in its parent.
func (s *Store) makeDirs(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if dir != s.root && parent != dir {
		if err := s.makeDirs(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, iofs.ErrExist) {
		return s.explain("make directory", dir, err)
	}
	return s.syncDir(parent)
}

func (s *Store) syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil // a Delete emptied and removed it: nothing is left to be made durable
	}
	if err != nil {
		return s.explain("sync", dir, err)
	}
	defer d.Close()
	// Some network file systems refuse to sync a directory; they make names durable by themselves.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return s.explain("sync", dir, err)
	}
	return nil
}

// lock waits for the lock of replacing writers.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(s.root, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, s.explain("lock", path, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, s.explain("lock", path, err)
		}
		// Holders keep it for one rename. A blocking flock could not be ended by ctx.
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("fs: lock %s: %w", path, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// RenameFolder gives a folder another name, durably. It fails with ckpt.ErrExists when something is at to, an empty folder apart.
func (s *Store) RenameFolder(from, to string) error {
	source, err := s.path(from)
	if err != nil {
		return fmt.Errorf("fs: rename %s: %w", from, err)
	}
	target, err := s.path(to)
	if err != nil {
		return fmt.Errorf("fs: rename %s to %s: %w", from, to, err)
	}
	if s.readOnly {
		return fmt.Errorf("fs: rename %s: %w", from, ckpt.ErrReadOnly)
	}
	err = os.Rename(source, target)
	if errors.Is(err, iofs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("fs: rename %s: %s: %w", from, to, ckpt.ErrExists)
	}
	if err != nil {
		return s.explain("rename", source, err)
	}
	for _, dir := range []string{filepath.Dir(source), filepath.Dir(target)} {
		if err := s.syncDir(dir); err != nil {
			return s.explain("rename", dir, err)
		}
	}
	return nil
}

// Tidy removes the folder of temporary files if New made it and no writer has one in it: for a directory that is no store of its
// own, only the place where something was put. The next write makes the folder again.
func (s *Store) Tidy() {
	if s.madeTemp {
		_ = os.Remove(filepath.Join(s.root, tempDir)) // fails when it is not empty
	}
}
