// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"

	"github.com/minio/crc64nvme"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/safetensors"
	"phalanx/ckpt/view"
)

// Options say how a checkpoint is written.
type Options struct {
	To view.Format // DCP, Safetensors or Raw
	// ShardBytes is about how large a file becomes; 0 is the default of the format. A tensor of safetensors is never cut.
	ShardBytes int64
	// Name is the file's name when safetensors is written as one file; "" is model.safetensors.
	Name string
	// Tie: of tensors that are the same stored bytes, safetensors get one, and the names of the others in their metadata, as the
	// Python package's save_model does it. Its load_file does not bring them back.
	Tie bool
	// Progress, unless nil, is called with bytes of tensors that were written, on one goroutine.
	Progress func(done, total int64)
}

// Result is what was written.
type Result struct {
	Tensors int   `json:"tensors"`
	Bytes   int64 `json:"size_bytes"` // of tensors
	Files   int   `json:"files"`      // without the index
	// Objects that are no tensors: those that were copied, and those that the format cannot hold.
	Copied  []string `json:"objects"`
	LeftOut []string `json:"left_out"`
	// Tied are names of tensors that are stored under another's.
	Tied []string `json:"tied,omitempty"`
	// Beyond are tensors with numbers that a cast could not keep.
	Beyond []Beyond `json:"beyond,omitempty"`
}

// ErrFormat: the format cannot be written.
var ErrFormat = errors.New("format cannot be written")

// Run writes the items of a source. It calls Commit after everything was written and verified, and Abort otherwise.
func Run(ctx context.Context, v *view.View, items []Item, to Target, o Options) (Result, error) {
	w, err := newWriter(v, items, to, o)
	if err == nil {
		err = w.run(ctx)
	}
	if err == nil {
		err = to.Commit(ctx)
	}
	if err != nil {
		to.Abort()
		return Result{}, fmt.Errorf("write %s: %w", to.Place(), err)
	}
	return w.result, nil
}

// writer writes one checkpoint.
type writer struct {
	Options
	*arrangement
	source  *view.View
	items   []Item
	to      Target
	result  Result
	caster  caster
	aliases []safetensors.Alias

	total, done int64
	at          int  // in order: the item that is written
	next        int  // in extents: the first that is not complete
	open        File // nil: none
	opened      int  // place of the open file in files, files before it are complete
	sum         hash.Hash
	sums        []uint64 // of each complete extent: CRC-32 for dcp, CRC-64/NVME for raw
}

func newWriter(v *view.View, items []Item, to Target, o Options) (*writer, error) {
	w := &writer{Options: o, source: v, items: items, to: to, opened: -1}
	var err error
	switch o.To {
	case view.Raw:
		w.arrangement = arrangeRaw(items)
	case view.DCP:
		if o.ShardBytes == 0 {
			o.ShardBytes = DefaultRecordBytes
		}
		var objects []view.Object
		if v.Format == view.DCP || v.Format == view.Phalanx { // others have no records
			objects = v.Objects
		}
		w.arrangement = arrangeDCP(items, objects, o.ShardBytes)
	case view.Safetensors:
		if o.ShardBytes == 0 {
			o.ShardBytes = DefaultShardBytes
		}
		if o.Name == "" {
			o.Name = safetensors.FileName
		}
		written, aliases := tied(v, items, o.Tie)
		w.aliases = aliases
		if w.arrangement, err = arrangeSafetensors(items, written, aliases, w.metadata(), o.ShardBytes, o.Name); err != nil {
			err = fmt.Errorf("%w: %w", ErrFormat, err)
		}
	default:
		err = fmt.Errorf("%q: %w", o.To, ErrFormat)
	}
	if err != nil {
		return nil, err
	}
	for _, e := range w.extents {
		w.total += e.to - e.from
	}
	w.sums = make([]uint64, 0, len(w.extents))
	w.result = Result{Tensors: len(items), Bytes: w.total, Files: len(w.files), Copied: []string{}, LeftOut: []string{}}
	for _, a := range w.aliases {
		w.result.Tied = append(w.result.Tied, a.Name)
	}
	for _, obj := range v.Objects {
		if len(w.objects) > 0 {
			w.result.Copied = append(w.result.Copied, obj.Name)
		} else {
			w.result.LeftOut = append(w.result.LeftOut, obj.Name)
		}
	}
	return w, nil
}

