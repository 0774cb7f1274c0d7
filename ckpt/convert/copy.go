// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"phalanx/ckpt"
	"phalanx/ckpt/safetensors"
	"phalanx/ckpt/view"
)

// Copied is what a copy did. One that was interrupted goes on where it was: what is there already is looked at and left.
type Copied struct {
	Checkpoints int   `json:"checkpoints"` // of a job, with those that retention has removed
	Objects     int   `json:"objects"`     // sent now
	Bytes       int64 `json:"size_bytes"`  // sent now
	Present     int   `json:"present"`     // were there already, whole
}

// ErrOther: the target has another object of that name.
var ErrOther = errors.New("another object has this name")

// copyParallel is how many objects are copied at once.
const copyParallel = 4

// object is what is to be copied.
type object struct {
	from, to string // name below the source's place, key in the target
	size     int64
	crc      ckpt.CRC
	known    bool // crc is: the source says what the content must be
}

// copier copies objects.
type copier struct {
	from     view.Files
	to       ckpt.Store
	total    int64
	done     atomic.Int64
	progress func(done, total int64)
	complete bool // everything must be there already: what is at the target is whole, or something else

	objects, present atomic.Int64
	bytes            atomic.Int64
}

// Job copies every published checkpoint of a job into another store, under the same name: data objects and parts, each with the
// checksum that its part or commit says, so that a damaged source is noticed; then the commit objects in the order of their
// numbers, byte for byte. Nobody sees a checkpoint in the target before all of it is there. Marks (pins, holds) are not copied.
func Job(ctx context.Context, from ckpt.Store, job string, to ckpt.Store, progress func(done, total int64)) (Copied, error) {
	c := &copier{from: view.NewPrefix(from, ""), to: to, progress: progress}
	records, problems, err := ckpt.List(ctx, from, job)
	if err != nil {
		return Copied{}, err
	}
	var objects []object
	last := uint64(0)
	for _, p := range problems {
		last = max(last, p.Number)
	}
	for _, r := range records {
		last = max(last, r.Number)
		if r.Commit == nil {
			continue
		}
		of, err := objectsOf(ctx, from, r.Commit)
		if err != nil {
			return Copied{}, err
		}
		objects = append(objects, of...)
	}
	if last == 0 {
		return Copied{}, fmt.Errorf("job %s: %w", job, ckpt.ErrNoCheckpoint)
	}
	if err := c.all(ctx, objects); err != nil {
		return c.sum(0), err
	}
	for n := uint64(1); n <= last; n++ {
		if err := c.commit(ctx, from, ckpt.CommitKey(job, n)); err != nil {
			return c.sum(int(n) - 1), err //nolint:gosec // one for each stored object
		}
	}
	return c.sum(int(last)), nil //nolint:gosec // one for each stored object
}

// objectsOf lists what a commit stands for.
func objectsOf(ctx context.Context, s ckpt.Store, c *ckpt.Commit) ([]object, error) {
	cp, err := ckpt.Open(ctx, s, c)
	if err != nil {
		return nil, err
	}
	var out []object
	add := func(name string, size int64, crc ckpt.CRC) {
		key := c.Job + "/" + c.Attempt + "/" + name
		out = append(out, object{key, key, size, crc, true})
	}
	for _, o := range cp.Objects() {
		add(o.Name, o.Size, o.CRC64NVME)
	}
	for _, p := range c.Parts {
		add(p.Name, p.Size, p.CRC64NVME)
	}
	if m := c.Metadata; m != nil {
		add(m.Name, m.Size, m.CRC64NVME)
	}
	return out, nil
}

// commit copies a commit object, or the stub that took its place. A side where retention has been meanwhile is left as it is.
func (c *copier) commit(ctx context.Context, from ckpt.Store, key string) error {
	b, err := from.Get(ctx, key, 0, ckpt.MaxCommitBytes)
	if err != nil {
		return err
	}
	err = c.to.PutIfAbsent(ctx, key, ckpt.Bytes(b))
	if err == nil {
		c.objects.Add(1)
		c.bytes.Add(int64(len(b)))
		return nil
	}
	if !errors.Is(err, ckpt.ErrExists) && !errors.Is(err, ckpt.ErrConflict) {
		return err
	}
	there, err := c.to.Get(ctx, key, 0, ckpt.MaxCommitBytes)
	if err != nil {
		return err
	}
	if slices.Equal(there, b) || commitSum(there) == commitSum(b) {
		c.present.Add(1)
		return nil
	}
	return fmt.Errorf("%s: the target has another checkpoint of this number, so it is another lineage: %w", key, ErrOther)
}

