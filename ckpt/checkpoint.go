// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"phalanx"
)

// Checkpoint is a published checkpoint that is open for reading. It is safe for concurrent use.
type Checkpoint struct {
	Commit *Commit

	store   Store
	attempt Attempt
	parts   []*Part
	states  []*State
	globals []GlobalTensor

	once sync.Once
	held map[string][]held // by object, made at the first use
}

// Open reads the parts of a commit, checks them and proves coverage. It reads no data.
func Open(ctx context.Context, s Store, c *Commit) (*Checkpoint, error) {
	fail := func(err error) (*Checkpoint, error) {
		return nil, fmt.Errorf("open checkpoint %d of %s (step %d): %w", c.Number, c.Job, c.Step, err)
	}
	a, err := ParseAttempt(c.Job, c.Attempt)
	if err != nil {
		return fail(err)
	}
	cp := &Checkpoint{Commit: c, store: s, attempt: a}
	if cp.parts, err = readParts(ctx, s, a, c.Parts); err != nil {
		return fail(err)
	}
	manifests, err := Merge(cp.parts)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrIncomplete, err))
	}
	if len(manifests) != len(c.States) {
		return fail(fmt.Errorf("%w: parts of %d coordinates, the commit names %d", ErrIncomplete, len(manifests), len(c.States)))
	}
	for i, m := range manifests {
		if m.Container != c.Container {
			return fail(fmt.Errorf("coordinate %d is stored as %s, the commit says %s: %w", m.Coordinate, m.Container, c.Container, ErrDamaged))
		}
		if m.Coordinate != i || m.StateDigest != c.States[i].Digest {
			return fail(fmt.Errorf("coordinate %d: state digest %s, the commit says %s; run: phalanx ckpt verify: %w",
				m.Coordinate, m.StateDigest, c.States[i].Digest, ErrCorrupt))
		}
		cp.states = append(cp.states, &State{Manifest: m, Label: c.States[i].Label, cp: cp})
	}
	if cp.globals, err = GlobalTensors(manifests); err != nil {
		return fail(err)
	}
	return cp, nil
}

// OpenLatest opens what Latest finds.
func OpenLatest(ctx context.Context, s Store, job string) (*Checkpoint, error) {
	f, err := Latest(ctx, s, job)
	if err != nil {
		return nil, err
	}
	return Open(ctx, s, f.Record.Commit)
}

// States lists the stored states, one for each coordinate, in order.
func (cp *Checkpoint) States() []*State { return cp.states }

// Globals lists the tensors as the user knows them, put together from all coordinates.
func (cp *Checkpoint) Globals() []GlobalTensor { return cp.globals }

// State returns the state of a coordinate, nil when the checkpoint has no such coordinate.
func (cp *Checkpoint) State(coordinate int) *State {
	if coordinate < 0 || coordinate >= len(cp.states) {
		return nil
	}
	return cp.states[coordinate]
}

// State is the stored state of one coordinate.
type State struct {
	Manifest *Manifest
	Label    phalanx.Label
	cp       *Checkpoint

	mu    sync.Mutex // guards cache; never held over a read
	cache cachedChunk
}

// cachedChunk is the verified chunk that was read last: small reads in sequence fetch it once.
type cachedChunk struct {
	tensor, chunk int
	content       []byte // nil: nothing cached; never changed
}

// ForRank gives the state with the content that a rank had of its own, where ranks have some and this one had; where it had
// none, because the world was smaller then, that of the first rank.
func (st *State) ForRank(rank phalanx.Rank) *State {
	m := *st.Manifest
	m.Tensors = slices.Clone(m.Tensors)
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if k := slices.IndexFunc(t.Copies, func(c RankCopy) bool { return c.Rank == rank }); k >= 0 {
			t.D1, t.Chunks = t.Copies[k].D1, t.Copies[k].Chunks
		}
	}
	return &State{Manifest: &m, Label: st.Label, cp: st.cp}
}

// Layout lists the tensors.
func (st *State) Layout() []phalanx.TensorInfo { return st.Manifest.Layout() }

// Digests returns the D1 digest (seed 0) of every tensor, in layout order.
func (st *State) Digests() []phalanx.Digest {
	d := make([]phalanx.Digest, len(st.Manifest.Tensors))
	for i, t := range st.Manifest.Tensors {
		d[i] = t.D1
	}
	return d
}

// DamageError names a chunk, or an object without chunks when Tensor is empty, whose stored bytes are not those that were
// written.
type DamageError struct {
	Object     string // full key
	At, Length int64  // the chunk's bytes in the object
	Coordinate int
	Tensor     string
	Off        int64 // the chunk's first byte in the tensor
	Want, Got  CRC   // equal when Err says that it could not be read
	Err        error // ErrCorrupt, or what reading it gave
}

func (e *DamageError) Error() string {
	s := fmt.Sprintf("object %s, %d bytes: ", e.Object, e.Length)
	if e.Tensor != "" {
		s = fmt.Sprintf("chunk at %d (%d bytes) of object %s, bytes [%d, %d) of tensor %.60q of coordinate %d: ",
			e.At, e.Length, e.Object, e.Off, e.Off+e.Length, e.Tensor, e.Coordinate)
	}
	if e.Want != e.Got {
		s += fmt.Sprintf("crc64nvme %s, expected %s", e.Got, e.Want)
	} else {
		s += e.Err.Error()
	}
	return s + "; run: phalanx ckpt verify"
}

// Unwrap makes errors.Is(err, ErrCorrupt) and the like work.
func (e *DamageError) Unwrap() error { return e.Err }