// metadata is what safetensors files say about where they are from.
func (w *writer) metadata() map[string]string {
	m := map[string]string{"format": "pt"}
	if step, generation, ok := w.source.Step(); ok {
		m["step"], m["generation"] = fmt.Sprint(step), generation.String()
	}
	return m
}

func (w *writer) run(ctx context.Context) (err error) {
	defer func() {
		if w.open != nil { // after an error: the target is aborted
			_ = w.open.Discard()
		}
	}()
	tensors := make([]int, len(w.order))
	for k, i := range w.order {
		tensors[k] = w.items[i].Tensor
	}
	err = w.source.Stream(ctx, tensors, func(_ int, off int64, p []byte) error { return w.take(ctx, off, p) })
	if err != nil {
		return err
	}
	w.result.Beyond = w.caster.beyond
	if err := w.copyObjects(ctx); err != nil {
		return err
	}
	if err := w.closeFile(ctx); err != nil {
		return err
	}
	return w.writeIndex(ctx)
}

// take writes bytes of the present item.
func (w *writer) take(ctx context.Context, off int64, p []byte) error {
	it := &w.items[w.order[w.at]]
	from := w.source.Tensors[it.Tensor].DType
	if it.DType != from {
		size, wide := int64(phalanx.DTypeSize(from)), int64(phalanx.DTypeSize(it.DType))
		cast, err := w.caster.cast(it.Name, it.DType, from, p)
		if err != nil {
			return err
		}
		p, off = cast, off/size*wide
	}
	length := int64(len(p))
	for {
		e := &w.extents[w.next]
		if err := w.fileOf(ctx, e.file); err != nil {
			return err
		}
		n := min(int64(len(p)), e.to-off)
		if _, err := w.open.WriteAt(p[:n], e.at+off-e.from); err != nil {
			return err
		}
		w.hash(p[:n])
		off, p = off+n, p[n:]
		if off == e.to {
			if err := w.complete(e); err != nil {
				return err
			}
			w.next++
		}
		if len(p) == 0 {
			break
		}
	}
	if off == it.Bytes() {
		w.at++
	}
	w.done += length
	if w.Progress != nil {
		w.Progress(w.done, w.total)
	}
	return nil
}

func (w *writer) hash(p []byte) {
	if w.sum == nil {
		switch w.To {
		case view.DCP:
			w.sum = crc32.NewIEEE()
		case view.Raw:
			w.sum = crc64nvme.New()
		default:
			return
		}
	}
	w.sum.Write(p)
}

// complete ends an extent: what surrounds it depends on its checksum.
func (w *writer) complete(e *extent) error {
	var sum uint64
	switch h := w.sum.(type) {
	case hash.Hash64:
		sum = h.Sum64()
	case hash.Hash32:
		sum = uint64(h.Sum32())
	}
	w.sum = nil
	w.sums = append(w.sums, sum)
	if w.To != view.DCP {
		return nil
	}
	n := e.to - e.from
	dtype, crc := w.items[e.item].DType, uint32(sum) //nolint:gosec // it is one of 32 bits
	head, err := dcp.RecordHeader(dtype, e.box.Shape, n, crc)
	if err != nil {
		return err
	}
	if _, err := w.open.WriteAt(head, e.at-dcp.PayloadAt); err != nil {
		return err
	}
	_, err = w.open.WriteAt(dcp.RecordTrailer(dtype, e.box.Shape, n, crc), e.at+n)
	return err
}

