// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/kernels"
)

// Progress is how far VerifyAll has come.
type Progress struct {
	Chunks, ChunksTotal int
	Bytes, BytesTotal   int64
	Damaged             int
}

// Report is what VerifyAll found. A checkpoint without damage is bit for bit the state that was saved.
type Report struct {
	Chunks  int
	Bytes   int64
	Damage  []*DamageError // every damaged chunk
	Tensors []DamagedTensor
}

// DamagedTensor is a tensor that cannot be restored from this checkpoint.
type DamagedTensor struct {
	Coordinate int
	Name       string
	Chunks     int            // damaged ones; 0: every chunk verifies and the digest does not
	Want, Got  phalanx.Digest // Got is zero when there are damaged chunks
}

// OK reports whether nothing is damaged.
func (r Report) OK() bool { return len(r.Damage) == 0 && len(r.Tensors) == 0 }

// Err is nil when nothing is damaged, and otherwise names all damaged tensors and chunks; it wraps ErrCorrupt.
func (r Report) Err() error {
	if r.OK() {
		return nil
	}
	var errs []error
	for _, t := range r.Tensors {
		if t.Chunks == 0 {
			errs = append(errs, fmt.Errorf("tensor %.60q of coordinate %d: digest %s, expected %s, though every chunk verifies: %w",
				t.Name, t.Coordinate, t.Got, t.Want, ErrCorrupt))
		} else {
			errs = append(errs, fmt.Errorf("tensor %.60q of coordinate %d: %d chunks damaged: %w", t.Name, t.Coordinate, t.Chunks, ErrCorrupt))
		}
	}
	for _, d := range r.Damage {
		errs = append(errs, d)
	}
	return errors.Join(errs...)
}

// verifyLimit is how many tensors VerifyAll reads at once, each through one chunk's memory.
const verifyLimit = 4

// VerifyAll reads every byte, checks every chunk's CRC and every tensor's D1, and goes on after damage, so that the report
// is whole. progress, unless nil, is called after every chunk on the caller's goroutine. The error is about reaching the
// store; damage is in the report. It holds up to four chunks in memory.
func (cp *Checkpoint) VerifyAll(ctx context.Context, progress func(Progress)) (Report, error) {
	var p Progress
	var all []*verification
	for _, st := range cp.states {
		for i := range st.Manifest.Tensors {
			for _, c := range st.Manifest.Tensors[i].contents() {
				all = append(all, &verification{st: st, index: i, content: c})
				p.ChunksTotal += len(c.Chunks)
			}
		}
		p.BytesTotal += st.Manifest.Bytes
	}
	group, gctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	workers := min(verifyLimit, runtime.GOMAXPROCS(0), len(all))
	done := make(chan verified, workers) // one for each worker: they rarely wait for the caller's progress
	for range workers {
		group.Go(func() error {
			var buffer []byte
			for {
				i := int(next.Add(1)) - 1
				if i >= len(all) {
					return nil
				}
				if err := all[i].run(gctx, &buffer, done); err != nil {
					return err
				}
			}
		})
	}
	ended := make(chan error, 1)
	go func() { // ends with the workers
		ended <- group.Wait()
		close(done)
	}()
	for v := range done {
		p.Chunks++
		p.Bytes += v.bytes
		if v.damaged {
			p.Damaged++
		}
		if progress != nil {
			progress(p)
		}
	}
	r := Report{Chunks: p.Chunks, Bytes: p.Bytes}
	for _, v := range all {
		r.Damage = append(r.Damage, v.damage...)
		if v.tensor != nil {
			r.Tensors = append(r.Tensors, *v.tensor)
		}
	}
	err := <-ended
	if err == nil {
		err = cp.verifyObjects(ctx, &r)
	}
	if err == nil {
		err = cp.verifyMetadata(ctx, &r)
	}
	if err != nil {
		return r, fmt.Errorf("verify checkpoint %d of %s: %w", cp.Commit.Number, cp.Commit.Job, err)
	}
	return r, nil
}

// verifyObjects compares what the store says of the objects with their parts: bytes behind the last chunk belong to none.
// Objects with a damaged chunk are known already.
func (cp *Checkpoint) verifyObjects(ctx context.Context, r *Report) error {
	known := map[string]bool{}
	for _, d := range r.Damage {
		known[d.Object] = true
	}
	heads, err := cp.VerifyHeads(ctx, nil)
	for _, d := range heads.Damage {
		if !known[d.Object] {
			r.Damage = append(r.Damage, d)
		}
	}
	return err
}

// verifyMetadata reads PyTorch's index, where the checkpoint has one.
func (cp *Checkpoint) verifyMetadata(ctx context.Context, r *Report) error {
	m := cp.Commit.Metadata
	if m == nil {
		return nil
	}
	key := cp.attempt.Folder() + "/" + m.Name
	damage := &DamageError{Object: key, Length: m.Size, Want: m.CRC64NVME, Got: m.CRC64NVME}
	b, err := cp.store.Get(ctx, key, 0, m.Size+1)
	switch {
	case err != nil && !isDamage(err):
		return err
	case err != nil:
		damage.Err = err
	case int64(len(b)) != m.Size:
		damage.Err = fmt.Errorf("%d bytes, expected %d: %w", len(b), m.Size, ErrDamaged)
	case sha256Hex(b) != m.SHA256:
		damage.Got, damage.Err = Checksum(b), ErrCorrupt
	default:
		return nil
	}
	r.Damage = append(r.Damage, damage)
	return nil
}

