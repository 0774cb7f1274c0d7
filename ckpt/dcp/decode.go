// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"fmt"
	"slices"

	"phalanx/ckpt/pickle"
)

// DecodeMetadata reads an index: the whole content of a .metadata file, or of the __RANK.metadata of a rank that saved for
// itself, of any version of PyTorch. It executes nothing. Zero limits are the defaults of package pickle.
//
// What is returned is consistent by itself: names are unique, chunks lie inside their tensors, two chunks of a tensor never
// begin at the same offset (but for chunks without elements), and each chunk with elements and each object has a record
// inside the folder. Whether chunks overlap or cover their tensors is not looked at. Errors of the pickle are those of
// pickle.Decode, such as *pickle.UnknownGlobalError; others wrap ErrMetadata and name the tensor.
//
// Globals that are not part of the format are an error where the format has its own classes, and elsewhere are listed in
// Metadata.Foreign; some are refused anywhere (pickle.Dangerous).
func DecodeMetadata(data []byte, limits pickle.Limits) (*Metadata, error) {
	doc, err := pickle.Decode(data, pickle.Policy{KnownIn: known, Foreign: true}, limits)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", MetadataName, err)
	}
	if doc.Length != int64(len(data)) {
		return nil, fmt.Errorf("%s: %w: %d bytes follow its end", MetadataName, ErrMetadata, int64(len(data))-doc.Length)
	}
	r := reader{m: &Metadata{}, records: map[key]*place{}}
	for _, g := range doc.Foreign {
		r.m.Foreign = append(r.m.Foreign, ForeignGlobal{Module: g.Module, Name: g.Name, Offset: g.Offset})
	}
	if err := r.root(doc.Value); err != nil {
		return nil, fmt.Errorf("%s: %w", MetadataName, err)
	}
	if err := r.m.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", MetadataName, err)
	}
	return r.m, nil
}

// reader fills a Metadata from the values of a pickle.
type reader struct {
	m       *Metadata
	records map[key]*place
}

// place is where a record is.
type place struct {
	file       string
	at, length int64
	transforms []string
	used       bool
}

// key is what PyTorch looks a record up by: the name, and for tensors the offset of the chunk. A long name that many chunks
// share stays one string.
type key struct {
	name, offset string
	tensor       bool
}

func recordKey(name string, offset []int, tensor bool) key {
	if !tensor {
		return key{name: name}
	}
	return key{name, offsetKey(offset), true}
}

// wrong is the error for a value that stands where another kind of value has to be. A global that is not known is named
// as such: it is the reason.
func wrong(v any, what string) error {
	var g *pickle.Global
	switch v := v.(type) {
	case *pickle.Global:
		g = v
	case *pickle.Object:
		g = v.Global()
	}
	if g != nil && !g.Known {
		return fmt.Errorf("%s: %w", what, &pickle.UnknownGlobalError{Module: g.Module, Name: g.Name, Offset: g.Offset})
	}
	return fmt.Errorf("%w: %s is %s", ErrMetadata, what, pickle.Describe(v))
}

// object returns a value as the state of a known class.
func object(v any, class, what string) (any, error) {
	o, ok := v.(*pickle.Object)
	if !ok || !o.Known() || o.Global().Name != class || !slices.Contains(modulesOf(class), o.Global().Module) {
		return nil, wrong(v, what)
	}
	return o.State, nil
}

// fields returns a value as the fields of an object of a known class.
func fields(v any, class, what string) (*pickle.Dict, error) {
	state, err := object(v, class, what)
	if err != nil {
		return nil, err
	}
	d, ok := state.(*pickle.Dict)
	if !ok {
		return nil, wrong(state, "the state of "+what)
	}
	return d, nil
}

// pairs returns a value as the pairs of a dict, in order. None has none.
func pairs(v any, what string) ([]pickle.Pair, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case *pickle.Dict:
		return v.Pairs, nil
	case *pickle.Object:
		if v.Is("collections", "OrderedDict") {
			return v.Pairs, nil
		}
	}
	return nil, wrong(v, what)
}

