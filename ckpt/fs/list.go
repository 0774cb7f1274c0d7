// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"phalanx/ckpt"
)

// pageLimit bounds one answer, so that a listing of millions of objects needs bounded memory.
const pageLimit = 1000

// List implements ckpt.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]ckpt.Info, error) {
	if limit <= 0 || limit > pageLimit {
		limit = pageLimit
	}
	w := walk{store: s, prefix: prefix, after: after, limit: limit}
	if err := w.dir(ctx, ""); err != nil && !errors.Is(err, errFull) {
		return nil, err
	}
	return w.found, nil
}

var errFull = errors.New("page is full")

type walk struct {
	store         *Store
	prefix, after string
	limit         int
	found         []ckpt.Info
}

// dir visits one directory; at is its key with a slash at the end, or empty for the root.
func (w *walk) dir(ctx context.Context, at string) error {
	if err := ctx.Err(); err != nil {
		return w.store.explain("list", w.prefix, err)
	}
	path := filepath.Join(w.store.root, filepath.FromSlash(at))
	entries, err := os.ReadDir(path)
	if errors.Is(err, iofs.ErrNotExist) && at != "" {
		return nil // removed meanwhile
	}
	if err != nil {
		return w.store.explain("list", path, err)
	}
	// Keys sort by bytes: a directory sorts as its name and a slash, so "a-b" comes before "a/b".
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), ".") && (e.Name() != ckpt.MetadataName || at == ""):
		case e.IsDir():
			names = append(names, e.Name()+"/")
		default:
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.visit(ctx, at+name); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) visit(ctx context.Context, key string) error {
	if strings.HasSuffix(key, "/") {
		outside := !strings.HasPrefix(key, w.prefix) && !strings.HasPrefix(w.prefix, key)
		// All keys below are smaller than after when the directory is, unless after lies inside it.
		before := key < w.after && !strings.HasPrefix(w.after, key)
		if outside || before {
			return nil
		}
		return w.dir(ctx, key)
	}
	if !strings.HasPrefix(key, w.prefix) || key <= w.after || ckpt.ValidKey(key) != nil {
		return nil
	}
	st, err := os.Stat(filepath.Join(w.store.root, filepath.FromSlash(key)))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return w.store.explain("list", key, err)
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	w.found = append(w.found, info(key, st))
	if len(w.found) == w.limit {
		return errFull
	}
	return nil
}
