// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"phalanx/consensus"
)

var (
	errDamaged = errors.New("simulated store: invalid page")
	errCrashed = errors.New("simulated store: the process is dead")
)

// disk is where the logs of a host lie. What was acknowledged stays. A write that is under way when its process dies or its host
// loses power is on the disk whole or not at all, which is what a store with transactions makes of lost and torn sectors; a
// store may also be found damaged, as after a sector that lied.
type disk struct {
	mu      sync.Mutex
	rng     *rand.Rand
	stores  map[string]*store // by the number in the file of that name
	hangs   time.Time         // until when nothing is written
	full    bool
	damage  bool // the next store that is opened after a crash is found damaged
	lost    int  // writes that were under way at a crash and are not there
	kept    int  // and those that are
	changed chan struct{}
}

func newDisk(rng *rand.Rand) *disk {
	return &disk{rng: rng, stores: map[string]*store{}, changed: make(chan struct{})}
}

// store is what one log store holds.
type store struct {
	records     map[uint64]*consensus.LogRecord
	first, last uint64
	values      map[string][]byte
	open        bool
	damaged     bool
}

// openStore is consensus.Config.OpenStore. The real file at the path holds nothing but the store's number, so that moving it
// aside and removing it do what they do to a file of bbolt.
func (d *disk) openStore(p *process, path string) (consensus.LogStore, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		name = []byte(strconv.Itoa(len(d.stores) + 1))
		err = os.WriteFile(path, name, 0o600)
		d.stores[string(name)] = &store{records: map[uint64]*consensus.LogRecord{}, values: map[string][]byte{}}
	}
	if err != nil {
		return nil, err
	}
	s := d.stores[string(name)]
	switch {
	case s == nil:
		return nil, fmt.Errorf("store %q: %w", name, errDamaged)
	case s.open:
		return nil, consensus.ErrLocked
	case s.damaged:
		return nil, errDamaged
	}
	s.open = true
	return &handle{disk: d, store: s, proc: p}, nil
}

// crash is what the host's end does to its disk: whoever comes back finds a store damaged, if damage is asked for.
func (d *disk) crash() (damaged bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.stores {
		if d.damage && s.last > 0 && !s.damaged {
			s.damaged, damaged = true, true
		}
	}
	d.damage = false
	return damaged
}

func (d *disk) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

// handle is a process's open store.
type handle struct {
	disk  *disk
	store *store
	proc  *process
}

// write takes its time, then happens.
func (h *handle) write(f func(s *store)) error {
	if !h.proc.pass() {
		return errCrashed
	}
	d := h.disk
	d.mu.Lock()
	takes := 30*time.Microsecond + time.Duration(d.rng.ExpFloat64()*float64(100*time.Microsecond))
	d.mu.Unlock()
	for end := time.Now().Add(takes); !h.proc.dead(); {
		d.mu.Lock()
		if d.hangs.After(end) {
			end = d.hangs
		}
		changed := d.changed
		d.mu.Unlock()
		left := time.Until(end)
		if left <= 0 {
			break
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
			end = time.Now()
		case <-h.proc.ctx.Done():
		}
		timer.Stop()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.proc.dead() {
		if d.full || d.rng.IntN(2) == 0 {
			d.lost++
			return errCrashed
		}
		d.kept++
		f(h.store)
		return errCrashed
	}
	if d.full {
		return fmt.Errorf("simulated store: %w", syscall.ENOSPC)
	}
	f(h.store)
	return nil
}

func (h *handle) read(f func(s *store)) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	f(h.store)
}

func (h *handle) FirstIndex() (n uint64, err error) {
	h.read(func(s *store) { n = s.first })
	return n, nil
}

func (h *handle) LastIndex() (n uint64, err error) {
	h.read(func(s *store) { n = s.last })
	return n, nil
}

func (h *handle) GetLog(index uint64, into *consensus.LogRecord) (err error) {
	h.read(func(s *store) {
		r := s.records[index]
		if r == nil {
			err = consensus.ErrNoRecord
			return
		}
		*into = *r
	})
	return err
}

func (h *handle) StoreLog(r *consensus.LogRecord) error {
	return h.StoreLogs([]*consensus.LogRecord{r})
}

func (h *handle) StoreLogs(records []*consensus.LogRecord) error {
	var copies []*consensus.LogRecord
	for _, r := range records {
		c := *r
		c.Data, c.Extensions = slices.Clone(r.Data), slices.Clone(r.Extensions)
		copies = append(copies, &c)
	}
	return h.write(func(s *store) {
		for _, r := range copies {
			s.records[r.Index] = r
		}
		s.bounds()
	})
}

func (h *handle) DeleteRange(first, last uint64) error {
	return h.write(func(s *store) {
		for i := first; i <= last; i++ {
			delete(s.records, i)
		}
		s.bounds()
	})
}

func (s *store) bounds() {
	s.first, s.last = 0, 0
	if len(s.records) > 0 {
		keys := slices.Collect(maps.Keys(s.records))
		s.first, s.last = slices.Min(keys), slices.Max(keys)
	}
}

func (h *handle) Set(key, value []byte) error {
	k, v := string(key), slices.Clone(value)
	return h.write(func(s *store) { s.values[k] = v })
}

func (h *handle) Get(key []byte) (v []byte, err error) {
	h.read(func(s *store) {
		var ok bool
		if v, ok = s.values[string(key)]; !ok {
			err = consensus.ErrKeyNotFound
		}
	})
	return slices.Clone(v), err
}

func (h *handle) SetUint64(key []byte, v uint64) error {
	return h.Set(key, strconv.AppendUint(nil, v, 10))
}

func (h *handle) GetUint64(key []byte) (uint64, error) {
	v, err := h.Get(key)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(v), 10, 64)
}

func (h *handle) Close() error {
	h.read(func(s *store) { s.open = false })
	return nil
}
