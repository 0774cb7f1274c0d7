// SPDX-License-Identifier: Apache-2.0

// Package dcptest writes and reads whole checkpoints in PyTorch's format, in folders and in memory, the plainest way that the
// format allows. It is for tests: of package dcp, and against PyTorch itself.
package dcptest

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"phalanx"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
	"phalanx/ckpt/pickle/pickletest"
)

// Tensor is a tensor with its elements, row-major.
type Tensor struct {
	Name, DType string
	Shape       []int
	Bytes       []byte
}

// Box is a part of a tensor.
type Box struct{ Offset, Size []int }

// New returns a tensor whose bytes count upwards in steps that are odd, so that no two places hold the same run. Those of a
// bool are 0 and 1.
func New(name, dtype string, shape ...int) Tensor {
	t := Tensor{Name: name, DType: dtype, Shape: append([]int{}, shape...)} // never nil: a scalar has no dimensions
	t.Bytes = make([]byte, phalanx.TensorInfo{DType: dtype, Shape: shape}.Bytes())
	for i := range t.Bytes {
		t.Bytes[i] = byte(i*7 + i>>8)
		if dtype == "bool" {
			t.Bytes[i] = byte(i>>1) & 1
		}
	}
	return t
}

// Whole is the box of a whole tensor.
func (t Tensor) Whole() Box { return Box{Offset: make([]int, len(t.Shape)), Size: t.Shape} }

// Box returns the elements of a box, row-major.
func (t Tensor) Box(b Box) []byte {
	part := make([]byte, phalanx.TensorInfo{DType: t.DType, Shape: b.Size}.Bytes())
	t.walk(b, func(whole, inBox, size int) { copy(part[inBox:inBox+size], t.Bytes[whole:]) })
	return part
}

// SetBox puts the elements of a box in their places.
func (t Tensor) SetBox(b Box, part []byte) {
	t.walk(b, func(whole, inBox, size int) { copy(t.Bytes[whole:whole+size], part[inBox:]) })
}

// walk visits the elements of a box, by their places in bytes in the tensor and in the box.
func (t Tensor) walk(b Box, visit func(whole, inBox, size int)) {
	size := phalanx.DTypeSize(t.DType)
	at := make([]int, len(b.Size))
	for n := range int(dcp.Chunk{Size: b.Size}.Elements()) {
		whole := 0
		for d := range at {
			whole = whole*t.Shape[d] + b.Offset[d] + at[d]
		}
		visit(whole*size, n*size, size)
		for d := len(at) - 1; d >= 0; d-- {
			if at[d]++; at[d] < b.Size[d] {
				break
			}
			at[d] = 0
		}
	}
}

// Record returns a whole record of one tensor.
func Record(dtype string, shape []int, payload []byte) ([]byte, error) {
	crc := crc32.ChecksumIEEE(payload)
	header, err := dcp.RecordHeader(dtype, shape, int64(len(payload)), crc)
	if err != nil {
		return nil, err
	}
	return slices.Concat(header, payload, dcp.RecordTrailer(dtype, shape, int64(len(payload)), crc)), nil
}

// Writer collects a checkpoint: records in a few files, and the index.
type Writer struct {
	Metadata dcp.Metadata
	files    map[string][]byte
}

// Add writes the boxes of a tensor, box i into file i modulo the number of files, at multiples of 64.
func (w *Writer) Add(t Tensor, files []string, boxes ...Box) error {
	tensor := dcp.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
	for i, b := range boxes {
		record, err := Record(t.DType, b.Size, t.Box(b))
		if err != nil {
			return err
		}
		name := files[i%len(files)]
		c := dcp.Chunk{Offset: b.Offset, Size: b.Size, File: name}
		c.At, c.Length = w.append(name, record)
		tensor.Chunks = append(tensor.Chunks, c)
	}
	w.Metadata.Tensors = append(w.Metadata.Tensors, tensor)
	return nil
}