// fileOf opens a file, after the one before is complete.
func (w *writer) fileOf(ctx context.Context, file int) error {
	for w.opened < file {
		if err := w.closeFile(ctx); err != nil {
			return err
		}
		w.opened++
		f := &w.files[w.opened]
		var err error
		if w.open, err = w.to.Create(ctx, f.name, f.size); err != nil {
			return err
		}
		if len(f.head) > 0 {
			if _, err := w.open.WriteAt(f.head, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *writer) closeFile(ctx context.Context) error {
	if w.open == nil {
		return nil
	}
	f := w.open
	w.open = nil
	return f.Close(ctx)
}

// copyObjects copies what is no tensor as it is.
func (w *writer) copyObjects(ctx context.Context) error {
	for _, o := range w.objects {
		if err := w.fileOf(ctx, o.file); err != nil {
			return err
		}
		if o.object.Sum.Kind != view.NoSum {
			p, err := w.source.ReadObject(ctx, &o.object)
			if err != nil {
				return fmt.Errorf("object %.80q: %w", o.object.Name, err)
			}
			if _, err := w.open.WriteAt(p, o.at); err != nil {
				return err
			}
			continue
		}
		const part = 8 << 20
		for off := int64(0); off < o.object.Length; off += part {
			p := make([]byte, min(part, o.object.Length-off))
			if err := w.source.Files().Read(ctx, o.object.Object, o.object.At+off, p); err != nil {
				return fmt.Errorf("object %.80q: %w", o.object.Name, err)
			}
			if _, err := w.open.WriteAt(p, o.at+off); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeIndex writes what makes a checkpoint of the files, last.
func (w *writer) writeIndex(ctx context.Context) error {
	var name string
	var b []byte
	var err error
	switch w.To {
	case view.Raw:
		name = view.RawIndexName
		b, err = w.rawIndex().Encode()
	case view.DCP:
		name = ckpt.MetadataName
		b, err = w.dcpIndex().Encode()
	case view.Safetensors:
		if len(w.files) == 1 {
			return nil
		}
		index := safetensors.Index{TotalSize: w.total, WeightMap: map[string]string{}}
		for _, e := range w.extents {
			index.WeightMap[w.items[e.item].Name] = w.files[e.file].name
		}
		name, b = safetensors.IndexName, index.Encode()
	case view.Phalanx, view.Torch: // refused before anything was written
	}
	if err != nil {
		return err
	}
	return writeWhole(ctx, w.to, name, b)
}

func (w *writer) rawIndex() *view.RawIndex {
	x := &view.RawIndex{}
	if step, generation, ok := w.source.Step(); ok {
		x.Step, x.Generation = &step, &generation
	}
	for k, e := range w.extents {
		it := w.items[e.item]
		x.Tensors = append(x.Tensors, view.RawTensor{Name: it.Name, DType: it.DType, Shape: it.Shape, File: w.files[e.file].name, Size: e.to,
			CRC64NVME: ckpt.CRC(w.sums[k])})
	}
	return x
}

func (w *writer) dcpIndex() *dcp.Metadata {
	m := &dcp.Metadata{Version: "1.0.0", Paths: map[string][]any{}}
	at := make([]int, len(w.items)) // of the item's tensor in m
	for i, it := range w.items {
		at[i] = i
		from := &w.source.Tensors[it.Tensor]
		m.Tensors = append(m.Tensors, dcp.Tensor{Name: it.Name, DType: it.DType, Shape: it.Shape, RequiresGrad: from.RequiresGrad})
		if path, ok := w.source.Paths[from.Name]; ok && from.Name == it.Name {
			m.Paths[it.Name] = path
		}
	}
	for _, e := range w.extents {
		t := &m.Tensors[at[e.item]]
		t.Chunks = append(t.Chunks, dcp.Chunk{Offset: e.box.Offset, Size: e.box.Shape, File: w.files[e.file].name, At: e.at - dcp.PayloadAt,
			Length: dcp.RecordLen(e.to - e.from)})
	}
	for _, o := range w.objects {
		m.Objects = append(m.Objects, dcp.Object{Name: o.object.Name, File: w.files[o.file].name, At: o.at, Length: o.object.Length, Transforms: o.object.Transforms})
		if path, ok := w.source.Paths[o.object.Name]; ok {
			m.Paths[o.object.Name] = path
		}
	}
	return m
}
