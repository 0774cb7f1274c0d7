// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"

	"phalanx"
)

var (
	// ErrFormat is returned for a file that is not a control page, or not all of one.
	ErrFormat = errors.New("not a control page")
	// ErrVersion is returned for a page whose major version is unknown: the daemon and the client are of different releases.
	ErrVersion = errors.New("unknown layout version")
	// ErrLocked is returned when a living daemon holds the page.
	ErrLocked = errors.New("page is held by a living daemon")
)

// Page is the control page of one incarnation of one member. Methods Write… and Set… are for the one writer of the cell
// that they name; all methods may be called from any goroutine as long as each cell has one writer at a time.
type Page struct {
	words  []uint64
	region *Region // nil for a page in heap memory
}

// NewPage returns a page in heap memory, for simulations and tests.
func NewPage(daemonBell, trainerBell int) *Page {
	p := &Page{words: make([]uint64, PageBytes/8)}
	p.writeHeader(daemonBell, trainerBell)
	return p
}

// CreatePage makes the page's file, which must not exist, with the given lines of the bells file, and locks it like
// AdoptPage. The file gets its name only once its header is complete.
func CreatePage(path string, daemonBell, trainerBell int) (*Page, error) {
	if err := mustNotExist(path); err != nil {
		return nil, fmt.Errorf("create page: %w", err)
	}
	r, err := createRegion(path+".new", PageBytes)
	if err != nil {
		return nil, fmt.Errorf("create page: %w", err)
	}
	p := &Page{words: r.Words(), region: r}
	p.writeHeader(daemonBell, trainerBell)
	if err := errors.Join(r.lock(), r.rename(path)); err != nil {
		return nil, fmt.Errorf("create page: %w", errors.Join(err, r.Unmap()))
	}
	return p, nil
}

// AdoptPage maps an existing page for its daemon and holds the kernel's lock on it until Unmap or the end of the process.
// ErrLocked: the daemon before this one still lives, stopped perhaps.
func AdoptPage(path string) (*Page, error) {
	p, err := openPage(path, true)
	if err != nil {
		return nil, fmt.Errorf("adopt page: %w", err)
	}
	if err := p.region.lock(); err != nil {
		return nil, fmt.Errorf("adopt page: %w", errors.Join(err, p.Unmap()))
	}
	return p, nil
}

// OpenPage maps a page read-write without a lock: the trainer's way.
func OpenPage(path string) (*Page, error) {
	p, err := openPage(path, true)
	if err != nil {
		return nil, fmt.Errorf("open page: %w", err)
	}
	return p, nil
}

// WatchPage maps a page read-only: the way of the other daemons of the host. Its Write… and Set… methods must not be
// called: the kernel ends the process.
func WatchPage(path string) (*Page, error) {
	p, err := openPage(path, false)
	if err != nil {
		return nil, fmt.Errorf("watch page: %w", err)
	}
	return p, nil
}

func openPage(path string, writable bool) (*Page, error) {
	r, err := OpenRegion(path, writable)
	if err != nil {
		return nil, err
	}
	p := &Page{words: r.Words(), region: r}
	if err := checkHeader(p.words); err != nil {
		return nil, fmt.Errorf("%s: %w", path, errors.Join(err, r.Unmap()))
	}
	return p, nil
}

func (p *Page) writeHeader(daemonBell, trainerBell int) {
	store(p.words, headerVersion, Major<<32|Minor)
	store(p.words, headerSize, PageBytes)
	store(p.words, headerDaemonBell, uint64(daemonBell))
	store(p.words, headerTrainerBell, uint64(trainerBell))
	store(p.words, headerMagic, Magic)
}

// checkHeader refuses anything that this release cannot read. A larger minor version only has more cells.
func checkHeader(words []uint64) error {
	if len(words) < PageBytes/8 {
		return fmt.Errorf("%d bytes, want %d: %w", 8*len(words), PageBytes, ErrFormat)
	}
	if m := load(words, headerMagic); m != Magic {
		return fmt.Errorf("magic %#x: %w", m, ErrFormat)
	}
	if v := load(words, headerVersion); v>>32 != Major {
		return fmt.Errorf("layout %d.%d, this is %d.%d; run daemon and client of one release: %w", v>>32, uint32(v), Major, Minor, ErrVersion)
	}
	if s := load(words, headerSize); s < PageBytes || s > uint64(8*len(words)) {
		return fmt.Errorf("size word %d in a file of %d bytes: %w", s, 8*len(words), ErrFormat)
	}
	for _, at := range []int{headerDaemonBell, headerTrainerBell} {
		if line := load(words, at); line >= BellLines {
			return fmt.Errorf("bell line %d of %d: %w", line, BellLines, ErrFormat)
		}
	}
	return nil
}

