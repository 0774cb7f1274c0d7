// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// held is a chunk with what its container put around it, where an object has it.
type held struct {
	at, end       int64
	state, tensor int
	chunk         ManifestChunk
}

// records lists what each object holds, by place.
func (cp *Checkpoint) records() map[string][]held {
	cp.once.Do(func() {
		cp.held = map[string][]held{}
		for i, st := range cp.states {
			f := frame{st.Manifest.Container}
			for k := range st.Manifest.Tensors {
				for _, content := range st.Manifest.Tensors[k].contents() {
					for _, c := range content.Chunks {
						at, length := f.enclosed(c)
						cp.held[c.Object] = append(cp.held[c.Object], held{at, at + length, i, k, c})
					}
				}
			}
		}
		for _, spans := range cp.held {
			slices.SortFunc(spans, func(a, b held) int { return cmp.Compare(a.at, b.at) })
		}
	})
	return cp.held
}

// ObjectSize is the size of a data object of the attempt; ErrNotFound when the checkpoint has none of that name.
func (cp *Checkpoint) ObjectSize(name string) (int64, error) {
	for _, p := range cp.parts {
		for _, o := range p.Objects {
			if o.Name == name {
				return o.Size, nil
			}
		}
	}
	return 0, fmt.Errorf("checkpoint %d of %s has no object %.80q: %w", cp.Commit.Number, cp.Commit.Job, name, ErrNotFound)
}

// ReadRecord reads the chunk at a byte of an object, with what its container put around it, after verifying all of it. It gives the
// first byte's place. Between chunks there is nothing to read: zeros up to the next one are given, which nobody has to verify.
func (cp *Checkpoint) ReadRecord(ctx context.Context, object string, at int64) (from int64, content []byte, err error) {
	spans := cp.records()[object]
	i, found := slices.BinarySearchFunc(spans, at, func(h held, at int64) int {
		switch {
		case h.end <= at:
			return -1
		case h.at > at:
			return 1
		}
		return 0
	})
	if !found {
		size, err := cp.ObjectSize(object)
		if err != nil {
			return 0, nil, err
		}
		end := size
		if i < len(spans) {
			end = spans[i].at
		}
		if at < 0 || at >= end {
			return 0, nil, fmt.Errorf("byte %d of %s, which has %d: %w", at, object, size, ErrNotFound)
		}
		return at, make([]byte, end-at), nil
	}
	h := spans[i]
	st := cp.states[h.state]
	var buffer []byte
	if _, err := st.readFramed(ctx, st.Manifest.Tensors[h.tensor].TensorInfo, h.chunk, &buffer); err != nil {
		return 0, nil, fmt.Errorf("read checkpoint: %w", err)
	}
	return h.at, buffer[:h.end-h.at], nil
}

// ReadIndex reads PyTorch's index of a checkpoint, verified; ErrNotFound when its container has none.
func (cp *Checkpoint) ReadIndex(ctx context.Context) ([]byte, error) {
	m := cp.Commit.Metadata
	if m == nil {
		return nil, fmt.Errorf("checkpoint %d of %s is of container %s, which has no %s: %w", cp.Commit.Number, cp.Commit.Job, cp.Commit.Container, MetadataName, ErrNotFound)
	}
	key := cp.attempt.Folder() + "/" + m.Name
	b, err := readWhole(ctx, cp.store, key, m.Size)
	if err == nil && (int64(len(b)) != m.Size || sha256Hex(b) != m.SHA256) {
		err = fmt.Errorf("%s: crc64nvme %s, expected %s; run: phalanx ckpt verify: %w", key, Checksum(b), m.CRC64NVME, ErrCorrupt)
	}
	return b, err
}