// AddObject writes a record of something else, as torch.save wrote it.
func (w *Writer) AddObject(name, file string, record []byte) {
	o := dcp.Object{Name: name, File: file}
	o.At, o.Length = w.append(file, record)
	w.Metadata.Objects = append(w.Metadata.Objects, o)
}

func (w *Writer) append(file string, record []byte) (at, length int64) {
	if w.files == nil {
		w.files = map[string][]byte{}
	}
	b := w.files[file]
	b = append(b, make([]byte, (64-len(b)%64)%64)...)
	w.files[file] = append(b, record...)
	return int64(len(b)), int64(len(record))
}

// Write makes the folder.
func (w *Writer) Write(dir string) error {
	index, err := w.Metadata.Encode()
	if err != nil {
		return err
	}
	files := map[string][]byte{dcp.MetadataName: index}
	for name, content := range w.files {
		files[name] = content
	}
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Read decodes the index of a folder.
func Read(dir string) (*dcp.Metadata, error) {
	b, err := os.ReadFile(filepath.Join(dir, dcp.MetadataName))
	if err != nil {
		return nil, err
	}
	return dcp.DecodeMetadata(b, pickle.Limits{})
}

// ReadAll reads all tensors and objects of a folder, by their names. Each record's checksum is checked, and that the chunks
// of a tensor have as many elements as the tensor.
func ReadAll(dir string, m *dcp.Metadata) (map[string]Tensor, map[string]any, error) {
	tensors, objects := map[string]Tensor{}, map[string]any{}
	for _, tensor := range m.Tensors {
		t := Tensor{Name: tensor.Name, DType: tensor.DType, Shape: tensor.Shape}
		t.Bytes = bytes.Repeat([]byte{0xee}, int(phalanx.TensorInfo{DType: t.DType, Shape: t.Shape}.Bytes()))
		left := dcp.Chunk{Size: t.Shape}.Elements()
		for _, c := range tensor.Chunks {
			part, err := readChunk(dir, t.DType, c)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: the chunk at %v: %w", t.Name, c.Offset, err)
			}
			t.SetBox(Box{Offset: c.Offset, Size: c.Size}, part)
			left -= c.Elements()
		}
		if left != 0 {
			return nil, nil, fmt.Errorf("%s: its chunks lack %d elements", t.Name, left)
		}
		tensors[t.Name] = t
	}
	for _, o := range m.Objects {
		record, err := ReadRecord(dir, o.File, o.At, o.Length)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", o.Name, err)
		}
		v, err := dcp.ReadObject(bytes.NewReader(record), o.Length)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", o.Name, err)
		}
		objects[o.Name] = v
	}
	return tensors, objects, nil
}

// ReadRecord returns the bytes of a record.
func ReadRecord(dir, file string, at, length int64) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	if at+length > int64(len(b)) {
		return nil, fmt.Errorf("%s has %d bytes, a record ends at %d", file, len(b), at+length)
	}
	return b[at : at+length], nil
}

func readChunk(dir, dtype string, c dcp.Chunk) ([]byte, error) {
	if c.File == "" && c.Elements() == 0 {
		return nil, nil
	}
	record, err := ReadRecord(dir, c.File, c.At, c.Length)
	if err != nil {
		return nil, err
	}
	return Elements(record, dtype, c.Size)
}

// Elements returns the elements of a record, row-major and little-endian, after its checksum, dtype and shape were checked.
func Elements(record []byte, dtype string, shape []int) ([]byte, error) {
	info, err := dcp.ParseRecord(bytes.NewReader(record), int64(len(record)))
	if err != nil {
		return nil, err
	}
	if info.DType != dtype || !slices.Equal(info.Shape, shape) {
		return nil, fmt.Errorf("its record has %s %v, not %s %v", info.DType, info.Shape, dtype, shape)
	}
	storage := record[info.At : info.At+info.StorageBytes]
	if sum := crc32.ChecksumIEEE(storage); sum != info.CRC32 {
		return nil, fmt.Errorf("its checksum is %08x, not %08x", sum, info.CRC32)
	}
	return pickletest.Elements(&info.Tensor, storage, info.Swap)
}