// DaemonBell is the line of the bells file on which the daemon waits.
func (p *Page) DaemonBell() int { return int(load(p.words, headerDaemonBell)) }

// TrainerBell is the line of the bells file on which the trainer waits.
func (p *Page) TrainerBell() int { return int(load(p.words, headerTrainerBell)) }

// Path is the file behind the page, "" for heap memory.
func (p *Page) Path() string {
	if p.region == nil {
		return ""
	}
	return p.region.Path()
}

// Unmap ends the mapping and the lock. The page must not be used afterwards. It never removes the file.
func (p *Page) Unmap() error {
	if p.region == nil {
		return nil
	}
	return p.region.Unmap()
}

// ReadDescriptor returns the descriptor with a sequence from 1 to RingHead. It is valid until RingHead has grown by
// DescriptorCount.
func (p *Page) ReadDescriptor(sequence uint64) Descriptor {
	var w [DescriptorWords]uint64
	at := descriptorWord(sequence)
	for i := range w {
		w[i] = load(p.words, at+i)
	}
	var d Descriptor
	d.Decode(w[:])
	return d
}

// Post writes a descriptor and makes it visible; the caller then rings the daemon's bell. It returns the sequence. Only the
// trainer may call it, and only when the descriptor DescriptorCount before this one is complete.
func (p *Page) Post(d Descriptor) uint64 {
	d.Sequence = p.RingHead() + 1
	var w [DescriptorWords]uint64
	d.Encode(w[:])
	at := descriptorWord(d.Sequence)
	for i, v := range w {
		store(p.words, at+i, v)
	}
	p.SetRingHead(d.Sequence)
	return d.Sequence
}

func descriptorWord(sequence uint64) int {
	return (offsetDescriptor + strideDescriptor*RingPlace(sequence)) / 8
}

// RingPlace is the place of a descriptor in the ring and of its completion in D_COMPLETE.
func RingPlace(sequence uint64) int { return int((sequence - 1) % DescriptorCount) }

// Completion returns how the descriptor with a sequence ended, StatusNone while it has not.
func (p *Page) Completion(sequence uint64) Status {
	if s, status := ParseAnswer(p.Complete(RingPlace(sequence))); s == sequence {
		return status
	}
	return StatusNone
}

// CompleteDescriptor says how the descriptor with a sequence ended. Only the daemon may call it.
func (p *Page) CompleteDescriptor(sequence uint64, status Status) {
	p.SetComplete(RingPlace(sequence), Answer(sequence, status))
}

// AnyCoordinate in a label fits every shard coordinate: the initial state is the same for all.
const AnyCoordinate = -1

// Label is the label of the trainer's state. It means nothing unless Valid.
func (a Applied) Label() phalanx.Label {
	return phalanx.Label{Step: a.Step, Generation: a.Generation, Digest: a.Digest, Coordinate: a.Coordinate}
}

// Label is the label of the healed state.
func (h HealEnd) Label() phalanx.Label {
	return phalanx.Label{Step: h.LabelStep, Generation: h.LabelGeneration, Digest: h.LabelDigest, Coordinate: h.Coordinate}
}

// Resume is the label of the seat's floor with the seat's coordinate.
func (s Seat) Resume() phalanx.Label {
	return phalanx.Label{Step: s.ResumeStep, Generation: s.ResumeGeneration, Digest: s.ResumeDigest, Coordinate: s.Coordinate}
}

// Label is the label of the slab's content. It means nothing unless the slab is full.
func (s SlabHeader) Label() phalanx.Label {
	return phalanx.Label{Step: s.LabelStep, Generation: s.LabelGeneration, Digest: s.LabelDigest, Coordinate: s.Coordinate}
}

// Torn reports whether a trainer's state is between two steps: the optimizer began and did not return, or a heal began and
// was not verified. Such a trainer possesses nothing.
func Torn(applying Applying, applied Applied, healing Healing) bool {
	return healing.On || !applied.Valid || applying.Step != applied.Step || applying.Generation != applied.Generation
}
