// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"phalanx/ckpt"
)

// Store keeps objects in a map. The zero value is not usable; call New.
type Store struct {
	mu      sync.Mutex // guards the fields below; held for a copy, never over I/O
	objects map[string]object
	version uint64
}

type object struct {
	content []byte // never changed in place
	crc     ckpt.CRC
	etag    string
}

var _ ckpt.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store { return &Store{objects: map[string]object{}} }

// Capabilities says that nothing survives the process and all else is given.
func (s *Store) Capabilities() ckpt.Capabilities {
	return ckpt.Capabilities{Name: "mem:", ConditionalCreate: true, ConditionalReplace: true, KeepsChecksum: true}
}

// PutIfAbsent implements ckpt.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	return s.put(ctx, key, body, func(_ object, found bool) error {
		if found {
			return ckpt.ErrExists
		}
		return nil
	})
}

// Put implements ckpt.Store.
func (s *Store) Put(ctx context.Context, key string, body ckpt.Body) error {
	return s.put(ctx, key, body, func(object, bool) error { return nil })
}

// PutIfMatch implements ckpt.Store.
func (s *Store) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	return s.put(ctx, key, body, func(o object, found bool) error {
		switch {
		case !found:
			return ckpt.ErrNotFound
		case o.etag != etag:
			return ckpt.ErrExists
		}
		return nil
	})
}

func (s *Store) put(ctx context.Context, key string, body ckpt.Body, allowed func(object, bool) error) error {
	if err := cmpErr(ctx.Err(), ckpt.ValidKey(key)); err != nil {
		return fmt.Errorf("mem: put %s: %w", key, err)
	}
	content := make([]byte, body.Size)
	if _, err := io.ReadFull(body.Reader(), content); err != nil {
		return fmt.Errorf("mem: put %s: read its body: %w", key, err)
	}
	crc := ckpt.Checksum(content)
	if crc != body.CRC64NVME {
		return fmt.Errorf("mem: put %s: body has crc64nvme %s, announced %s: %w", key, crc, body.CRC64NVME, ckpt.ErrCorrupt)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	present, found := s.objects[key]
	if err := allowed(present, found); err != nil {
		return fmt.Errorf("mem: put %s: %w", key, err)
	}
	s.version++
	s.objects[key] = object{content: content, crc: crc, etag: strconv.FormatUint(s.version, 10)}
	return nil
}

// Get implements ckpt.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	o, err := s.find(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("mem: get %s: %w", key, err)
	}
	size := int64(len(o.content))
	if off < 0 || off > size {
		return nil, fmt.Errorf("mem: get %s from %d of %d bytes: %w", key, off, size, ckpt.ErrNotFound)
	}
	if n < 0 || n > size-off {
		n = size - off
	}
	return bytes.Clone(o.content[off : off+n : off+n]), nil
}

// Stat implements ckpt.Store.
func (s *Store) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	o, err := s.find(ctx, key)
	if err != nil {
		return ckpt.Info{}, fmt.Errorf("mem: stat %s: %w", key, err)
	}
	return o.info(key), nil
}

func (s *Store) find(ctx context.Context, key string) (object, error) {
	if err := cmpErr(ctx.Err(), ckpt.ValidKey(key)); err != nil {
		return object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, found := s.objects[key]
	if !found {
		return object{}, ckpt.ErrNotFound
	}
	return o, nil
}

func (o object) info(key string) ckpt.Info {
	return ckpt.Info{Key: key, Size: int64(len(o.content)), ETag: o.etag, CRC64NVME: o.crc, HasCRC: true}
}

// pageLimit is what List gives at most, as S3 does, so that callers that forget to go on fail in tests.
const pageLimit = 1000

// List implements ckpt.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]ckpt.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("mem: list %s: %w", prefix, err)
	}
	if limit <= 0 || limit > pageLimit {
		limit = pageLimit
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []ckpt.Info
	for key, o := range s.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			found = append(found, o.info(key))
		}
	}
	slices.SortFunc(found, func(a, b ckpt.Info) int { return strings.Compare(a.Key, b.Key) })
	return found[:min(limit, len(found))], nil
}

// Delete implements ckpt.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := cmpErr(ctx.Err(), ckpt.ValidKey(key)); err != nil {
		return fmt.Errorf("mem: delete %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
	return nil
}

// Flip changes one bit of an object without touching its checksum: what a bad disk does.
func (s *Store) Flip(key string, bit int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, found := s.objects[key]
	if !found || bit < 0 || bit/8 >= int64(len(o.content)) {
		return fmt.Errorf("mem: flip bit %d of %s: %w", bit, key, ckpt.ErrNotFound)
	}
	o.content = bytes.Clone(o.content)
	o.content[bit/8] ^= 1 << (bit % 8)
	s.objects[key] = o
	return nil
}

// Clone returns an independent copy, so that a test can try many ends of one beginning.
func (s *Store) Clone() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Store{objects: make(map[string]object, len(s.objects)), version: s.version}
	for key, o := range s.objects {
		c.objects[key] = o
	}
	return c
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
