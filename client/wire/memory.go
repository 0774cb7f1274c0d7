// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is what the daemons and trainers of one host share: pages, bells and segments, by name. SharedMemory is the real
// one; HeapMemory is for simulations, in which all processes of a host are goroutines.
type Memory interface {
	// Bells maps the bells file of the host, making it first if it is not there.
	Bells(path string) (BellSet, error)
	// CreatePage, AdoptPage, OpenPage and WatchPage are the functions of these names.
	CreatePage(path string, daemonBell, trainerBell int) (*Page, error)
	AdoptPage(path string) (*Page, error)
	OpenPage(path string) (*Page, error)
	WatchPage(path string) (*Page, error)
	// CreateRegion and OpenRegion are the functions of these names.
	CreateRegion(path string, size int64) (*Region, error)
	OpenRegion(path string, writable bool) (*Region, error)
	// List names what begins with prefix, in byte order.
	List(prefix string) []string
	// Version is another one after a name was added or taken away where List(prefix) looks; 0 says nothing.
	Version(prefix string) uint64
	// Remove takes a name away. Whoever has it mapped keeps it.
	Remove(path string) error
}

// BellSet is the bells of one host.
type BellSet interface {
	Bell(line int) Bell
	Unmap() error
}

// SharedMemory is files in shared memory, futexes and locks of the kernel.
type SharedMemory struct{}

// Bells maps the bells file.
func (SharedMemory) Bells(path string) (BellSet, error) {
	b, err := CreateBells(path)
	if err != nil {
		return nil, err // not a nil *Bells in an interface
	}
	return b, nil
}

// CreatePage makes a page.
func (SharedMemory) CreatePage(path string, daemonBell, trainerBell int) (*Page, error) {
	return CreatePage(path, daemonBell, trainerBell)
}

// AdoptPage maps a page for its daemon.
func (SharedMemory) AdoptPage(path string) (*Page, error) { return AdoptPage(path) }

// OpenPage maps a page for its trainer.
func (SharedMemory) OpenPage(path string) (*Page, error) { return OpenPage(path) }

// WatchPage maps a page read-only.
func (SharedMemory) WatchPage(path string) (*Page, error) { return WatchPage(path) }

// CreateRegion makes and reserves a region.
func (SharedMemory) CreateRegion(path string, size int64) (*Region, error) {
	return CreateRegion(path, size)
}

// OpenRegion maps a region.
func (SharedMemory) OpenRegion(path string, writable bool) (*Region, error) {
	return OpenRegion(path, writable)
}

// List names files by a prefix that holds no pattern.
func (SharedMemory) List(prefix string) []string {
	entries, err := os.ReadDir(filepath.Dir(prefix))
	if err != nil {
		return nil // no such directory holds nothing
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(prefix)) {
			out = append(out, filepath.Join(filepath.Dir(prefix), e.Name()))
		}
	}
	return out
}

// settled is how old a change of a directory must be for its time to tell it from the next one: the kernel's clock of files is
// coarse.
const settled = 100 * time.Millisecond

// Version is the time at which the directory changed, once that is settled.
func (SharedMemory) Version(prefix string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(prefix), &st); err != nil {
		return 0
	}
	at := time.Unix(st.Mtim.Unix())
	if age := time.Since(at); age < settled {
		return 0
	}
	return uint64(at.UnixNano())
}

// Remove unlinks a file.
func (SharedMemory) Remove(path string) error { return os.Remove(path) }

// HeapMemory is the memory of a host in a simulation.
type HeapMemory struct {
	mu    sync.Mutex
	files map[string]*heapFile
	bells map[string]*heapBells
}

// heapFile outlives those who map it, like a file.
type heapFile struct {
	words  []uint64
	size   int
	locked bool
}

// NewHeapMemory returns a host without anything in its memory, as after a reboot.
func NewHeapMemory() *HeapMemory {
	return &HeapMemory{files: map[string]*heapFile{}, bells: map[string]*heapBells{}}
}

