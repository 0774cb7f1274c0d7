// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"phalanx"
	"phalanx/ckpt/pickle"
)

// MetadataName is the name of the index in the folder of a checkpoint.
const MetadataName = ".metadata"

// ErrMetadata is wrapped by the error for an index that is a pickle and says what no index can say.
var ErrMetadata = errors.New("not an index of a PyTorch checkpoint")

// Metadata is the index of a DCP checkpoint, as data.
type Metadata struct {
	Tensors []Tensor // in the order of the file
	Objects []Object // what is no tensor: numbers, strings, anything that Python can pickle
	// Paths leads from a name back to the keys and indices (string or int) by which the value lies in the nested dicts and
	// lists that were saved. Names whose path is not known are missing; nil when the file has none.
	Paths map[string][]any
	// Version is the version of the format as the file has it: "1.0.0", or "" in old files.
	Version string
	// PropertyItems is how many properties the file gives each tensor: 5, or 6 from PyTorch 2.15 on, which older versions
	// cannot read. It is 0 when there is no tensor. Encode always writes 5.
	PropertyItems int
	// Foreign are the classes and functions that the file names in places where they can be looked past.
	Foreign []ForeignGlobal
}

// ForeignGlobal is a class or function that an index names and that is not part of the format.
type ForeignGlobal struct {
	Module, Name string
	Offset       int64 // in the file
}

// Tensor is a tensor as a whole, and the boxes in which it is stored.
type Tensor struct {
	Name         string
	DType        string // one of phalanx.DTypes, "" when there is none for DTypeName
	DTypeName    string // what PyTorch calls it, such as float32; Encode takes it when DType is ""
	Shape        []int
	RequiresGrad bool
	Chunks       []Chunk
}

// Chunk is a box of a tensor, and the record that holds it. A box without elements may have no record: File is "".
type Chunk struct {
	Offset, Size []int  // one number for each dimension of the tensor
	File         string // relative to the folder, with slashes
	At, Length   int64  // of the record in the file, in bytes
	// Transforms are what was applied to the record's bytes when they were written, in that order, such as "stream.zstd/1".
	// A record with any cannot be read by ParseRecord.
	Transforms []string
}

// Object is the record of something that is no tensor.
type Object struct {
	Name, File string
	At, Length int64
	Transforms []string
}

// Elements counts the elements of a box.
func (c Chunk) Elements() int64 {
	n := int64(1)
	for _, d := range c.Size {
		n *= int64(d)
	}
	return n
}

// validate refuses what is no index: see DecodeMetadata.
func (m *Metadata) validate() error {
	names := make(map[string]bool, len(m.Tensors)+len(m.Objects))
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if names[t.Name] {
			return fmt.Errorf("%w: two values are named %q", ErrMetadata, t.Name)
		}
		names[t.Name] = true
		if err := t.validate(); err != nil {
			return fmt.Errorf("%w: tensor %q: %w", ErrMetadata, t.Name, err)
		}
	}
	for _, o := range m.Objects {
		if names[o.Name] {
			return fmt.Errorf("%w: two values are named %q", ErrMetadata, o.Name)
		}
		names[o.Name] = true
		if err := validPlace(o.File, o.At, o.Length); err != nil {
			return fmt.Errorf("%w: object %q: %w", ErrMetadata, o.Name, err)
		}
	}
	return nil
}

func (t *Tensor) validate() error {
	if t.DType == "" && t.DTypeName == "" {
		return errors.New("it has no dtype")
	}
	if t.DType != "" && phalanx.DTypeSize(t.DType) == 0 {
		return fmt.Errorf("there is no dtype %q", t.DType)
	}
	elements, empty := int64(1), slices.Contains(t.Shape, 0)
	for _, d := range t.Shape {
		if d < 0 || !empty && elements > math.MaxInt64/16/int64(d) {
			return fmt.Errorf("the shape %v", t.Shape)
		}
		if !empty {
			elements *= int64(d)
		}
	}
	filled := make(map[string]bool, len(t.Chunks))
	for _, c := range t.Chunks {
		if err := c.validate(t.Shape); err != nil {
			return err
		}
		if c.Elements() == 0 {
			continue
		}
		key := offsetKey(c.Offset)
		if filled[key] {
			return fmt.Errorf("two chunks at offset %v", c.Offset)
		}
		filled[key] = true
	}
	return nil
}

