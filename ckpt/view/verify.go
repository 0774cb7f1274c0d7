// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
)

// Chunk is a stored range that verification reads: of a tensor's shard, or of an object that is no tensor.
type Chunk struct {
	Object     string `json:"object"` // name below the view's place
	At         int64  `json:"at"`
	Length     int64  `json:"size_bytes"`
	Sum        string `json:"checksum,omitempty"`
	tensor     int    // -1: of an object
	shard      int
	coordinate int
}

// Chunks lists everything that is stored, each range once, in the order in which objects hold it.
func (v *View) Chunks() []Chunk {
	var all []Chunk
	for i := range v.Tensors {
		for k := range v.Tensors[i].Shards {
			s := &v.Tensors[i].Shards[k]
			all = append(all, Chunk{s.Object, s.At, s.Length, s.Sum.String(), i, k, s.Coordinate})
		}
	}
	for k, o := range v.Objects {
		if o.Length > 0 {
			all = append(all, Chunk{o.Object, o.At, o.Length, o.Sum.String(), -1, k, o.Coordinate})
		}
	}
	slices.SortStableFunc(all, compareChunks)
	return slices.CompactFunc(all, func(a, b Chunk) bool { return compareChunks(a, b) == 0 && a.Length == b.Length })
}

func compareChunks(a, b Chunk) int {
	if c := strings.Compare(a.Object, b.Object); c != 0 {
		return c
	}
	return int(min(max(a.At-b.At, -1), 1))
}

// Checked is what verification found of a chunk.
type Checked struct {
	Chunk
	// Summed: the chunk has a checksum, and it was compared.
	Summed bool
	Err    error // nil: nothing is wrong; a *DamageError otherwise
}

// Verify reads chunks, several at a time, and compares their checksums and structure. found is called for each, on one goroutine
// at a time and in any order; when it returns an error, that ends the verification. The error is about reaching the store, or
// found's: damage is handed to found.
func (v *View) Verify(ctx context.Context, chunks []Chunk, found func(Checked) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	var mu sync.Mutex // held while found runs
	for _, c := range chunks {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			summed, err := v.check(gctx, &c)
			var damage *DamageError
			if err != nil && !errors.As(err, &damage) && !errors.Is(err, ckpt.ErrFormat) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if gctx.Err() != nil {
				return gctx.Err()
			}
			return found(Checked{c, summed, err})
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return ctx.Err()
}

// check reads one chunk.
func (v *View) check(ctx context.Context, c *Chunk) (summed bool, err error) {
	if c.tensor < 0 {
		return v.checkObject(ctx, &v.Objects[c.shard])
	}
	s, err := v.located(ctx, c.tensor, c.shard)
	if err != nil {
		return false, err
	}
	return s.Sum.Kind != NoSum, v.checkSum(ctx, c.tensor, &s)
}

// checkObject reads what is no tensor: its archive with the checksum of the pickle in it. It executes nothing.
func (v *View) checkObject(ctx context.Context, o *Object) (bool, error) {
	if o.Sum.Kind != NoSum {
		_, err := v.ReadObject(ctx, o)
		return true, err
	}
	if len(o.Transforms) > 0 || v.Format != DCP {
		return false, nil
	}
	reader := &blocks{ra: ReaderAt(ctx, v.files, o.Object, o.At, o.Length), size: o.Length}
	if _, err := dcp.ReadObject(reader, o.Length); err != nil {
		err = reader.explain(damagedFormat(err))
		if ctx.Err() != nil || !errors.Is(err, ckpt.ErrCorrupt) && !errors.Is(err, ckpt.ErrNotFound) && !errors.Is(err, ckpt.ErrFormat) {
			return false, err
		}
		return false, &DamageError{Object: o.Object, At: o.At, Length: o.Length, Tensor: o.Name, Err: err}
	}
	return true, nil
}

// ReadObject reads the bytes of what is no tensor, and verifies them where they have a checksum: else they are what they are.
// Damage is a *DamageError.
func (v *View) ReadObject(ctx context.Context, o *Object) ([]byte, error) {
	damage := &DamageError{Object: o.Object, At: o.At, Length: o.Length, Tensor: o.Name, Coordinate: o.Coordinate, Want: o.Sum, Got: o.Sum, Err: ckpt.ErrCorrupt}
	b := make([]byte, o.Length)
	switch err := v.files.Read(ctx, o.Object, o.At, b); {
	case errors.Is(err, ckpt.ErrCorrupt), errors.Is(err, ckpt.ErrNotFound):
		damage.Err = err
		return nil, damage
	case err != nil:
		return nil, err
	}
	if h := o.Sum.start(); h != nil {
		h.Write(b)
		if damage.Got = o.Sum.of(h); damage.Got != o.Sum {
			return nil, damage
		}
	}
	return b, nil
}

// Lost lists the names of the tensors that a damaged range is a part of.
func (v *View) Lost(object string, at, length int64) []string {
	stored := v.storedIn(object)
	// No range that begins before at-longest reaches to at.
	first, _ := slices.BinarySearchFunc(stored.spans, at-stored.longest, func(s span, at int64) int { return cmp.Compare(s.at, at) })
	lost := map[int]bool{}
	for _, s := range stored.spans[first:] {
		if s.at >= at+length {
			break
		}
		if at < s.at+s.length {
			lost[s.tensor] = true
		}
	}
	var names []string
	for _, i := range slices.Sorted(maps.Keys(lost)) {
		names = append(names, v.Tensors[i].Name)
	}
	return names
}

// spans are the stored ranges of an object in the order of their first bytes, and the length of the longest.
type spans struct {
	spans   []span
	longest int64
}

type span struct {
	at, length int64
	tensor     int
}

// storedIn lists what is stored in an object. All objects are listed at the first call: damage may be everywhere.
func (v *View) storedIn(object string) spans {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stored == nil {
		v.stored = map[string]spans{}
		for i := range v.Tensors {
			for k := range v.Tensors[i].Shards {
				s := &v.Tensors[i].Shards[k]
				in := v.stored[s.Object]
				v.stored[s.Object] = spans{append(in.spans, span{s.At, s.Length, i}), max(in.longest, s.Length)}
			}
		}
		for _, in := range v.stored {
			slices.SortFunc(in.spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.tensor, b.tensor)) })
		}
	}
	return v.stored[object]
}

// Heads compares the sizes of all objects with what the tensors say that they hold, and reads nothing of them. Damage is
// handed to found.
func (v *View) Heads(ctx context.Context, found func(*DamageError)) (objects int, err error) {
	ends := map[string]int64{}
	for _, c := range v.Chunks() {
		ends[c.Object] = max(ends[c.Object], c.At+c.Length)
	}
	for object, end := range ends {
		size, err := v.files.Size(ctx, object)
		switch {
		case errors.Is(err, ckpt.ErrNotFound):
			found(&DamageError{Object: object, Length: end, Err: err})
		case err != nil:
			return objects, err
		case v.Format == Raw && size > end: // a file of raw is a tensor and nothing else
			found(&DamageError{Object: object, At: end, Length: size - end, Err: fmt.Errorf("%s has %d bytes, its content ends at %d: %w", object, size, end, ckpt.ErrDamaged)})
		case size < end:
			found(&DamageError{Object: object, At: size, Length: end - size, Err: fmt.Errorf("%s has %d bytes, its content ends at %d: %w", object, size, end, ckpt.ErrDamaged)})
		}
		objects++
	}
	return objects, nil
}
