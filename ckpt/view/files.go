// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"phalanx/ckpt"
)

// Files reads the objects below one place by their names, which have slashes between elements. It is safe for concurrent use.
type Files interface {
	// Place is a path or URL, for messages.
	Place() string
	// Size is the size of an object; ckpt.ErrNotFound when there is none of that name.
	Size(ctx context.Context, name string) (int64, error)
	// Identity is a text that changes when the object is written again or replaced; ckpt.ErrNotFound when there is none of that name.
	Identity(ctx context.Context, name string) (string, error)
	// Read fills p with the bytes from offset off. An object that ends before p is full is damaged: ckpt.ErrCorrupt.
	Read(ctx context.Context, name string, off int64, p []byte) error
	// List gives at most limit names and sizes in ascending order, those of folders below too.
	List(ctx context.Context, limit int) ([]ckpt.Info, error)
	// Gap is how many bytes that nobody needs cost as much as another request.
	Gap() int64
}

// directory is a folder of the local file system, with any names in it.
type directory struct{ path string }

// NewDirectory reads a folder of the local file system.
func NewDirectory(path string) Files { return directory{path} }

func (d directory) Place() string { return d.path }
func (d directory) Gap() int64    { return 16 << 10 }

// file is where an object is; names that leave the folder are refused.
func (d directory) file(name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fmt.Errorf("object %.80q lies outside of %s: %w", name, d.path, ckpt.ErrDamaged)
	}
	return filepath.Join(d.path, filepath.FromSlash(name)), nil
}

func (d directory) Size(_ context.Context, name string) (int64, error) {
	info, err := d.stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Identity is made of the inode, both its times and the size: a tool that sets the time of modification back cannot set that of
// the change.
func (d directory) Identity(_ context.Context, name string) (string, error) {
	info, err := d.stat(name)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("size=%d mtime=%d", info.Size(), info.ModTime().UnixNano())
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		id += fmt.Sprintf(" ctime=%d.%09d inode=%d", sys.Ctim.Sec, sys.Ctim.Nsec, sys.Ino)
	}
	return id, nil
}

// stat looks at a regular file: what else lies there is none.
func (d directory) stat(name string) (fs.FileInfo, error) {
	path, err := d.file(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", path, ckpt.ErrNotFound)
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder: %w", path, ckpt.ErrNotFound)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file: %w", path, ckpt.ErrNotFound)
	}
	return info, nil
}

func (d directory) Read(ctx context.Context, name string, off int64, p []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := d.file(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // never waits for a pipe
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, ckpt.ErrNotFound)
	}
	if err != nil {
		return err
	}
	defer f.Close() // only read
	if info, err := f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: %w", path, ckpt.ErrNotFound)
	}
	n, err := f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		if n == len(p) {
			return nil
		}
		return fmt.Errorf("%s ends at %d, bytes [%d, %d) were to be read: %w", path, off+int64(n), off, off+int64(len(p)), ckpt.ErrDamaged)
	}
	return err
}

func (d directory) List(ctx context.Context, limit int) ([]ckpt.Info, error) {
	var all []ckpt.Info
	full := errors.New("enough")
	err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir():
			return nil
		case len(all) == limit:
			return full
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(d.path, path)
		if err != nil {
			return err
		}
		all = append(all, ckpt.Info{Key: filepath.ToSlash(name), Size: info.Size()})
		return nil
	})
	if err != nil && !errors.Is(err, full) {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	slices.SortFunc(all, func(a, b ckpt.Info) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}

// prefixed are the objects of a store below a prefix.
type prefixed struct {
	store  ckpt.Store
	prefix string // ends with a slash, or ""
	place  string // as it was given, "" makes one of the store's name
}

// NewPrefix reads the objects of a store whose keys begin with prefix and a slash; "" is the whole store.
func NewPrefix(s ckpt.Store, prefix string) Files {
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return prefixed{store: s, prefix: prefix}
}

func (p prefixed) Place() string {
	if p.place != "" {
		return p.place
	}
	return Join(p.store.Capabilities().Name, strings.TrimSuffix(p.prefix, "/"))
}

func (p prefixed) Gap() int64 { return 256 << 10 }

func (p prefixed) Size(ctx context.Context, name string) (int64, error) {
	info, err := p.store.Stat(ctx, p.prefix+name)
	return info.Size, err
}

func (p prefixed) Identity(ctx context.Context, name string) (string, error) {
	info, err := p.store.Stat(ctx, p.prefix+name)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("size=%d etag=%s", info.Size, info.ETag)
	if info.HasCRC {
		id += " crc64nvme=" + info.CRC64NVME.String()
	}
	return id, nil
}

func (p prefixed) Read(ctx context.Context, name string, off int64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	got, err := p.store.Get(ctx, p.prefix+name, off, int64(len(b)))
	if err != nil {
		return err
	}
	if n := copy(b, got); n < len(b) {
		return fmt.Errorf("%s ends at %d, bytes [%d, %d) were to be read: %w", p.prefix+name, off+int64(n), off, off+int64(len(b)), ckpt.ErrDamaged)
	}
	return nil
}

func (p prefixed) List(ctx context.Context, limit int) ([]ckpt.Info, error) {
	var all []ckpt.Info
	after := ""
	for len(all) < limit {
		page, err := p.store.List(ctx, p.prefix, after, 0)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Key
		for _, info := range page {
			info.Key = strings.TrimPrefix(info.Key, p.prefix)
			all = append(all, info)
		}
	}
	return all[:min(len(all), limit)], nil
}

// readerAt lets code that knows no contexts read an object, or a part of one.
type readerAt struct {
	ctx   context.Context //nolint:containedctx // an adapter that lives for one call
	files Files
	name  string
	at    int64
	size  int64
}

// ReaderAt reads the bytes [at, at+size) of an object.
func ReaderAt(ctx context.Context, f Files, name string, at, size int64) io.ReaderAt {
	return readerAt{ctx, f, name, at, size}
}

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= r.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), r.size-off)
	if err := r.files.Read(r.ctx, r.name, r.at+off, p[:n]); err != nil {
		return 0, err
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// readAll reads a whole object of at most limit bytes.
func readAll(ctx context.Context, f Files, name string, limit int64) ([]byte, error) {
	size, err := f.Size(ctx, name)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read: %w", name, size, limit, ckpt.ErrFormat)
	}
	p := make([]byte, size)
	if err := f.Read(ctx, name, 0, p); err != nil {
		return nil, err
	}
	return p, nil
}