// contents are what is stored of a tensor: once, or for each rank that has its own.
func (t *ManifestTensor) contents() []RankCopy {
	if len(t.Copies) > 0 {
		return t.Copies
	}
	return []RankCopy{{Rank: phalanx.NoRank, D1: t.D1, Chunks: t.Chunks}}
}

// verification is the work on what is stored of one tensor, and what was found.
type verification struct {
	st      *State
	index   int
	content RankCopy

	damage []*DamageError
	tensor *DamagedTensor
}

// verified is one chunk that was looked at.
type verified struct {
	bytes   int64
	damaged bool
}

func (v *verification) run(ctx context.Context, buffer *[]byte, done chan<- verified) error {
	t := &v.st.Manifest.Tensors[v.index]
	hasher := kernels.NewTensorHasher(digestSeed, t.Name, t.DType, t.Shape)
	for _, c := range v.content.Chunks {
		content, err := v.st.readFramed(ctx, t.TensorInfo, c, buffer)
		var damage *DamageError
		switch {
		case err == nil:
			hasher.Write(content)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &damage) && isDamage(err):
			v.damage = append(v.damage, damage)
		default:
			return err
		}
		done <- verified{c.Length, err != nil}
	}
	found := DamagedTensor{Coordinate: v.st.Manifest.Coordinate, Name: t.Name, Chunks: len(v.damage), Want: v.content.D1}
	if v.content.Rank != phalanx.NoRank {
		found.Name = PerRankName(t.Name, v.content.Rank)
	}
	if found.Chunks > 0 {
		v.tensor = &found
	} else if got := hasher.Sum(); got != v.content.D1 {
		found.Got = got
		v.tensor = &found
	}
	return nil
}

// Objects lists the data objects of all ranks, each once, by their names in the attempt's folder.
func (cp *Checkpoint) Objects() []Object {
	var all []Object
	listed := map[string]bool{}
	for _, p := range cp.parts {
		for _, o := range p.Objects {
			if !listed[o.Name] {
				listed[o.Name] = true
				all = append(all, o)
			}
		}
	}
	return all
}

// VerifyHeads asks the store for every data object, its size, and its checksum where the store keeps one. It reads no data.
// progress, unless nil, is called after every object. The error is about reaching the store; damage is in the report, with
// the objects that were looked at as its Chunks.
func (cp *Checkpoint) VerifyHeads(ctx context.Context, progress func(done, total int)) (Report, error) {
	var r Report
	objects := cp.Objects()
	var mu sync.Mutex // guards r, and is held while progress runs
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(16) // answers of a few hundred bytes
	for _, o := range objects {
		group.Go(func() error {
			damage, err := cp.head(gctx, o)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			r.Chunks++
			if damage != nil {
				r.Damage = append(r.Damage, damage)
			}
			if progress != nil {
				progress(r.Chunks, len(objects))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return r, fmt.Errorf("verify checkpoint %d of %s: %w", cp.Commit.Number, cp.Commit.Job, err)
	}
	slices.SortFunc(r.Damage, func(a, b *DamageError) int { return strings.Compare(a.Object, b.Object) })
	r.Tensors = cp.lost(r.Damage)
	return r, nil
}

// head compares what the store says of an object with what its part says.
func (cp *Checkpoint) head(ctx context.Context, o Object) (*DamageError, error) {
	key := cp.attempt.Folder() + "/" + o.Name
	info, err := cp.store.Stat(ctx, key)
	damage := &DamageError{Object: key, Length: o.Size, Want: o.CRC64NVME, Got: o.CRC64NVME, Err: err}
	switch {
	case err != nil && !isDamage(err):
		return nil, err
	case err != nil:
	case info.Size != o.Size:
		damage.Err = fmt.Errorf("the store has %d bytes, expected %d: %w", info.Size, o.Size, ErrDamaged)
	case info.HasCRC && info.CRC64NVME != o.CRC64NVME:
		damage.Got, damage.Err = info.CRC64NVME, ErrCorrupt
	default:
		return nil, nil
	}
	return damage, nil
}

// lost lists the tensors that have chunks in damaged objects.
func (cp *Checkpoint) lost(damage []*DamageError) []DamagedTensor {
	var out []DamagedTensor
	for _, st := range cp.states {
		for _, t := range st.Manifest.Tensors {
			for _, content := range t.contents() {
				n := 0
				for _, c := range content.Chunks {
					key := cp.attempt.Folder() + "/" + c.Object
					if slices.ContainsFunc(damage, func(d *DamageError) bool { return d.Object == key }) {
						n++
					}
				}
				name := t.Name
				if content.Rank != phalanx.NoRank {
					name = PerRankName(name, content.Rank)
				}
				if n > 0 {
					out = append(out, DamagedTensor{Coordinate: st.Manifest.Coordinate, Name: name, Chunks: n, Want: content.D1})
				}
			}
		}
	}
	return out
}