func (c Chunk) validate(shape []int) error {
	if len(c.Offset) != len(shape) || len(c.Size) != len(shape) {
		return fmt.Errorf("a chunk with offset %v and size %v in the shape %v", c.Offset, c.Size, shape)
	}
	for d := range shape {
		if c.Offset[d] < 0 || c.Size[d] < 0 || c.Offset[d] > shape[d] || c.Size[d] > shape[d]-c.Offset[d] {
			return fmt.Errorf("the chunk with offset %v and size %v is not inside the shape %v", c.Offset, c.Size, shape)
		}
	}
	if c.File == "" && c.Elements() == 0 {
		return nil
	}
	if err := validPlace(c.File, c.At, c.Length); err != nil {
		return fmt.Errorf("the chunk at offset %v: %w", c.Offset, err)
	}
	return nil
}

// validPlace refuses the place of a record that is none, or that leads out of the folder.
func validPlace(file string, at, length int64) error {
	if file == "" {
		return errors.New("the index does not say where its record is")
	}
	if path.IsAbs(file) || path.Clean(file) != file || file == "." || file == ".." || strings.HasPrefix(file, "../") || strings.ContainsAny(file, "\\\x00") {
		return fmt.Errorf("its record is in %q, which is no path inside the folder", file)
	}
	if at < 0 || length < 0 || at > math.MaxInt64-length {
		return fmt.Errorf("its record is at %d with %d bytes", at, length)
	}
	return nil
}

// offsetKey is the offset of a chunk as a key of a map.
func offsetKey(offset []int) string {
	b := make([]byte, 0, 8*len(offset))
	for _, n := range offset {
		for range 8 {
			b = append(b, byte(n))
			n >>= 8
		}
	}
	return string(b)
}

// The modules in which PyTorch has kept the classes of an index, the present one first.
var (
	metadataModules = []string{"torch.distributed.checkpoint.metadata", "torch.distributed._shard.checkpoint.metadata"}
	propertyModules = append(metadataModules[:2:2], "torch.distributed._shard.sharded_tensor.metadata")
	storageModules  = []string{"torch.distributed.checkpoint.filesystem", "torch.distributed._shard.checkpoint.filesystem"}
	pathModules     = []string{"pathlib", "pathlib._local"}
)

// Names of the classes.
const (
	classMetadata   = "Metadata"
	classTensor     = "TensorStorageMetadata"
	classProperties = "TensorProperties"
	classChunk      = "ChunkStorageMetadata"
	classBytes      = "BytesStorageMetadata"
	classIndex      = "MetadataIndex"
	classMeta       = "StorageMeta"
	classFormat     = "_MEM_FORMAT_ENCODING"
	classOldFormat  = "MEM_FORMAT_ENCODING"
	classStorage    = "_StorageInfo"
)

// modulesOf says where a class of an index may be.
func modulesOf(class string) []string {
	switch class {
	case classProperties, classFormat, classOldFormat:
		return propertyModules
	case classMetadata, classTensor, classChunk, classBytes, classIndex, classMeta:
		return metadataModules
	case classStorage:
		return storageModules
	}
	return nil
}

// known reports whether a global is part of the format of an index: this is the whole list.
func known(module, name string) bool {
	switch {
	case slices.Contains(modulesOf(name), module):
		return true
	case module == "torch":
		return name == "Size" || isDTypeName(name)
	case module == "torch.serialization":
		return name == "_get_layout"
	case slices.Contains(pathModules, module):
		return slices.Contains([]string{"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath"}, name)
	case module == "collections":
		return name == "OrderedDict"
	}
	return false
}

// isDTypeName reports whether an attribute of torch is the name of a dtype, also of one that came after this program.
func isDTypeName(name string) bool {
	if pickle.DType(name) != "" {
		return true
	}
	for _, prefix := range []string{"float", "bfloat", "complex", "int", "uint", "qint", "quint", "bits"} {
		rest, ok := strings.CutPrefix(name, prefix)
		if ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz_") == "" {
			return true
		}
	}
	return false
}
