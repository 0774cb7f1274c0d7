// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The parts of a member's host memory that are counted.
const (
	partSegment = "segment"
	partBoard   = "board"
	partSlab    = "slab"
	partBuffers = "buffers of saves"
	partOld     = "slab of an earlier life"
	partCopies  = "copies for other hosts"
)

// putsMost is how many objects of a share are written at once, if there is room for their buffers: a disk's queue and an object
// store want several.
const putsMost = 8

// putBytes bounds what one put holds besides what it reads from the slab: pieces on their way into a file or a connection.
const putBytes = 2 << 20

// hostMemory sums the memory that a member uses on its host beside what its trainer has of its own: what outlives the trainer and
// what saves need. nil counts nothing and has room for all.
type hostMemory struct {
	limit int64 // 0: any

	mu    sync.Mutex
	parts map[string]int64
}

func newHostMemory(limit int64) *hostMemory {
	return &hostMemory{limit: limit, parts: map[string]int64{}}
}

// set says what a part takes now.
func (m *hostMemory) set(part string, bytes int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts[part] = bytes
}

// used is the sum of all parts.
func (m *hostMemory) used() int64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var sum int64
	for _, n := range m.parts {
		sum += n
	}
	return sum
}

// fits reports whether so much more is allowed.
func (m *hostMemory) fits(bytes int64) bool {
	return m == nil || m.limit == 0 || bytes <= m.limit-m.used()
}

// String lists the parts: it is for the operator who has to change the limit.
func (m *hostMemory) String() string {
	if m == nil {
		return "nothing is counted"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var words []string
	for _, part := range slices.Sorted(maps.Keys(m.parts)) {
		if n := m.parts[part]; n > 0 {
			words = append(words, fmt.Sprintf("%s %d", part, n))
		}
	}
	return fmt.Sprintf("%d bytes are allowed for each member, %s", m.limit, strings.Join(words, ", "))
}

// grow counts so much more of a part, if what was admitted leaves it: what comes and goes, like copies, gives way.
func (m *hostMemory) grow(admitted map[string]int64, part string, bytes int64) error {
	if m == nil {
		return nil
	}
	var need int64
	for _, n := range admitted {
		need += n
	}
	if m.limit > 0 && bytes > m.limit-need {
		return fmt.Errorf("it takes %d bytes, %d more than --max-host-bytes leaves: %s", bytes, bytes-(m.limit-need), m)
	}
	m.set(part, admitted[part]+bytes)
	return nil
}

// outfitBytes is what a member needs at least to train and to save a state: of the writer's buffers, those for one object at a time.
func outfitBytes(segment, board, slab, state int64) map[string]int64 {
	return map[string]int64{partSegment: segment, partBoard: board, partSlab: slab, partBuffers: bufferBytes(1, state)}
}

// bufferBytes are the buffers of a writer, which reads objects from the slab as it sends them: one for what is being digested, and
// one for each put.
func bufferBytes(puts int, state int64) int64 {
	return int64(puts+1) * min(putBytes, state)
}

// puts is how many objects may be written at once: as many as fit, at least one, which was counted from the start.
func (m *hostMemory) puts(state int64) int {
	for n := putsMost; n > 1; n-- {
		if m.fits(bufferBytes(n, state) - bufferBytes(1, state)) {
			return n
		}
	}
	return 1
}

// admit counts what a member needs from its start, and says why that is too much.
func (m *hostMemory) admit(parts map[string]int64) error {
	if m == nil {
		return nil
	}
	var need int64
	for _, n := range parts {
		need += n
	}
	for part, n := range parts {
		m.set(part, n)
	}
	if m.limit > 0 && need > m.limit {
		return fmt.Errorf("a member needs %d bytes of host memory besides its trainer's own, and --max-host-bytes leaves less: %s", need, m)
	}
	return nil
}
