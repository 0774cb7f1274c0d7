// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// What PyTorch puts into the metadata of the files that it writes.
const (
	shardingKey = "DCP_SHARDING_INFO"
	versionKey  = "DCP_VERSION"
	formatKey   = "format"
)

// ShardingMetadata is the __metadata__ of a file of boxes: offsets has for each tensor of the file the first index of its box
// in every dimension (all 0 for a whole tensor, empty for a scalar). PyTorch requires an entry for every tensor of a file
// that has any.
func ShardingMetadata(offsets map[string][]int) map[string]string {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(offsets)) {
		if i > 0 {
			b.WriteString(", ")
		}
		quote(&b, name)
		b.WriteString(`: {"saved_offsets": [`)
		for d, n := range offsets[name] {
			if d > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%d", n)
		}
		b.WriteString("]}")
	}
	b.WriteByte('}')
	return map[string]string{shardingKey: b.String(), versionKey: "1.0", formatKey: "pt"}
}

// Offsets returns where the file's tensors lie in the larger ones that they are boxes of, nil when the file does not say so.
// Then every tensor of the file has an entry, with a number for each dimension.
func (f *File) Offsets() (map[string][]int, error) {
	text, sharded := f.Metadata[shardingKey]
	if !sharded || text == "" {
		return nil, nil
	}
	w, err := newWalker([]byte(text), shardingKey+": byte", 0)
	if err != nil {
		return nil, err
	}
	offsets := make(map[string][]int, len(f.Tensors))
	err = w.object(func(name string) error {
		return w.object(func(field string) (err error) {
			if field != "saved_offsets" {
				return w.skip()
			}
			offsets[name], err = w.counts(about{"tensor", name, "saved_offsets"})
			return err
		})
	})
	if err == nil {
		err = w.end()
	}
	if err != nil {
		return nil, err
	}
	for _, t := range f.Tensors {
		if o := offsets[t.Name]; len(o) != len(t.Shape) || o == nil {
			return nil, fmt.Errorf("%w: %s: tensor %.200q has %d dimensions, and %d offsets", ErrDamaged, shardingKey, t.Name, len(t.Shape), len(o))
		}
	}
	return offsets, nil
}
