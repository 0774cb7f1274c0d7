// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"phalanx"
	"phalanx/kernels"
)

// Sheet is what a trainer's program wrote in one go: boxes whose tensors are named only at the end of the save, by the index
// that the program makes. It lies in the attempt's folder beside the data objects that it describes, so that whoever publishes
// knows, without reading them again, what the hosts of all ranks have written. It says nothing to readers of a published
// checkpoint, which has parts instead.
type Sheet struct {
	Format  int           `json:"format"`
	Attempt string        `json:"attempt"` // the folder's name
	Writer  phalanx.Rank  `json:"writer"`  // rank of the program that wrote
	Batch   int           `json:"batch"`   // counts its sheets
	Entries []SheetEntry  `json:"entries"`
	Objects []Object      `json:"objects"`
	Chunks  []StoredChunk `json:"chunks"` // of the entries, by their place
}

// SheetEntry is one box, or the bytes of a value that is no tensor.
type SheetEntry struct {
	SheetBox
	// Content is the D1 of the bytes alone, with Leaves leaves.
	Content phalanx.Digest `json:"content"`
	Leaves  int64          `json:"leaves"`
}

// SheetBox says what a box is, and where the index will say that it is: at a place in a file of the program's own naming.
type SheetBox struct {
	File   string `json:"file"`
	At     int64  `json:"at"`
	Length int64  `json:"length"` // in that file, for a program that wrote records: with all that is around the elements
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"`
	Value  bool   `json:"value,omitempty"` // bytes of something that is no tensor: dtype u8, one dimension
}

// Bounds of a sheet.
const (
	// MaxSheetEntries bounds the boxes of one sheet.
	MaxSheetEntries = 1 << 16
	// sheetObjects is how many objects a sheet can have: their numbers are the batch's own.
	sheetObjects = 1 << 12
	maxBatches   = math.MaxInt32 / sheetObjects
)

// sheetName is the name of a sheet in the attempt's folder.
func sheetName(writer phalanx.Rank, batch int) string {
	return fmt.Sprintf("write-%d-%d.json", writer, batch)
}

// WriteSheet writes boxes of one program into objects of container dcp, then the sheet that describes them. Tensor i of the
// source is box i; it is read twice. What is written depends on its arguments alone, so it may be repeated.
func WriteSheet(ctx context.Context, s Store, a Attempt, writer phalanx.Rank, batch int, boxes []SheetBox, source Source, o PlanOptions) (*Sheet, error) {
	sheet, err := writeSheet(ctx, s, a, writer, batch, boxes, source, o)
	if err != nil {
		return nil, fmt.Errorf("write batch %d of rank %d to %s: %w", batch, writer, a.Folder(), err)
	}
	return sheet, nil
}

func writeSheet(ctx context.Context, s Store, a Attempt, writer phalanx.Rank, batch int, boxes []SheetBox, source Source, o PlanOptions) (*Sheet, error) {
	if err := a.Validate(); err != nil {
		return nil, err
	}
	plan, err := sheetPlan(writer, boxes, o, s.Capabilities().MaxObjectBytes)
	if err != nil {
		return nil, err
	}
	sheet := &Sheet{Format: handedFormat, Attempt: a.Name(), Writer: writer, Batch: batch, Entries: make([]SheetEntry, len(boxes))}
	for i, b := range boxes {
		sheet.Entries[i].SheetBox = b
	}
	if err := sheet.validateHead(); err != nil {
		return nil, err
	}
	w := newWriter(ctx, s, a, writer, plan, source)
	w.nameless, w.first = true, batch*sheetObjects
	err = w.shard(&plan.Shards[0])
	if err == nil {
		err = w.flush()
	}
	if putErr := w.puts.Wait(); putErr != nil {
		err = putErr // what stopped the rest
	}
	if err != nil {
		return nil, err
	}
	if len(w.part.Objects) > sheetObjects {
		return nil, fmt.Errorf("%d objects in one batch, at most %d: write smaller batches or larger objects", len(w.part.Objects), sheetObjects)
	}
	for i, root := range w.roots {
		sheet.Entries[i].Content, sheet.Entries[i].Leaves = root.Root, root.Leaves
	}
	sheet.Objects, sheet.Chunks = w.part.Objects, w.part.Chunks
	b, err := sheet.Encode()
	if err != nil {
		return nil, err
	}
	return sheet, putOnce(ctx, s, a.Folder()+"/"+sheetName(writer, batch), b)
}

