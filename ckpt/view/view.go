// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"hash"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/minio/crc64nvme"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/pickle"
)

// Format is a kind of checkpoint.
type Format string

// The formats that are read.
const (
	Phalanx     Format = "phalanx"     // published by a job, in any container
	DCP         Format = "dcp"         // a folder of torch.distributed.checkpoint
	Safetensors Format = "safetensors" // one file, or files with an index
	Torch       Format = "torch"       // one file of torch.save
	Raw         Format = "raw"         // one file for each tensor and an index, see package convert
)

// View is a checkpoint that is open for reading. Its fields must not be changed; it is safe for concurrent use.
type View struct {
	Format    Format
	Container string // of a Phalanx checkpoint
	Place     string // path or URL
	File      string // the file's name, of a checkpoint that is one file
	Tensors   []Tensor
	Objects   []Object
	// Published is the commit of a Phalanx checkpoint, nil for others.
	Published *ckpt.Commit
	// Checkpoint is what Published opens as.
	Checkpoint *ckpt.Checkpoint
	// Problems are other checkpoints of the job that are damaged or incomplete, when it is the newest whole one that was opened.
	Problems []ckpt.Problem
	// States are the coordinates of a Phalanx checkpoint.
	States []State
	// Unpublished: an attempt that was complete and never published was opened because it was asked for.
	Unpublished bool
	// Metadata are short facts about where the content is from, such as the __metadata__ of safetensors.
	Metadata map[string]string
	// Paths leads from names to the keys and indices of nested state, as DCP has them; nil for others.
	Paths map[string][]any
	// Notes are what a user should know: what was skipped, what cannot be told.
	Notes []string
	// Store says what the store can do, nil for a path of the local file system that is no store.
	Store *ckpt.Capabilities

	files  Files
	names  []string              // data files beside those that shards and objects name
	index  string                // the file by which the others are found, "" for none
	limits limits                // the zero value: the usual ones
	mu     sync.Mutex            // guards what follows; never held over I/O
	found  map[[2]int]Shard      // records whose payload was located, by tensor and shard
	trees  map[int]*boxTree      // of tensors whose shards were looked for
	stored map[string]spans      // what each object holds, once damage was looked up
	whole  map[storedRange]error // stored ranges that were read through for their checksum
}

// storedRange is a byte range of an object.
type storedRange struct {
	object     string
	at, length int64
}

// State is what a Phalanx checkpoint says about one coordinate.
type State struct {
	Label  phalanx.Label  `json:"label"`
	Digest phalanx.Digest `json:"digest"`
}

// Tensor is a tensor as users see it, whole, whoever wrote parts of it.
type Tensor struct {
	Name  string
	DType string // one of phalanx.DTypes; "" when it is none, then the content cannot be read as numbers
	// DTypeName is what the format itself calls the dtype.
	DTypeName string
	Shape     []int
	// RequiresGrad is what DCP says of a parameter.
	RequiresGrad bool
	Shards       []Shard
	// Digests are D1 digests of boxes of the tensor, which together cover it; nil when the format has none. The digest of the
	// whole tensor is one box.
	Digests []BoxDigest
}

// BoxDigest is the D1 digest (seed 0) of a box, as the tensor of that shape under the tensor's name.
type BoxDigest struct {
	Box
	D1 phalanx.Digest
}

