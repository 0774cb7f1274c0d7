// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/safetensors"
	"phalanx/ckpt/view"
)

// Sizes of files unless asked otherwise, in bytes.
const (
	// DefaultRecordBytes is for dcp: what one request of an object store takes well.
	DefaultRecordBytes = 256 << 20
	// DefaultShardBytes is for safetensors, as Hugging Face cuts.
	DefaultShardBytes = 5 << 30
)

// extent is where a range of a tensor's bytes goes.
type extent struct {
	item     int
	from, to int64 // bytes of the tensor as it is written
	file     int
	at       int64 // of the first byte in the file
	box      view.Box
}

// outFile is a file to be written.
type outFile struct {
	name string
	size int64
	head []byte
}

// arrangement is which bytes go where. Items are streamed in the order of order; their extents come in that order too, and
// those of one file together.
type arrangement struct {
	files   []outFile
	order   []int
	extents []extent
	objects []placedObject
}

// placedObject is an object of the source that is copied as it is.
type placedObject struct {
	object view.Object
	file   int
	at     int64
}

// align is where records and files' parts begin.
const align = 64

func aligned(n int64) int64 { return (n + align - 1) / align * align }

// arrangeRaw gives every tensor a file.
func arrangeRaw(items []Item) *arrangement {
	a := &arrangement{}
	for i, it := range items {
		a.files = append(a.files, outFile{name: fmt.Sprintf("tensor-%05d.bin", i), size: it.Bytes()})
		a.order = append(a.order, i)
		a.extents = append(a.extents, extent{item: i, to: it.Bytes(), file: i, box: view.Whole(it.Shape)})
	}
	return a
}

// arrangeDCP packs records into files of about target bytes. A tensor that is larger is cut into several records.
func arrangeDCP(items []Item, objects []view.Object, target int64) *arrangement {
	a := &arrangement{}
	place := func(n int64) (int, int64) {
		k := len(a.files) - 1
		if k < 0 || a.files[k].size > 0 && aligned(a.files[k].size)+n > target {
			a.files = append(a.files, outFile{name: fmt.Sprintf("__0_%d.distcp", len(a.files))})
			k++
		}
		at := aligned(a.files[k].size)
		a.files[k].size = at + n
		return k, at
	}
	for i, it := range items {
		a.order = append(a.order, i)
		boxes := ckpt.Chunks(i, it.TensorInfo, target)
		if len(boxes) == 0 { // PyTorch wants a record of a tensor without elements too
			boxes = []ckpt.Box{{Tensor: i, Offset: make([]int, len(it.Shape)), Size: it.Shape}}
		}
		var from int64
		for _, b := range boxes {
			box := view.Box{Offset: b.Offset, Shape: b.Size}
			n := box.Elements() * int64(phalanx.DTypeSize(it.DType))
			file, at := place(dcp.RecordLen(n))
			a.extents = append(a.extents, extent{i, from, from + n, file, at + dcp.PayloadAt, box})
			from += n
		}
	}
	for _, o := range objects {
		file, at := place(o.Length)
		a.objects = append(a.objects, placedObject{o, file, at})
	}
	return a
}

// arrangeSafetensors packs the written ones of items into files of about target bytes; a tensor is never cut. Tied ones are named in
// the metadata of the file that has what they are tied to.
func arrangeSafetensors(items []Item, written []int, aliases []safetensors.Alias, metadata map[string]string, target int64, name string) (*arrangement, error) {
	infos := make([]phalanx.TensorInfo, len(written))
	for k, i := range written {
		infos[k] = items[i].TensorInfo
	}
	groups := safetensors.Split(infos, target)
	a := &arrangement{}
	for k, group := range groups {
		some := make([]phalanx.TensorInfo, len(group))
		byName := make(map[string]int, len(group))
		for n, i := range group {
			some[n] = infos[i]
			byName[infos[i].Name] = written[i]
		}
		tied := slices.DeleteFunc(slices.Clone(aliases), func(alias safetensors.Alias) bool { _, here := byName[alias.Of]; return !here })
		all, err := safetensors.AliasMetadata(metadata, tied)
		if err != nil {
			return nil, err
		}
		f, err := safetensors.Layout(some, all)
		if err != nil {
			return nil, err
		}
		file := outFile{name: name, size: f.Size, head: f.Head()}
		if len(groups) > 1 {
			file.name = safetensors.ModelName(k+1, len(groups))
		}
		for _, t := range f.Tensors {
			i := byName[t.Name]
			a.order = append(a.order, i)
			a.extents = append(a.extents, extent{item: i, to: t.Length, file: k, at: t.At, box: view.Whole(t.Shape)})
		}
		a.files = append(a.files, file)
	}
	return a, nil
}

// tied says which items are written, and which are only named because their elements are the same stored bytes as another's.
func tied(v *view.View, items []Item, tie bool) (written []int, aliases []safetensors.Alias) {
	identity := make([]string, len(items))
	for i, it := range items {
		t := &v.Tensors[it.Tensor]
		if !tie || t.Bytes() == 0 {
			continue
		}
		for _, s := range t.Shards {
			identity[i] += fmt.Sprintf("%q %d %d %d %v %v;", s.Object, s.At, s.Length, s.First, s.Strides, s.Offset)
		}
	}
	return safetensors.Tied(Layout(items), identity)
}

// FileSuffix is what the name of a file of safetensors ends with.
const FileSuffix = safetensors.Suffix
