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
	if err := m.writable(); err != nil {
		return nil, fmt.Errorf("dcp: %s cannot be written: %w", MetadataName, err)
	}
	w := &writer{}
	w.object(classMetadata)
	w.Dict()
	w.Mark()
	w.String("state_dict_metadata")
	w.values(m)
	w.String("planner_data")
	w.planner(m)
	w.String("storage_data")
	w.storage(m)
	w.String("storage_meta")
	w.None()
	w.String("version")
	w.String(formatVersion)
	w.SetItems()
	w.Build()
	return w.Finish(), nil
}

// writable is validate, and refuses what has no form in the file.
func (m *Metadata) writable() error {
	if err := m.validate(); err != nil {
		return err
	}
	for i := range m.Tensors {
		if t := &m.Tensors[i]; !isDTypeName(t.torchName()) {
			return fmt.Errorf("PyTorch has no dtype %q (tensor %q)", t.torchName(), t.Name)
		}
	}
	for name, keys := range m.Paths {
		for _, key := range keys {
			switch key.(type) {
			case string, int:
			default:
				return fmt.Errorf("the path of %q has a %T, which is neither a key (string) nor an index (int)", name, key)
			}
		}
	}
	return nil
}

// torchName is what PyTorch calls the dtype.
func (t *Tensor) torchName() string {
	if name := pickle.TorchName(t.DType); name != "" {
		return name
	}
	return t.DTypeName
}

// written are the chunks that Encode writes.
func (t *Tensor) written() []Chunk {
	taken := map[string]bool{}
	empty := 0
	for _, c := range t.Chunks {
		if c.Elements() == 0 {
			empty++
		}
	}
	if empty == 0 {
		return t.Chunks
	}
	for _, c := range t.Chunks {
		if c.Elements() > 0 {
			taken[offsetKey(c.Offset)] = true
		}
	}
	written := make([]Chunk, 0, len(t.Chunks))
	for _, c := range t.Chunks {
		if key := offsetKey(c.Offset); c.Elements() > 0 || c.File != "" && !taken[key] {
			taken[key] = true
			written = append(written, c)
		}
	}
	return written
}

// writer writes the parts of an index. Each method puts one value, as those of pickle.Writer do.
type writer struct {
	pickle.Writer
	constants      bool // the two below are in the memo
	layout, format int
}

// object puts a new object of a class, without its state.
func (w *writer) object(class string) {
	w.Global(modulesOf(class)[0], class)
	w.Tuple(0)
	w.New()
}

// groupSize is how many pairs are set at a time: as in Python, so that its stack stays small.
const groupSize = 1000

// dict puts a dict of n pairs, which pair puts.
func (w *writer) dict(n int, pair func(i int)) {
	w.Dict()
	w.pairs(n, pair)
}

// pairs sets n pairs in the dict on the stack.
func (w *writer) pairs(n int, pair func(i int)) {
	for from := 0; from < n; from += groupSize {
		w.Mark()
		for i := from; i < min(from+groupSize, n); i++ {
			pair(i)
		}
		w.SetItems()
	}
}

// values puts what is known of each tensor and object, by name.
func (w *writer) values(m *Metadata) {
	w.dict(len(m.Tensors)+len(m.Objects), func(i int) {
		if i >= len(m.Tensors) {
			w.String(m.Objects[i-len(m.Tensors)].Name)
			w.object(classBytes)
			return
		}
		t := &m.Tensors[i]
		w.String(t.Name)
		w.object(classTensor)
		w.Dict()
		w.Mark()
		w.String("properties")
		w.properties(t)
		w.String("size")
		w.size(t.Shape)
		w.String("chunks")
		w.chunks(t.written())
		w.SetItems()
		w.Build()
	})
}

// properties puts the five that all versions of PyTorch read: dtype, layout, requires_grad, memory format, pinned.
func (w *writer) properties(t *Tensor) {
	w.object(classProperties)
	w.Mark()
	w.Global("torch", t.torchName())
	if w.constants {
		w.Get(w.layout)
		w.Bool(t.RequiresGrad)
		w.Get(w.format)
	} else {
		w.Global("torch.serialization", "_get_layout")
		w.String("torch.strided")
		w.Tuple(1)
		w.Call()
		w.layout = w.Memoize()
		w.Bool(t.RequiresGrad)
		w.Global(modulesOf(classFormat)[0], classFormat)
		w.Int(0)
		w.Tuple(1)
		w.Call()
		w.format = w.Memoize()
		w.constants = true
	}
	w.Bool(false)
	w.MarkedTuple()
	w.Build()
}

func (w *writer) chunks(chunks []Chunk) {
	w.List()
	for len(chunks) > 0 {
		n := min(len(chunks), groupSize)
		w.Mark()
		for _, c := range chunks[:n] {
			w.object(classChunk)
			w.Dict()
			w.Mark()
			w.String("offsets")
			w.size(c.Offset)
			w.String("sizes")
			w.size(c.Size)
			w.SetItems()
			w.Build()
		}
		w.Appends()
		chunks = chunks[n:]
	}
}

// size puts a torch.Size.
func (w *writer) size(n []int) {
	w.Global("torch", "Size")
	w.Ints(n)
	w.Tuple(1)
	w.Call()
}

// planner puts the path of each name, by name.
func (w *writer) planner(m *Metadata) {
	w.dict(len(m.Tensors)+len(m.Objects), func(i int) {
		var name string
		if i < len(m.Tensors) {
			name = m.Tensors[i].Name
		} else {
			name = m.Objects[i-len(m.Tensors)].Name
		}
		w.String(name)
		w.Mark()
		keys := m.Paths[name]
		if len(keys) == 0 {
			keys = []any{name}
		}
		for _, key := range keys {
			switch key := key.(type) {
			case string:
				w.String(key)
			case int:
				w.Int(int64(key))
			}
		}
		w.MarkedTuple()
	})
}

// storage puts where the record of each chunk and object is.
func (w *writer) storage(m *Metadata) {
	w.Dict()
	for i := range m.Tensors {
		t := &m.Tensors[i]
		chunks := t.written()
		w.pairs(len(chunks), func(n int) {
			c := chunks[n]
			w.index(t.Name, func() { w.Int(int64(n)) }, func() { w.size(c.Offset) })
			w.place(c.File, c.At, c.Length, c.Transforms)
		})
	}
	w.pairs(len(m.Objects), func(n int) {
		o := m.Objects[n]
		w.index(o.Name, w.None, w.None)
		w.place(o.File, o.At, o.Length, o.Transforms)
	})
}

// index puts a key of storage_data. Its number is a hint for PyTorch where in the list of chunks to look first.
func (w *writer) index(name string, number, offset func()) {
	w.object(classIndex)
	w.Dict()
	w.Mark()
	w.String("fqn")
	w.String(name)
	w.String("index")
	number()
	w.String("offset")
	offset()
	w.SetItems()
	w.Build()
}

// place puts a value of storage_data.
func (w *writer) place(file string, at, length int64, transforms []string) {
	w.object(classStorage)
	w.Dict()
	w.Mark()
	w.String("relative_path")
	w.String(file)
	w.String("offset")
	w.Int(at)
	w.String("length")
	w.Int(length)
	if len(transforms) > 0 {
		w.String("transform_descriptors")
		w.List()
		w.Mark()
		for _, t := range transforms {
			w.String(t)
		}
		w.Appends()
	}
	w.SetItems()
	w.Build()
}