// commitSum is the SHA-256 of a commit object, also of one whose stub this is.
func commitSum(b []byte) string {
	if r, err := ckpt.DecodeRecord(b); err == nil {
		return r.SHA256
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ErrUnmarked: nothing would tell a copy that was interrupted from a whole one.
var ErrUnmarked = errors.New("nothing tells a part of these files from all of them")

// Folder copies the files of a checkpoint of another format as they are into a folder of a store, the file by which it is found
// last; one that is a file becomes the file of that key. Files without an index are copied into a folder beside, named with
// .partial at its end, that gets its name when all of them are there; a store that cannot rename takes them only when their names
// say how many there are, and fails with ErrUnmarked otherwise. The source is read once for checksums and once more to be sent.
func Folder(ctx context.Context, v *view.View, to ckpt.Store, prefix string, progress func(done, total int64)) (Copied, error) {
	prefix = strings.Trim(prefix, "/")
	c := &copier{from: v.Files(), to: to, progress: progress}
	names, index := v.Names(), v.Index()
	folder, rename, err := c.staging(ctx, v, prefix)
	if err != nil {
		return Copied{}, err
	}
	var objects, last []object
	for _, name := range append(names, index) {
		if name == "" {
			continue
		}
		size, err := v.Files().Size(ctx, name)
		if err != nil {
			return Copied{}, err
		}
		o := object{from: name, to: strings.TrimPrefix(folder+"/"+name, "/"), size: size}
		if v.File != "" {
			o.to = prefix
		}
		if err := ckpt.ValidKey(o.to); err != nil {
			return Copied{}, fmt.Errorf("%w; give it another name, or write it as another format with phalanx ckpt convert", err)
		}
		if name == index {
			last = append(last, o)
		} else {
			objects = append(objects, o)
		}
	}
	if err = c.all(ctx, objects); err == nil {
		err = c.all(ctx, last)
	}
	if err == nil && rename != nil {
		err = rename(folder, prefix)
	}
	return c.sum(1), err
}

// staging decides into which folder files go at first, and how it gets its name; rename is nil when it has it already.
func (c *copier) staging(ctx context.Context, v *view.View, prefix string) (folder string, rename func(from, to string) error, err error) {
	names := v.Names()
	counted := safetensors.Counted(names)
	if v.Format != view.Safetensors || len(names) < 2 || counted && v.Index() != "" {
		return prefix, nil, nil
	}
	if r := renamer(c.to); r != nil && prefix != "" {
		page, err := c.to.List(ctx, prefix+"/", "", 1)
		if err != nil {
			return "", nil, err
		}
		if len(page) > 0 { // an earlier copy, or something else
			c.complete = true
			return prefix, nil, nil
		}
		return prefix + ".partial", r.RenameFolder, nil
	}
	if counted {
		return prefix, nil, nil
	}
	return "", nil, fmt.Errorf("%s has %d files whose names do not say how many there are: %w", v.Place, len(names), ErrUnmarked)
}

// folderRenamer is a store whose folders can get other names at once.
type folderRenamer interface {
	// RenameFolder fails when something is at to.
	RenameFolder(from, to string) error
}

// renamer finds what renames folders below the decorators of a store, nil when nothing does.
func renamer(s ckpt.Store) folderRenamer {
	for {
		if r, ok := s.(folderRenamer); ok {
			return r
		}
		w, ok := s.(interface{ Unwrap() ckpt.Store })
		if !ok {
			return nil
		}
		s = w.Unwrap()
	}
}

func (c *copier) sum(checkpoints int) Copied {
	return Copied{checkpoints, int(c.objects.Load()), c.bytes.Load(), int(c.present.Load())}
}

// all copies objects, several at a time.
func (c *copier) all(ctx context.Context, objects []object) error {
	for _, o := range objects {
		c.total += o.size
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(copyParallel)
	for _, o := range objects {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if err := c.one(gctx, o); err != nil {
				return fmt.Errorf("copy %s: %w", o.from, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// one copies an object unless it is there.
func (c *copier) one(ctx context.Context, o object) error {
	if !o.known {
		var err error
		if o.crc, err = checksum(ctx, c.from, o.from, o.size); err != nil {
			return err
		}
	}
	defer func() {
		if done := c.done.Add(o.size); c.progress != nil {
			c.progress(done, c.total)
		}
	}()
	there, err := c.there(ctx, o)
	if err != nil {
		return err
	}
	if there {
		c.present.Add(1)
		return nil
	}
	if c.complete {
		return fmt.Errorf("%s is missing in what is there already, which is no copy of the source: %w", o.to, ErrOther)
	}
	err = c.to.PutIfAbsent(ctx, o.to, ckpt.Body{ReaderAt: view.ReaderAt(ctx, c.from, o.from, 0, o.size), Size: o.size, CRC64NVME: o.crc})
	if errors.Is(err, ckpt.ErrExists) || errors.Is(err, ckpt.ErrConflict) { // an earlier try may have made it
		if there, err = c.there(ctx, o); err == nil && !there {
			err = ckpt.ErrConflict
		}
	}
	if err == nil {
		c.objects.Add(1)
		c.bytes.Add(o.size)
	}
	return err
}

// there reports whether the target has the object already, and reads it when the store keeps no checksum. Another object of
// that name is an error.
func (c *copier) there(ctx context.Context, o object) (bool, error) {
	info, err := c.to.Stat(ctx, o.to)
	switch {
	case errors.Is(err, ckpt.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case info.Size != o.size:
		return false, fmt.Errorf("%s has %d bytes, not %d: %w", o.to, info.Size, o.size, ErrOther)
	}
	crc := info.CRC64NVME
	if !info.HasCRC {
		if crc, err = checksum(ctx, view.NewPrefix(c.to, ""), o.to, o.size); err != nil {
			return false, err
		}
	}
	if crc != o.crc {
		return false, fmt.Errorf("%s has crc64nvme %s, not %s: %w", o.to, crc, o.crc, ErrOther)
	}
	return true, nil
}

// checksum reads an object for its CRC-64/NVME.
func checksum(ctx context.Context, f view.Files, name string, size int64) (ckpt.CRC, error) {
	h := crc64nvme.New()
	r := io.NewSectionReader(view.ReaderAt(ctx, f, name, 0, size), 0, size)
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, copyPart)); err != nil {
		return 0, err
	}
	return ckpt.CRC(h.Sum64()), nil
}
