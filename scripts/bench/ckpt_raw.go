// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"phalanx/ckpt"
	"phalanx/ckpt/fs"
)

func openFolder(folder string) (ckpt.Store, error) { return fs.New(folder) }

// raw moves the bytes of a state to and from a store's place with nothing in between: no checksum, no format, no names that
// appear whole. Objects have the size of ours, and as many are under way at once.
type raw struct {
	store  ckpt.Store
	place  string
	source *memoryState
}

func newRaw(store ckpt.Store, place string, source *memoryState) *raw {
	return &raw{store, filepath.Join(place, "raw"), source}
}

func (r *raw) name(tensor int, off int64) string {
	return filepath.Join(r.place, fmt.Sprintf("%d-%d", tensor, off))
}

// write puts each piece into a file of its own and syncs it and the folder.
func (r *raw) write(context.Context) error {
	if err := os.MkdirAll(r.place, 0o755); err != nil {
		return err
	}
	err := eachPiece(r.source, ckpt.DefaultObjectBytes, puts(), func(tensor int, off, end int64) error {
		f, err := os.Create(r.name(tensor, off))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(r.source.data[tensor][off:end]); err != nil {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		return err
	}
	d, err := os.Open(r.place)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// read reads them into memory that is there.
func (r *raw) read(_ context.Context, into *memoryState) error {
	return eachPiece(into, ckpt.DefaultObjectBytes, puts(), func(tensor int, off, end int64) error {
		f, err := os.Open(r.name(tensor, off))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.ReadAt(into.data[tensor][off:end], 0)
		return err
	})
}

func (r *raw) remove(context.Context) error { return os.RemoveAll(r.place) }