func (r *reader) root(v any) error {
	d, err := fields(v, classMetadata, "the root")
	if err != nil {
		return err
	}
	version, _ := d.Get("version")
	r.m.Version, _ = version.(string)
	storage, _ := d.Get("storage_data")
	if err := r.storage(storage); err != nil {
		return err
	}
	values, ok := d.Get("state_dict_metadata")
	if !ok {
		return fmt.Errorf("%w: it has no state_dict_metadata", ErrMetadata)
	}
	entries, err := pairs(values, "state_dict_metadata")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := e.Key.(string)
		if !ok {
			return wrong(e.Key, "a name in state_dict_metadata")
		}
		if err := r.value(name, e.Value); err != nil {
			return err
		}
	}
	planner, _ := d.Get("planner_data")
	r.m.Paths = paths(planner)
	return nil
}

// storage reads where the records are: a dict of MetadataIndex to _StorageInfo.
func (r *reader) storage(v any) error {
	entries, err := pairs(v, "storage_data")
	if err != nil {
		return err
	}
	for _, e := range entries {
		key, err := index(e.Key)
		if err != nil {
			return err
		}
		p, err := storageInfo(e.Value)
		if err != nil {
			return err
		}
		if r.records[key] != nil {
			return fmt.Errorf("%w: storage_data has two records for one chunk", ErrMetadata)
		}
		r.records[key] = p
	}
	return nil
}

// index reads a MetadataIndex.
func index(v any) (key, error) {
	d, err := fields(v, classIndex, "a key of storage_data")
	if err != nil {
		return key{}, err
	}
	fqn, _ := d.Get("fqn")
	name, ok := fqn.(string)
	if !ok {
		return key{}, wrong(fqn, "the name in a key of storage_data")
	}
	offset, _ := d.Get("offset")
	if offset == nil {
		return recordKey(name, nil, false), nil
	}
	numbers, err := pickle.Ints(offset)
	if err != nil {
		return key{}, fmt.Errorf("%w: the offset of a key of storage_data for %q: %w", ErrMetadata, name, err)
	}
	return recordKey(name, numbers, true), nil
}

func storageInfo(v any) (*place, error) {
	d, err := fields(v, classStorage, "a value of storage_data")
	if err != nil {
		return nil, err
	}
	file, _ := d.Get("relative_path")
	at, _ := d.Get("offset")
	length, _ := d.Get("length")
	p := &place{}
	var ok, ok2, ok3 bool
	p.file, ok = file.(string)
	p.at, ok2 = at.(int64)
	p.length, ok3 = length.(int64)
	if !ok || !ok2 || !ok3 {
		return nil, fmt.Errorf("%w: a record is at %s, %s, %s instead of a path and two numbers", ErrMetadata, pickle.Describe(file), pickle.Describe(at), pickle.Describe(length))
	}
	transforms, _ := d.Get("transform_descriptors")
	var items []any
	switch v := transforms.(type) {
	case nil:
	case *pickle.List:
		items = v.Items
	case *pickle.Tuple:
		items = v.Items
	default:
		return nil, wrong(v, "the transforms of a record")
	}
	for _, item := range items {
		s, ok := item.(string)
		if !ok {
			return nil, wrong(item, "a transform of a record")
		}
		p.transforms = append(p.transforms, s)
	}
	return p, nil
}

// value reads what is known of one value of the state: a tensor, or something else.
func (r *reader) value(name string, v any) error {
	if o, ok := v.(*pickle.Object); ok && o.Known() && o.Global().Name == classBytes {
		object := Object{Name: name}
		if p := r.records[recordKey(name, nil, false)]; p != nil {
			object.File, object.At, object.Length, object.Transforms = p.file, p.at, p.length, p.transforms
		}
		r.m.Objects = append(r.m.Objects, object)
		return nil
	}
	t, err := r.tensor(name, v)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	r.m.Tensors = append(r.m.Tensors, *t)
	return nil
}

