// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"fmt"

	"phalanx/ckpt/pickle"
)

// formatVersion is the version that PyTorch writes.
const formatVersion = "1.0.0"

// Encode writes the index so that every PyTorch from 2.6 on reads it: a pickle of protocol 4 with five properties for each
// tensor. The same Metadata gives the same bytes, in which is no time, host or path. Names without a path in Paths get
// themselves as their path, as the names of a flat dict have. Version, PropertyItems and Foreign are not looked at.
//
// A chunk without elements is left out when it has no record, for PyTorch may want to read it, or when it has the offset of
// another chunk, for PyTorch finds records by their offsets. What DecodeMetadata would refuse is an error.
func (m *Metadata) Encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("dcp: %s cannot be written: %w", MetadataName, err)
	}
	var values, records, planner pickle.Dict
	for i := range m.Tensors {
		t := &m.Tensors[i]
		dtype := pickle.TorchName(t.DType)
		if dtype == "" {
			dtype = t.DTypeName
		}
		if !isDTypeName(dtype) {
			return nil, fmt.Errorf("dcp: %s cannot be written: PyTorch has no dtype %q (tensor %q)", MetadataName, dtype, t.Name)
		}
		list := &pickle.List{}
		for n, c := range writtenChunks(t.Chunks) {
			offset, size := torchSize(c.Offset), torchSize(c.Size)
			list.Items = append(list.Items, instance(classChunk, "offsets", offset, "sizes", size))
			add(&records, instance(classIndex, "fqn", t.Name, "index", n, "offset", offset), storageValue(c.File, c.At, c.Length, c.Transforms))
		}
		add(&values, t.Name, instance(classTensor, "properties", properties(dtype, t.RequiresGrad), "size", torchSize(t.Shape), "chunks", list))
		add(&planner, t.Name, m.path(t.Name))
	}
	for _, o := range m.Objects {
		add(&values, o.Name, instance(classBytes))
		add(&records, instance(classIndex, "fqn", o.Name, "index", nil, "offset", nil), storageValue(o.File, o.At, o.Length, o.Transforms))
		add(&planner, o.Name, m.path(o.Name))
	}
	b, err := pickle.Encode(instance(classMetadata, "state_dict_metadata", &values, "planner_data", &planner,
		"storage_data", &records, "storage_meta", nil, "version", formatVersion))
	if err != nil {
		return nil, fmt.Errorf("dcp: %s cannot be written: %w", MetadataName, err)
	}
	return b, nil
}

// writtenChunks leaves out chunks without elements that have no record, or the offset of another chunk.
func writtenChunks(chunks []Chunk) []Chunk {
	taken := map[string]bool{}
	for _, c := range chunks {
		if c.Elements() > 0 {
			taken[offsetKey(c.Offset)] = true
		}
	}
	written := make([]Chunk, 0, len(chunks))
	for _, c := range chunks {
		if key := offsetKey(c.Offset); c.Elements() > 0 || c.File != "" && !taken[key] {
			taken[key] = true
			written = append(written, c)
		}
	}
	return written
}

// path is where a value lies in nested dicts and lists.
func (m *Metadata) path(name string) *pickle.Tuple {
	if keys := m.Paths[name]; len(keys) > 0 {
		return &pickle.Tuple{Items: keys}
	}
	return &pickle.Tuple{Items: []any{name}}
}

func add(d *pickle.Dict, key, value any) {
	d.Pairs = append(d.Pairs, pickle.Pair{Key: key, Value: value})
}

// instance is an object of a class of the index, with fields as names and values in turn. An object without any has no
// state, as Python writes it.
func instance(class string, fields ...any) *pickle.Object {
	o := &pickle.Object{Class: &pickle.Global{Module: modulesOf(class)[0], Name: class}, Args: &pickle.Tuple{}, New: true}
	if len(fields) > 0 {
		state := &pickle.Dict{}
		for i := 0; i < len(fields); i += 2 {
			add(state, fields[i], fields[i+1])
		}
		o.State, o.HasState = state, true
	}
	return o
}

func storageValue(file string, at, length int64, transforms []string) *pickle.Object {
	o := instance(classStorage, "relative_path", file, "offset", at, "length", length)
	if len(transforms) > 0 {
		list := &pickle.List{}
		for _, t := range transforms {
			list.Items = append(list.Items, t)
		}
		add(o.State.(*pickle.Dict), "transform_descriptors", list)
	}
	return o
}

// properties are the five that all versions of PyTorch read: dtype, layout, requires_grad, memory format, pinned.
func properties(dtype string, requiresGrad bool) *pickle.Object {
	o := instance(classProperties)
	layout := &pickle.Object{Class: &pickle.Global{Module: "torch.serialization", Name: "_get_layout"}, Args: &pickle.Tuple{Items: []any{"torch.strided"}}}
	format := &pickle.Object{Class: &pickle.Global{Module: metadataModules[0], Name: classFormat}, Args: &pickle.Tuple{Items: []any{0}}}
	o.State, o.HasState = &pickle.Tuple{Items: []any{&pickle.Global{Module: "torch", Name: dtype}, layout, requiresGrad, format, false}}, true
	return o
}

func torchSize(n []int) *pickle.Object {
	tuple := &pickle.Tuple{}
	for _, v := range n {
		tuple.Items = append(tuple.Items, v)
	}
	return &pickle.Object{Class: &pickle.Global{Module: "torch", Name: "Size"}, Args: &pickle.Tuple{Items: []any{tuple}}}
}