type heapBells struct {
	mu    sync.Mutex
	lines map[int]Bell
}

// Bell returns the bell of a line.
func (b *heapBells) Bell(line int) Bell {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lines[line] == nil {
		b.lines[line] = NewLocalBell()
	}
	return b.lines[line]
}

// Unmap does nothing: the bells belong to the host.
func (b *heapBells) Unmap() error { return nil }

// Bells returns the host's bells.
func (m *HeapMemory) Bells(path string) (BellSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bells[path] == nil {
		m.bells[path] = &heapBells{lines: map[int]Bell{}}
	}
	return m.bells[path], nil
}

func (m *HeapMemory) create(path string, size int64) (*Region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[path] != nil {
		return nil, fmt.Errorf("create %s: %w", path, os.ErrExist)
	}
	if size <= 0 {
		return nil, fmt.Errorf("create %s: size %d", path, size)
	}
	f := &heapFile{words: make([]uint64, (size+7)/8), size: int(size)}
	m.files[path] = f
	return &Region{bytes: bytesOf(f.words)[:size], heap: &heapMap{m, f, path, false}}, nil
}

func (m *HeapMemory) open(path string) (*Region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[path]
	if f == nil {
		return nil, fmt.Errorf("map %s: %w", path, os.ErrNotExist)
	}
	return &Region{bytes: bytesOf(f.words)[:f.size], heap: &heapMap{m, f, path, false}}, nil
}

// CreateRegion makes a region of zeros.
func (m *HeapMemory) CreateRegion(path string, size int64) (*Region, error) {
	return m.create(path, size)
}

// OpenRegion finds a region.
func (m *HeapMemory) OpenRegion(path string, _ bool) (*Region, error) { return m.open(path) }

// CreatePage makes a page and locks it.
func (m *HeapMemory) CreatePage(path string, daemonBell, trainerBell int) (*Page, error) {
	r, err := m.create(path, PageBytes)
	if err != nil {
		return nil, fmt.Errorf("create page: %w", err)
	}
	p := &Page{words: r.Words(), region: r}
	p.writeHeader(daemonBell, trainerBell)
	return p, r.heap.lock()
}

// AdoptPage finds a page and locks it; ErrLocked while another has it.
func (m *HeapMemory) AdoptPage(path string) (*Page, error) {
	p, err := m.WatchPage(path)
	if err != nil {
		return nil, err
	}
	if err := p.region.heap.lock(); err != nil {
		return nil, err
	}
	return p, nil
}

// OpenPage finds a page.
func (m *HeapMemory) OpenPage(path string) (*Page, error) { return m.WatchPage(path) }

// WatchPage finds a page.
func (m *HeapMemory) WatchPage(path string) (*Page, error) {
	r, err := m.open(path)
	if err != nil {
		return nil, err
	}
	p := &Page{words: r.Words(), region: r}
	return p, checkHeader(p.words)
}

// Version says nothing: to list is as cheap.
func (m *HeapMemory) Version(string) uint64 { return 0 }

// List names what begins with prefix.
func (m *HeapMemory) List(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name := range m.files {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Remove takes a name away.
func (m *HeapMemory) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[path] == nil {
		return fmt.Errorf("remove %s: %w", path, os.ErrNotExist)
	}
	delete(m.files, path)
	return nil
}

// heapMap is one mapping of a heapFile.
type heapMap struct {
	memory *HeapMemory
	file   *heapFile
	path   string
	holds  bool
}

func (h *heapMap) lock() error {
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	if h.file.locked {
		return fmt.Errorf("lock %s: %w", h.path, ErrLocked)
	}
	h.file.locked, h.holds = true, true
	return nil
}

func (h *heapMap) unmap() {
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	if h.holds {
		h.file.locked, h.holds = false, false
	}
}

// bytesOf views words as bytes.
func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}