// readChunk fetches a chunk into p, which has its length, and verifies its checksum.
func (st *State) readChunk(ctx context.Context, tensor, chunk int, p []byte) error {
	t := &st.Manifest.Tensors[tensor]
	c := t.Chunks[chunk]
	n, sum, err := GetInto(ctx, st.cp.store, st.object(c), c.At, p)
	damage := st.damage(t.TensorInfo, c, err)
	switch {
	case err != nil:
	case int64(n) < c.Length:
		damage.Err = endsEarly(n)
	case sum != c.CRC64NVME:
		damage.Got, damage.Err = sum, ErrCorrupt
	default:
		return nil
	}
	return damage
}

func endsEarly(n int) error {
	return fmt.Errorf("the object ends after %d bytes of the chunk: %w", n, ErrDamaged)
}

func (st *State) object(c ManifestChunk) string { return st.cp.attempt.Folder() + "/" + c.Object }

func (st *State) damage(t phalanx.TensorInfo, c ManifestChunk, err error) *DamageError {
	return &DamageError{
		Object: st.object(c), At: c.At, Length: c.Length, Coordinate: st.Manifest.Coordinate, Tensor: t.Name, Off: c.Off,
		Want: c.CRC64NVME, Got: c.CRC64NVME, Err: err,
	}
}

// readFramed fetches a chunk with what the container put around it and the bytes up to where the next may begin, verifies all
// of it and returns the chunk, which lies in buffer or in a larger one that replaces it.
func (st *State) readFramed(ctx context.Context, t phalanx.TensorInfo, c ManifestChunk, buffer *[]byte) ([]byte, error) {
	f := frame{st.Manifest.Container}
	at, length := f.enclosed(c)
	before := f.before()
	ask := aligned(at+length) - at
	if int64(cap(*buffer)) < ask {
		*buffer = make([]byte, ask)
	}
	whole := (*buffer)[:ask]
	n, sum, err := GetInto(ctx, st.cp.store, st.object(c), at, whole)
	damage := st.damage(t, c, err)
	if err != nil {
		return nil, damage
	}
	whole = whole[:n]
	if int64(n) < length {
		damage.Err = endsEarly(max(n-int(before), 0))
		return nil, damage
	}
	content := whole[before : before+c.Length]
	// The checksum of the whole says that of the chunk, without another pass over it.
	rest := whole[before+c.Length:]
	want := joinCRC(joinCRC(Checksum(whole[:before]), c.CRC64NVME, c.Length), Checksum(rest), int64(len(rest)))
	if sum != want {
		damage.Got, damage.Err = Checksum(content), ErrCorrupt
		return nil, damage
	}
	damage.Err = f.check(t, c, whole[:length])
	if damage.Err == nil && len(bytes.Trim(whole[length:], "\x00")) > 0 {
		damage.Err = fmt.Errorf("the bytes between this chunk and the next are not 0: %w", ErrDamaged)
	}
	if damage.Err != nil {
		return nil, damage
	}
	return content, nil
}

// ReadRange fills p with the bytes of a tensor from offset off. Every byte it returns belongs to a chunk whose checksum was
// verified now or when it was cached; a smaller range therefore costs the chunks that it touches. The error is a
// *DamageError when a chunk cannot be read or verified.
func (st *State) ReadRange(ctx context.Context, tensor int, off int64, p []byte) error {
	if tensor < 0 || tensor >= len(st.Manifest.Tensors) {
		return fmt.Errorf("read checkpoint: tensor %d of %d: %w", tensor, len(st.Manifest.Tensors), ErrNotFound)
	}
	t := &st.Manifest.Tensors[tensor]
	if size := t.Bytes(); off < 0 || off > size || int64(len(p)) > size-off {
		return fmt.Errorf("read checkpoint: bytes [%d, %d) of tensor %.60q of %d: %w", off, off+int64(len(p)), t.Name, size, ErrNotFound)
	}
	i, found := slices.BinarySearchFunc(t.Chunks, off, func(c ManifestChunk, off int64) int {
		switch {
		case c.Off+c.Length <= off:
			return -1
		case c.Off > off:
			return 1
		}
		return 0
	})
	if !found && len(p) > 0 {
		return fmt.Errorf("read checkpoint: tensor %.60q has no chunk at %d: %w", t.Name, off, ErrDamaged) // Merge proved coverage
	}
	for ; len(p) > 0; i++ {
		if c := t.Chunks[i]; off == c.Off && int64(len(p)) >= c.Length && !st.cached(tensor, i) {
			if err := st.readChunk(ctx, tensor, i, p[:c.Length]); err != nil {
				return fmt.Errorf("read checkpoint: %w", err)
			}
			p, off = p[c.Length:], off+c.Length
			continue
		}
		content, err := st.chunk(ctx, tensor, i)
		if err != nil {
			return fmt.Errorf("read checkpoint: %w", err)
		}
		n := copy(p, content[off-t.Chunks[i].Off:])
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// cached reports whether a chunk is the one that was read last.
func (st *State) cached(tensor, chunk int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.cache.content != nil && st.cache.tensor == tensor && st.cache.chunk == chunk
}

// chunk returns a verified chunk, from the cache if it is the last one.
func (st *State) chunk(ctx context.Context, tensor, chunk int) ([]byte, error) {
	st.mu.Lock()
	cached := st.cache
	st.mu.Unlock()
	if cached.content != nil && cached.tensor == tensor && cached.chunk == chunk {
		return cached.content, nil
	}
	content := make([]byte, st.Manifest.Tensors[tensor].Chunks[chunk].Length)
	if err := st.readChunk(ctx, tensor, chunk, content); err != nil {
		return nil, err
	}
	st.mu.Lock()
	st.cache = cachedChunk{tensor, chunk, content}
	st.mu.Unlock()
	return content, nil
}

// isDamage reports whether an error is about the stored bytes and not about reaching the store.
func isDamage(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound)
}