// Info describes the tensor as package ckpt does.
func (t *Tensor) Info() phalanx.TensorInfo {
	return phalanx.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// Bytes is the size of the tensor, row-major without padding.
func (t *Tensor) Bytes() int64 { return t.Info().Bytes() }

// Digest is the D1 digest of the whole tensor, zero when it is not known.
func (t *Tensor) Digest() phalanx.Digest {
	if len(t.Digests) == 1 && slices.Equal(t.Digests[0].Shape, t.Shape) {
		return t.Digests[0].D1
	}
	return phalanx.Digest{}
}

// Shard is a box of a tensor and where its elements are stored.
type Shard struct {
	Box
	Object     string // name below the view's place
	At, Length int64  // the stored bytes in the object
	// Record: the stored bytes are an archive of torch.save around the elements.
	Record bool
	// Transforms are what was applied to a record when it was written; one with any cannot be read.
	Transforms []string
	// First is the byte, from At, of the box's first element.
	First int64
	// Strides are in elements, one for each dimension; nil is row-major.
	Strides []int
	Sum     Sum
	// Swap: the stored numbers are big-endian. What is read is little-endian.
	Swap bool
	// PutOff is what is still to be done to the stored elements.
	PutOff pickle.PutOff
	// Coordinate of a Phalanx checkpoint whose state holds this, 0 for others.
	Coordinate int
}

// exact reports whether the stored bytes are the box's elements in row-major order and nothing else.
func (s *Shard) exact(elem int64) bool {
	return !s.Record && s.Strides == nil && s.First == 0 && s.Length == s.Elements()*elem
}

// strides are the strides in elements.
func (s *Shard) strides() []int {
	if s.Strides != nil {
		return s.Strides
	}
	return rowMajor(s.Shape)
}

// SumKind is a kind of checksum.
type SumKind string

// Kinds of checksums.
const (
	NoSum     SumKind = ""
	CRC64NVME SumKind = "crc64nvme"
	CRC32     SumKind = "crc32" // as in zip archives
)

// Sum is a checksum of the stored bytes [At, At+Length) of a shard.
type Sum struct {
	Kind  SumKind
	Value uint64
}

func (s Sum) String() string {
	switch s.Kind {
	case CRC64NVME:
		return fmt.Sprintf("crc64nvme:%016x", s.Value)
	case CRC32:
		return fmt.Sprintf("crc32:%08x", s.Value)
	case NoSum:
	}
	return ""
}

// start returns a running checksum, nil when there is none.
func (s Sum) start() hash.Hash {
	switch s.Kind {
	case CRC64NVME:
		return crc64nvme.New()
	case CRC32:
		return crc32.NewIEEE()
	case NoSum:
	}
	return nil
}

// of returns the value of a running checksum.
func (s Sum) of(h hash.Hash) Sum {
	switch h := h.(type) {
	case hash.Hash64:
		return Sum{s.Kind, h.Sum64()}
	case hash.Hash32:
		return Sum{s.Kind, uint64(h.Sum32())}
	}
	return Sum{}
}

// Object is something stored that is no tensor: opaque bytes.
type Object struct {
	Name       string
	Object     string
	At, Length int64
	// Transforms are what was applied to the bytes when they were written.
	Transforms []string
	// Sum is the checksum of the bytes, where the format has one.
	Sum Sum
	// Coordinate of a Phalanx checkpoint whose state holds it.
	Coordinate int
	// Text is the value for people, of objects that have no bytes of their own (Length is 0).
	Text string
}

// Tensor returns the place of a tensor in Tensors, -1 when there is none of that name.
func (v *View) Tensor(name string) int {
	for i := range v.Tensors {
		if v.Tensors[i].Name == name {
			return i
		}
	}
	return -1
}

// Index is the name of the file by which a checkpoint of several files is found and which is written last; "" when it has none.
func (v *View) Index() string { return v.index }

// Names lists the files that hold the content, in order and without the index; those without any tensor are among them.
func (v *View) Names() []string {
	if v.File != "" {
		return []string{v.File}
	}
	names := slices.Clone(v.names)
	for i := range v.Tensors {
		for k := range v.Tensors[i].Shards {
			names = append(names, v.Tensors[i].Shards[k].Object)
		}
	}
	for _, o := range v.Objects {
		names = append(names, o.Object)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Files reads the objects of the view by the names that shards have.
func (v *View) Files() Files { return v.files }

// Bytes is the size of all tensors.
func (v *View) Bytes() int64 {
	var n int64
	for i := range v.Tensors {
		n += v.Tensors[i].Bytes()
	}
	return n
}

// DamageError: the stored bytes of a shard are not those that were written.
type DamageError struct {
	Object     string // name below the view's place
	At, Length int64  // bytes of the object
	Coordinate int
	Tensor     string
	Box        Box
	Want, Got  Sum // equal when Err says that they could not be read
	Err        error
}

func (e *DamageError) Error() string {
	s := fmt.Sprintf("bytes [%d, %d) of object %s, the box at %v of %v of tensor %.80q", e.At, e.At+e.Length, e.Object, e.Box.Offset, e.Box.Shape, e.Tensor)
	if e.Coordinate > 0 {
		s += fmt.Sprintf(" of coordinate %d", e.Coordinate)
	}
	if e.Want != e.Got {
		return s + fmt.Sprintf(": %s, expected %s", e.Got, e.Want)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap makes errors.Is(err, ckpt.ErrCorrupt) and the like work.
func (e *DamageError) Unwrap() error { return e.Err }

// damage makes the error of a shard.
func (v *View) damage(tensor int, s *Shard, got Sum, err error) *DamageError {
	if err == nil {
		err = ckpt.ErrCorrupt
	}
	return &DamageError{Object: s.Object, At: s.At, Length: s.Length, Coordinate: s.Coordinate, Tensor: v.Tensors[tensor].Name, Box: s.Box,
		Want: s.Sum, Got: got, Err: err}
}
