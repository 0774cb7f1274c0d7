// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"phalanx/ckpt"
	"phalanx/ckpt/safetensors"
)

// openSafetensorsFile views one file of safetensors.
func openSafetensorsFile(ctx context.Context, f Files, name string) (*View, error) {
	size, err := f.Size(ctx, name)
	if err != nil {
		return nil, err
	}
	file, err := safetensors.ReadRanges(ctx, size, getter(f, name))
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", f.Place(), name, safetensorsError(err))
	}
	v := &View{Format: Safetensors, File: name, files: f, Metadata: file.Metadata, Tensors: make([]Tensor, 0, len(file.Tensors))}
	for _, t := range file.Tensors {
		v.Tensors = append(v.Tensors, Tensor{Name: t.Name, DType: t.DType, DTypeName: t.DTypeName, Shape: t.Shape,
			Shards: []Shard{{Box: Whole(t.Shape), Object: name, At: t.At, Length: t.Length}}})
	}
	v.addAliases(file)
	return v, nil
}

// openSafetensorsFolder views the files of a model.
func openSafetensorsFolder(ctx context.Context, f Files, list []ckpt.Info) (*View, error) {
	set, err := safetensors.OpenFolder(ctx, listed{f, list})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Place(), safetensorsError(err))
	}
	v := &View{Format: Safetensors, Place: f.Place(), files: f, names: slices.Sorted(maps.Keys(set.Files))}
	if set.Indexed {
		v.index = safetensors.IndexName
	}
	for _, w := range set.Tensors {
		t := Tensor{Name: w.Name, DType: w.DType, DTypeName: w.DTypeName, Shape: w.Shape}
		for _, p := range w.Pieces {
			t.Shards = append(t.Shards, Shard{Box: Box{nonNil(p.Offset), nonNil(p.Size)}, Object: p.File, At: p.At, Length: p.Length})
		}
		sortShards(t.Shards)
		v.Tensors = append(v.Tensors, t)
	}
	for _, file := range set.Files {
		v.addAliases(file)
		if len(set.Files) == 1 {
			v.Metadata = file.Metadata
		}
	}
	slices.SortStableFunc(v.Tensors, byName)
	return v, nil
}

// addAliases adds tensors that are stored under another name.
func (v *View) addAliases(file *safetensors.File) {
	aliases := file.Aliases()
	if len(aliases) == 0 {
		return
	}
	places := make(map[string]int, len(v.Tensors))
	for i := range v.Tensors {
		places[v.Tensors[i].Name] = i
	}
	for _, a := range aliases {
		at, known := places[a.Of]
		if _, taken := places[a.Name]; known && !taken {
			t := v.Tensors[at]
			t.Name = a.Name
			places[a.Name] = len(v.Tensors)
			v.Tensors = append(v.Tensors, t)
			v.Notes = append(v.Notes, fmt.Sprintf("tensor %s is tied to %s, which holds its content", a.Name, a.Of))
		}
	}
}

// safetensorsError marks errors for callers that branch.
func safetensorsError(err error) error {
	if errors.Is(err, safetensors.ErrIncomplete) {
		return fmt.Errorf("%w: %w", err, ckpt.ErrIncomplete)
	}
	if errors.Is(err, safetensors.ErrDamaged) {
		return fmt.Errorf("%w: %w", err, ckpt.ErrDamaged)
	}
	if errors.Is(err, safetensors.ErrTooMany) {
		return fmt.Errorf("%w: %w", err, ckpt.ErrFormat)
	}
	return err
}

// isSafetensors reports whether a folder has files of safetensors at its top.
func isSafetensors(list []ckpt.Info) bool {
	return slices.ContainsFunc(list, func(i ckpt.Info) bool {
		return i.Key == safetensors.IndexName || strings.HasSuffix(i.Key, safetensors.Suffix) && !strings.Contains(i.Key, "/")
	})
}

// listed is what package safetensors reads a folder by.
type listed struct {
	files Files
	list  []ckpt.Info
}

// Files lists the files with their sizes.
func (l listed) Files(context.Context) (map[string]int64, error) {
	sizes := make(map[string]int64, len(l.list))
	for _, i := range l.list {
		sizes[i.Key] = i.Size
	}
	return sizes, nil
}

// Get reads a range of a file.
func (l listed) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	return getter(l.files, name)(ctx, off, n)
}

func getter(f Files, name string) safetensors.Get {
	return func(ctx context.Context, off, n int64) ([]byte, error) {
		p := make([]byte, n)
		return p, f.Read(ctx, name, off, p)
	}
}