// sheetPlan is the plan of one writer that has all of its boxes. A value is one chunk, however large: PyTorch reads it in one.
func sheetPlan(writer phalanx.Rank, boxes []SheetBox, o PlanOptions, most int64) (*Plan, error) {
	if len(boxes) == 0 || len(boxes) > MaxSheetEntries {
		return nil, fmt.Errorf("%d boxes in one batch, want 1 to %d", len(boxes), MaxSheetEntries)
	}
	p, err := NewPlan(0, nil, []phalanx.Rank{writer}, o)
	if err != nil {
		return nil, err
	}
	chunk := o.ChunkBytes
	if room := p.ObjectBytes - (frame{p.Container}).around(p.ObjectBytes); chunk == 0 || chunk > room {
		chunk = room / Align * Align
	}
	shard := &p.Shards[0]
	for i, b := range boxes {
		t := phalanx.TensorInfo{Name: fmt.Sprintf("box %d", i), DType: b.DType, Shape: b.Shape}
		if t.Shape == nil {
			t.Shape = []int{}
		}
		if err := checkTensor(t); err != nil {
			return nil, err
		}
		if b.Value {
			if around := (frame{p.Container}).around(t.Bytes()); most > 0 && t.Bytes() > most-around {
				return nil, fmt.Errorf("a value of %d bytes that is no tensor: the store takes objects of %d: save it as a tensor, or in parts", t.Bytes(), most)
			}
			shard.Boxes = append(shard.Boxes, Chunks(i, t, t.Bytes())...)
		} else {
			shard.Boxes = append(shard.Boxes, Chunks(i, t, chunk)...)
		}
		p.Layout = append(p.Layout, t)
		shard.Digests = append(shard.Digests, i)
		shard.Bytes += t.Bytes()
	}
	return p, nil
}

// Encode returns the sheet's bytes, the same for equal sheets.
func (s *Sheet) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode sheet: %w", err)
	}
	return append(b, '\n'), nil
}

// DecodeSheet reads a sheet and checks everything that can be checked without other objects. It never panics and allocates in
// proportion to the input.
func DecodeSheet(b []byte) (*Sheet, error) {
	var s Sheet
	if err := decode(b, MaxPartBytes, handedFormat, &s); err != nil {
		return nil, fmt.Errorf("sheet: %w", err)
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("sheet %d of rank %d: %w: %w", s.Batch, s.Writer, err, ErrFormat)
	}
	return &s, nil
}

func (s *Sheet) validateHead() error {
	if s.Format < handedFormat {
		return fmt.Errorf("format %d has no sheets", s.Format)
	}
	if _, err := ParseAttempt("", s.Attempt); err != nil {
		return err
	}
	if s.Writer < 0 || s.Batch < 0 || s.Batch >= maxBatches {
		return fmt.Errorf("rank %d, batch %d: want 0 to %d batches", s.Writer, s.Batch, maxBatches)
	}
	for i, e := range s.Entries {
		if e.File == "" || len(e.File) > MaxNameBytes || e.At < 0 || e.Length < 0 || e.Leaves < 0 {
			return fmt.Errorf("entry %d: %d bytes at %d of file %.60q", i, e.Length, e.At, e.File)
		}
		if e.Value && (e.DType != "u8" || len(e.Shape) != 1 || e.Shape[0] == 0) {
			return fmt.Errorf("entry %d: a value of %s%v: want bytes in one dimension, at least one", i, e.DType, e.Shape)
		}
	}
	return nil
}

// validate checks the sheet as the part that its entries would be, each a tensor of its own, covered once.
func (s *Sheet) validate() error {
	if err := s.validateHead(); err != nil {
		return err
	}
	p := Part{Format: s.Format, Container: ContainerDCP, Attempt: s.Attempt, Rank: s.Writer, Layout: emptyLayout, Objects: s.Objects, Chunks: s.Chunks}
	layout := s.layout()
	for i, t := range layout {
		p.Tensors = append(p.Tensors, PartTensor{Index: i, TensorInfo: t})
	}
	if err := p.validate(); err != nil {
		return err
	}
	boxes := make([]Box, len(s.Chunks))
	for i, c := range s.Chunks {
		boxes[i] = c.Box
	}
	return Cover(layout, boxes)
}

// emptyLayout is a hash that satisfies where nothing depends on it.
var emptyLayout = layoutHash(nil)

func (s *Sheet) layout() []phalanx.TensorInfo {
	layout := make([]phalanx.TensorInfo, len(s.Entries))
	for i, e := range s.Entries {
		layout[i] = phalanx.TensorInfo{Name: fmt.Sprintf("box %d", i), DType: e.DType, Shape: e.Shape}
	}
	return layout
}

// d1 is the digest of an entry under a name.
func (e *SheetEntry) d1(t phalanx.TensorInfo) phalanx.Digest {
	return kernels.Named(digestSeed, t.Name, t.DType, t.Shape, kernels.Part{Root: e.Content, Leaves: e.Leaves})
}

// readSheets reads all sheets in an attempt's folder.
func readSheets(ctx context.Context, s Store, a Attempt) ([]*Sheet, error) {
	list, err := ListAll(ctx, s, a.Folder()+"/write-")
	if err != nil {
		return nil, err
	}
	sheets := make([]*Sheet, len(list))
	for i, info := range list { // a sheet for each batch of hundreds of MiB: few
		b, err := readWhole(ctx, s, info.Key, MaxPartBytes)
		if err != nil {
			return nil, err
		}
		if sheets[i], err = DecodeSheet(b); err != nil {
			return nil, fmt.Errorf("%s: %w", info.Key, err)
		}
		if x := sheets[i]; x.Attempt != a.Name() || a.Folder()+"/"+sheetName(x.Writer, x.Batch) != info.Key {
			return nil, fmt.Errorf("%s: is batch %d of rank %d of attempt %s: %w", info.Key, x.Batch, x.Writer, x.Attempt, ErrFormat)
		}
	}
	return sheets, nil
}

// errUnindexed: an index has nothing in it.
var errUnindexed = errors.New("the index names neither a tensor nor a value: there is nothing to publish")