func (r *reader) tensor(name string, v any) (*Tensor, error) {
	d, err := fields(v, classTensor, "its description")
	if err != nil {
		return nil, err
	}
	t := &Tensor{Name: name}
	properties, _ := d.Get("properties")
	if err := r.properties(t, properties); err != nil {
		return nil, err
	}
	size, _ := d.Get("size")
	if t.Shape, err = pickle.Ints(size); err != nil {
		return nil, fmt.Errorf("%w: its size: %w", ErrMetadata, err)
	}
	list, _ := d.Get("chunks")
	chunks, ok := list.(*pickle.List)
	if !ok {
		return nil, wrong(list, "the list of its chunks")
	}
	t.Chunks = make([]Chunk, len(chunks.Items))
	for i, item := range chunks.Items {
		if err := t.Chunks[i].read(item); err != nil {
			return nil, err
		}
	}
	// Chunks without elements may share the offset of another one: the record is that one's.
	for _, empty := range []bool{false, true} {
		for i := range t.Chunks {
			c := &t.Chunks[i]
			p := r.records[recordKey(name, c.Offset, true)]
			if (c.Elements() == 0) == empty && p != nil && !(empty && p.used) {
				c.File, c.At, c.Length, c.Transforms = p.file, p.at, p.length, p.transforms
				p.used = true
			}
		}
	}
	return t, nil
}

// properties reads dtype and requires_grad. The layout, the memory format and whether memory was pinned say nothing about
// the stored bytes, and the strides of the sixth item are those of one writer's own memory: all are looked past.
func (r *reader) properties(t *Tensor, v any) error {
	state, err := object(v, classProperties, "its properties")
	if err != nil {
		return err
	}
	var dtype, grad any
	items := 0
	switch state := state.(type) {
	case *pickle.Tuple:
		if items = len(state.Items); items < 5 {
			return fmt.Errorf("%w: it has %d properties, not 5 or 6", ErrMetadata, items)
		}
		dtype, grad = state.Items[0], state.Items[2]
	default:
		return wrong(state, "the state of its properties")
	}
	r.m.PropertyItems = max(r.m.PropertyItems, items)
	g, ok := dtype.(*pickle.Global)
	if !ok || !g.Known || g.Module != "torch" || !isDTypeName(g.Name) {
		return wrong(dtype, "its dtype")
	}
	t.DTypeName, t.DType = g.Name, pickle.DType(g.Name)
	t.RequiresGrad, _ = grad.(bool)
	return nil
}

func (c *Chunk) read(v any) error {
	d, err := fields(v, classChunk, "a chunk")
	if err != nil {
		return err
	}
	offsets, _ := d.Get("offsets")
	if c.Offset, err = pickle.Ints(offsets); err != nil {
		return fmt.Errorf("%w: the offset of a chunk: %w", ErrMetadata, err)
	}
	sizes, _ := d.Get("sizes")
	if c.Size, err = pickle.Ints(sizes); err != nil {
		return fmt.Errorf("%w: the size of a chunk: %w", ErrMetadata, err)
	}
	return nil
}

// paths reads what PyTorch's own planner keeps: a dict of names to tuples of keys and indices. Other planners may keep
// anything, which is looked past.
func paths(v any) map[string][]any {
	d, ok := v.(*pickle.Dict)
	if !ok {
		return nil
	}
	found := make(map[string][]any, len(d.Pairs))
	for _, p := range d.Pairs {
		name, ok := p.Key.(string)
		tuple, ok2 := p.Value.(*pickle.Tuple)
		if !ok || !ok2 || len(tuple.Items) == 0 {
			continue
		}
		keys := make([]any, len(tuple.Items))
		for i, item := range tuple.Items {
			switch item := item.(type) {
			case string:
				keys[i] = item
			case int64:
				keys[i] = int(item)
			default:
				ok = false
			}
		}
		if ok {
			found[name] = keys
		}
	}
	return found
}
