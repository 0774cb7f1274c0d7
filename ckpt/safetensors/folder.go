// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Folder is a place with files that are read in ranges: a local folder, or the keys below a prefix of an object store.
type Folder interface {
	// Files lists the files of the folder and of those below it, by slash path relative to it, with their sizes in bytes.
	Files(ctx context.Context) (map[string]int64, error)
	// Get reads n bytes of a file from offset off; it may return fewer only where the file ends.
	Get(ctx context.Context, name string, off, n int64) ([]byte, error)
}

// Piece is a box of a tensor with the place of its bytes.
type Piece struct {
	File string
	// Offset and Size have one number for each dimension of the whole tensor. The bytes are the box, row-major.
	Offset, Size []int
	At, Length   int64
}

// Whole is a tensor as a user sees it, however many files hold it.
type Whole struct {
	Name, DType, DTypeName string // as in Tensor
	Shape                  []int
	Pieces                 []Piece // by Offset; together they cover every element once
}

// Readable is Tensor.Readable.
func (t Whole) Readable() error {
	return Tensor{Name: t.Name, DType: t.DType, DTypeName: t.DTypeName}.Readable()
}

// Set is a model in several files.
type Set struct {
	// Files has the header of each file that was read.
	Files map[string]*File
	// Tensors are in the order of their names.
	Tensors []Whole
	// Indexed: model.safetensors.index.json said which files there are. Boxes: at least one file has boxes of tensors.
	Indexed, Boxes bool
}

// OpenFolder reads the headers of all files of a model and puts its tensors together, see "Folders" in the package comment.
// It fails with ErrIncomplete when the names of files say, without an index, that there are more of them, and with ErrDamaged for a file that is missing or broken, a tensor that is not where the index says, one that two files
// hold, and boxes that leave a part of a tensor out or have it twice.
func OpenFolder(ctx context.Context, folder Folder) (*Set, error) {
	sizes, err := folder.Files(ctx)
	if err != nil {
		return nil, err
	}
	set := &Set{Files: map[string]*File{}}
	var index Index
	var names []string
	if size, ok := sizes[IndexName]; ok {
		set.Indexed = true
		if index, err = readIndex(ctx, folder, size); err != nil {
			return nil, err
		}
		names = slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))
	} else {
		for _, name := range slices.Sorted(maps.Keys(sizes)) {
			if strings.HasSuffix(name, Suffix) && !strings.Contains(name, "/") {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("%w: the folder has neither %s nor a file %s", ErrDamaged, IndexName, "*"+Suffix)
		}
		if err := complete(names); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		size, ok := sizes[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s is missing, %s names it", ErrDamaged, name, IndexName)
		}
		f, err := ReadRanges(ctx, size, func(ctx context.Context, off, n int64) ([]byte, error) { return folder.Get(ctx, name, off, n) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		set.Files[name] = f
	}
	return set, set.gather(names, index)
}

func readIndex(ctx context.Context, folder Folder, size int64) (Index, error) {
	if size > MaxIndex {
		return Index{}, fmt.Errorf("%w: %s has %d bytes, more than the limit of %d", ErrDamaged, IndexName, size, MaxIndex)
	}
	content, err := exactly(ctx, func(ctx context.Context, off, n int64) ([]byte, error) { return folder.Get(ctx, IndexName, off, n) }, 0, size)
	if err != nil {
		return Index{}, fmt.Errorf("%s: %w", IndexName, err)
	}
	return DecodeIndex(content)
}

// gather turns the tensors of the files into those of the set.
func (s *Set) gather(names []string, index Index) error {
	wholes := map[string]*Whole{}
	missing := maps.Clone(index.WeightMap)
	for _, name := range names {
		offsets, err := s.Files[name].Offsets()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.Boxes = s.Boxes || offsets != nil
		for _, t := range s.Files[name].Tensors {
			file, listed := index.WeightMap[t.Name]
			if file == name {
				delete(missing, t.Name)
			}
			if offsets == nil && listed && file != name {
				continue // the index decides which of two files counts
			}
			if err := add(wholes, name, t, offsets); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		return fmt.Errorf("%w: tensor %.200q is not in %s, where %s has it", ErrDamaged, name, missing[name], IndexName)
	}
	for _, name := range slices.Sorted(maps.Keys(wholes)) {
		w := wholes[name]
		slices.SortStableFunc(w.Pieces, func(a, b Piece) int {
			return cmp.Or(slices.Compare(a.Offset, b.Offset), slices.Compare(a.Size, b.Size), cmp.Compare(a.File, b.File))
		})
		if err := w.covered(); err != nil {
			return err
		}
		s.Tensors = append(s.Tensors, *w)
	}
	return nil
}

// add makes a tensor of a file a piece of the whole.
func add(wholes map[string]*Whole, file string, t Tensor, offsets map[string][]int) error {
	w, known := wholes[t.Name]
	switch {
	case !known:
		w = &Whole{Name: t.Name, DType: t.DType, DTypeName: t.DTypeName, Shape: make([]int, len(t.Shape))}
		wholes[t.Name] = w
	case offsets == nil:
		return fmt.Errorf("%w: tensor %.200q is in %s and in %s; without %s the folder does not say which one counts", ErrDamaged, t.Name, w.Pieces[0].File, file, IndexName)
	case w.DTypeName != t.DTypeName || len(w.Shape) != len(t.Shape):
		return fmt.Errorf("%w: tensor %.200q has %s in %d dimensions in %s, and %s in %d dimensions in %s", ErrDamaged,
			t.Name, w.DTypeName, len(w.Shape), w.Pieces[0].File, t.DTypeName, len(t.Shape), file)
	}
	p := Piece{File: file, Offset: make([]int, len(t.Shape)), Size: t.Shape, At: t.At, Length: t.Length}
	if offsets != nil {
		p.Offset = offsets[t.Name]
	}
	for d := range w.Shape {
		w.Shape[d] = max(w.Shape[d], p.Offset[d]+p.Size[d])
	}
	w.Pieces = append(w.Pieces, p)
	return nil
}
