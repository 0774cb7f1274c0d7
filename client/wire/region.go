// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoSpace is returned when the shared memory of a file cannot be reserved. The error is a *SpaceError.
var ErrNoSpace = errors.New("no space in shared memory")

// SpaceError says how much was asked for and how much there is.
type SpaceError struct {
	Path      string
	Needed    int64 // bytes
	Available int64 // bytes, -1 when unknown
}

func (e *SpaceError) Error() string {
	dir := filepath.Dir(e.Path)
	return fmt.Sprintf("reserve %s: %d bytes needed, %d available in %s; free files there or enlarge it (mount -o remount,size=… %s; in a container: --shm-size or a larger emptyDir): %v",
		e.Path, e.Needed, e.Available, dir, dir, ErrNoSpace)
}

// Unwrap makes errors.Is(err, ErrNoSpace) true.
func (e *SpaceError) Unwrap() error { return ErrNoSpace }

// Region is a mapped file: a page, a segment or a slab. Children made by fork do not inherit the mapping.
type Region struct {
	bytes []byte
	file  *os.File // kept for the lock
	heap  *heapMap // of a simulation, instead of file
}

// CreateRegion makes a file of the given size, reserves all of it and maps it read-write, zeroed. The file must not exist
// and gets its name only when all of it is there. Sizes must be positive.
func CreateRegion(path string, size int64) (*Region, error) {
	if err := mustNotExist(path); err != nil {
		return nil, err
	}
	r, err := createRegion(path+".new", size)
	if err != nil {
		return nil, err
	}
	if err := r.rename(path); err != nil {
		return nil, errors.Join(err, r.Unmap())
	}
	return r, nil
}

// OpenRegion maps an existing file, whole. Writing to one that is not writable ends the process.
func OpenRegion(path string, writable bool) (*Region, error) {
	flag := os.O_RDONLY
	if writable {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	r, err := mapFile(f, writable)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// createRegion makes the file under a name of its own, replacing what an ended process may have left under it.
func createRegion(path string, size int64) (*Region, error) {
	if size <= 0 {
		return nil, fmt.Errorf("create %s: size %d", path, size)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("create: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	err = reserve(f, size)
	if err == nil {
		var r *Region
		if r, err = mapFile(f, true); err == nil {
			return r, nil
		}
	}
	return nil, errors.Join(err, f.Close(), os.Remove(path))
}

// reserve allocates every byte now: a sparse file in shared memory would end the process with SIGBUS when memory runs out.
func reserve(f *os.File, size int64) error {
	var err error
	for {
		if err = unix.Fallocate(int(f.Fd()), 0, 0, size); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EFBIG) {
		available := int64(-1)
		var st unix.Statfs_t
		if unix.Fstatfs(int(f.Fd()), &st) == nil {
			available = int64(st.Bavail) * st.Bsize
		}
		return &SpaceError{f.Name(), size, available}
	}
	if err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", size, f.Name(), err)
	}
	return nil
}

func mapFile(f *os.File, writable bool) (*Region, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	if !st.Mode().IsRegular() || st.Size() < 8 || st.Size() != int64(int(st.Size())) {
		return nil, fmt.Errorf("map %s: %s of %d bytes: %w", f.Name(), st.Mode().Type(), st.Size(), ErrFormat)
	}
	protection := unix.PROT_READ
	if writable {
		protection |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		return nil, fmt.Errorf("map %s: keep from children: %w", f.Name(), errors.Join(err, unix.Munmap(b)))
	}
	return &Region{bytes: b, file: f}, nil
}

// Bytes is the mapping. It must not be used after Unmap.
func (r *Region) Bytes() []byte { return r.bytes }

// Words views the mapping as 64-bit words; up to 7 bytes at the end are left out.
func (r *Region) Words() []uint64 { return wordsOf(r.bytes) }

// wordsOf views bytes that start at an 8-byte boundary as words.
func wordsOf(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// populateStep is how much is mapped at a time, about 1 ms: meanwhile nobody in the process maps or unmaps anything.
const populateStep = 4 << 20

// Populate maps the pages of a writable region, which changes no byte, until all are mapped or ended is closed. The first write
// to each page is as fast as every later one then: 4 KiB at a time, the kernel needs several times as long to map as one copy
// takes. Kernels before 5.14 refuse.
func (r *Region) Populate(ended <-chan struct{}) error {
	if r.heap != nil {
		return nil
	}
	for b := r.bytes; len(b) > 0; b = b[min(populateStep, len(b)):] {
		select {
		case <-ended:
			return nil
		default:
		}
		if err := unix.Madvise(b[:min(populateStep, len(b))], unix.MADV_POPULATE_WRITE); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("map the pages of %s: %w", r.Path(), err)
		}
	}
	return nil
}

// Path is the file's name when it was mapped.
func (r *Region) Path() string {
	if r.heap != nil {
		return r.heap.path
	}
	return r.file.Name()
}

// Remove unlinks the file. Mappings of it stay good.
func (r *Region) Remove() error {
	if r.heap != nil {
		return r.heap.memory.Remove(r.heap.path)
	}
	if err := os.Remove(r.Path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// Unmap ends the mapping and the lock. Calling it again does nothing.
func (r *Region) Unmap() error {
	if r.bytes == nil {
		return nil
	}
	if r.heap != nil {
		r.heap.unmap()
		r.bytes = nil
		return nil
	}
	err := errors.Join(unix.Munmap(r.bytes), r.file.Close())
	r.bytes = nil
	if err != nil {
		return fmt.Errorf("unmap %s: %w", r.Path(), err)
	}
	return nil
}

func (r *Region) lock() error {
	err := unix.Flock(int(r.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", r.Path(), ErrLocked)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", r.Path(), err)
	}
	return nil
}

// rename gives the file its final name. The mapping and the lock belong to the file and stay. A second descriptor with the
// new name replaces the first, so that messages and Remove use the new one; the lock goes with it because it is duplicated.
func (r *Region) rename(path string) error {
	if err := os.Rename(r.Path(), path); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	fd, err := unix.FcntlInt(r.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("name %s: %w", path, err)
	}
	old := r.file
	r.file = os.NewFile(uintptr(fd), path)
	return old.Close()
}

func mustNotExist(path string) error {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", path, os.ErrExist)
	case errors.Is(err, os.ErrNotExist):
		return nil
	}
	return err
}
