// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"phalanx"
	"phalanx/ckpt"
)

const (
	// RawIndexName is the name of the index of a folder of format raw.
	RawIndexName = "phalanx-raw.json"
	// RawVersion is the version of the index.
	RawVersion = 1
	// maxIndexBytes bounds an index that is read.
	maxIndexBytes = 256 << 20
)

// RawIndex is the index of a folder of format raw: for every tensor a file with its elements, row-major and little-endian, and
// nothing else. The index is written after all files.
type RawIndex struct {
	Format     string              `json:"format"` // "phalanx-raw"
	Version    int                 `json:"version"`
	Step       *phalanx.Step       `json:"step,omitempty"` // of the checkpoint that it was made from, when that has one
	Generation *phalanx.Generation `json:"generation,omitempty"`
	Tensors    []RawTensor         `json:"tensors"`
}

// RawTensor is a tensor in a folder of format raw.
type RawTensor struct {
	Name      string   `json:"name"`
	DType     string   `json:"dtype"` // one of phalanx.DTypes
	Shape     []int    `json:"shape"`
	File      string   `json:"file"` // in the folder
	Size      int64    `json:"size_bytes"`
	CRC64NVME ckpt.CRC `json:"crc64nvme"` // of the file
}

// rawFormat is the value of RawIndex.Format.
const rawFormat = "phalanx-raw"

// Encode returns the bytes of the index.
func (x *RawIndex) Encode() ([]byte, error) {
	x.Format, x.Version = rawFormat, RawVersion
	b, err := json.MarshalIndent(x, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", RawIndexName, err)
	}
	return append(b, '\n'), nil
}

// DecodeRawIndex reads an index. It never panics and allocates in proportion to the input.
func DecodeRawIndex(b []byte) (*RawIndex, error) {
	fail := func(err error) (*RawIndex, error) {
		return nil, fmt.Errorf("%s: %w: %w", RawIndexName, err, ckpt.ErrFormat)
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return fail(err)
	}
	if head.Format != rawFormat || head.Version != RawVersion {
		return fail(fmt.Errorf("format %.40q, version %d; this program reads %s, version %d", head.Format, head.Version, rawFormat, RawVersion))
	}
	var x RawIndex
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&x); err != nil {
		return fail(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("bytes after the end"))
	}
	layout := make([]phalanx.TensorInfo, len(x.Tensors))
	for i, t := range x.Tensors {
		layout[i] = phalanx.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape}
		if t.File == "" || t.File != path.Base(t.File) || t.File[0] == '.' {
			return fail(fmt.Errorf("tensor %.80q: file %.80q is no name in the folder", t.Name, t.File))
		}
	}
	if err := ckpt.CheckLayout(layout); err != nil {
		return fail(err)
	}
	for i, t := range x.Tensors {
		if want := layout[i].Bytes(); t.Size != want {
			return fail(fmt.Errorf("tensor %.80q: %d bytes for %s%v, which has %d", t.Name, t.Size, t.DType, t.Shape, want))
		}
	}
	return &x, nil
}

// openRaw views a folder of format raw.
func openRaw(ctx context.Context, f Files) (*View, error) {
	b, err := readAll(ctx, f, RawIndexName, maxIndexBytes)
	if err != nil {
		return nil, err
	}
	x, err := DecodeRawIndex(b)
	if err != nil {
		return nil, err
	}
	v := &View{Format: Raw, Place: f.Place(), files: f, index: RawIndexName}
	for _, t := range x.Tensors {
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		v.Tensors = append(v.Tensors, Tensor{Name: t.Name, DType: t.DType, DTypeName: t.DType, Shape: shape, Shards: []Shard{{
			Box: Whole(shape), Object: t.File, Length: t.Size, Sum: Sum{CRC64NVME, uint64(t.CRC64NVME)},
		}}})
	}
	return v, nil
}
