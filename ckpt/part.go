// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"phalanx"
)

const (
	// FormatVersion is what this package writes. It reads that and all from oldestFormat on.
	FormatVersion = 2
	oldestFormat  = 1
	// handedFormat is what parts and sheets have that describe what a program handed over (Assemble); other parts stay
	// readable by releases before this one.
	handedFormat = 3

	// MaxPartBytes bounds what the decoder of a part takes.
	MaxPartBytes = 256 << 20
	// MaxCommitBytes bounds what the decoder of a commit object takes.
	MaxCommitBytes = 64 << 20
)

// ErrFormat: an object is not what its key says, or was written by a newer version.
var ErrFormat = errors.New("format not understood")

// Part is one rank's share of the manifest: what it wrote and where, with checksums.
type Part struct {
	Format     int           `json:"format"`
	Container  string        `json:"container"`
	Attempt    string        `json:"attempt"` // the folder's name
	Rank       phalanx.Rank  `json:"rank"`
	Coordinate int           `json:"coordinate"`
	Layout     string        `json:"layout"`  // SHA-256 over the whole layout of the coordinate
	Tensors    []PartTensor  `json:"tensors"` // those that this rank digested, ascending
	Objects    []Object      `json:"objects"`
	Chunks     []StoredChunk `json:"chunks"`
}

// PartTensor is a tensor with its place in the layout and its D1 (seed 0).
type PartTensor struct {
	Index int `json:"index"`
	phalanx.TensorInfo
	D1 phalanx.Digest `json:"d1"`
	Origin
}

// Object is one data object in the attempt's folder.
type Object struct {
	Name      string `json:"name"`
	Size      int64  `json:"size_bytes"`
	CRC64NVME CRC    `json:"crc64nvme"`
}

// StoredChunk is where a box of a tensor is stored.
type StoredChunk struct {
	Box
	Object    int    `json:"object"` // index in Objects
	At        int64  `json:"at"`     // offset in the object
	Length    int64  `json:"length"` // stored bytes
	Codec     string `json:"codec"`
	CRC64NVME CRC    `json:"crc64nvme"` // of the tensor's bytes, so it outlives a change of codec
}

// Encode returns the part file's bytes, the same for equal parts.
func (p *Part) Encode() ([]byte, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode part of rank %d: %w", p.Rank, err)
	}
	return append(b, '\n'), nil
}

// DecodePart reads a part file and checks everything that can be checked without other objects. It never panics and
// allocates in proportion to the input.
func DecodePart(b []byte) (*Part, error) {
	var p Part
	if err := decode(b, MaxPartBytes, handedFormat, &p); err != nil {
		return nil, fmt.Errorf("part: %w", err)
	}
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("part of rank %d: %w: %w", p.Rank, err, ErrFormat)
	}
	return &p, nil
}

// decode reads one JSON value of a known format version and nothing after it.
func decode(b []byte, limit, newest int, into any) error {
	if len(b) > limit {
		return fmt.Errorf("%d bytes, at most %d: %w", len(b), limit, ErrFormat)
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return fmt.Errorf("%w: %w", err, ErrFormat)
	}
	if head.Format < oldestFormat || head.Format > newest {
		return fmt.Errorf("format %d, this program reads %d to %d; use a newer phalanx: %w", head.Format, oldestFormat, newest, ErrFormat)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", err, ErrFormat)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bytes after the end: %w", ErrFormat)
	}
	return nil
}

func (p *Part) validate() error {
	if err := checkContainer(p.Format, p.Container); err != nil {
		return err
	}
	if _, err := ParseAttempt("", p.Attempt); err != nil {
		return err
	}
	if p.Rank < 0 || p.Coordinate < 0 {
		return fmt.Errorf("rank %d, coordinate %d", p.Rank, p.Coordinate)
	}
	if !isSHA256(p.Layout) {
		return fmt.Errorf("layout %.70q is no SHA-256", p.Layout)
	}
	tensors, err := p.tensorsByIndex()
	if err != nil {
		return err
	}
	for i, o := range p.Objects {
		if strings.Contains(o.Name, "/") || ValidKey(o.Name) != nil || o.Size < 0 {
			return fmt.Errorf("object %d: name %.60q, %d bytes", i, o.Name, o.Size)
		}
	}
	return p.validateChunks(tensors)
}

func (p *Part) tensorsByIndex() (map[int]phalanx.TensorInfo, error) {
	tensors := make(map[int]phalanx.TensorInfo, len(p.Tensors))
	last := -1
	for _, t := range p.Tensors {
		if t.Index <= last || t.Index >= MaxTensors {
			return nil, fmt.Errorf("tensor %.60q has index %d after %d", t.Name, t.Index, last)
		}
		if err := checkTensor(t.TensorInfo); err != nil {
			return nil, err
		}
		if err := t.Origin.validate(t.TensorInfo, p.Format); err != nil {
			return nil, err
		}
		if p.Format < 2 && (t.Global != nil || t.PerRank) {
			return nil, fmt.Errorf("tensor %.60q: format %d has no boxes of larger tensors", t.Name, p.Format)
		}
		last = t.Index
		tensors[t.Index] = t.TensorInfo
	}
	return tensors, nil
}

// validateChunks checks that every chunk is a box of a listed tensor and that chunks lie in their objects, aligned and
// apart.
func (p *Part) validateChunks(tensors map[int]phalanx.TensorInfo) error {
	f := frame{p.Container}
	before := f.before()
	for i, c := range p.Chunks {
		t, found := tensors[c.Tensor]
		if !found {
			return fmt.Errorf("chunk %d: tensor %d is not listed", i, c.Tensor)
		}
		_, length, err := c.Range(t)
		if err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		switch {
		case c.Codec != CodecRaw:
			return fmt.Errorf("chunk %d: codec %.20q is unknown", i, c.Codec)
		case c.Length != length:
			return fmt.Errorf("chunk %d: %d bytes stored for a box of %d", i, c.Length, length)
		case c.Object < 0 || c.Object >= len(p.Objects):
			return fmt.Errorf("chunk %d: object %d of %d", i, c.Object, len(p.Objects))
		case c.At < before || c.At%Align != 0 || c.Length > p.Objects[c.Object].Size || c.At > p.Objects[c.Object].Size-c.Length-f.after(c.Length):
			return fmt.Errorf("chunk %d: [%d, +%d) in object %s of %d bytes", i, c.At, c.Length, p.Objects[c.Object].Name, p.Objects[c.Object].Size)
		}
	}
	order := slices.Clone(p.Chunks)
	slices.SortFunc(order, func(a, b StoredChunk) int { return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.At, b.At)) })
	for i := 1; i < len(order); i++ {
		if a, b := order[i-1], order[i]; a.Object == b.Object && b.At-before < a.At+a.Length+f.after(a.Length) {
			return fmt.Errorf("two chunks share bytes at %d of object %s", b.At, p.Objects[b.Object].Name)
		}
	}
	return nil
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && s == strings.ToLower(s)
}
