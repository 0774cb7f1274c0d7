// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"phalanx"
)

// Origin is what PyTorch's index says of a value beside its box and bytes: what a state that was saved from Python needs to get
// back as it was. The zero Origin says nothing. From format 3 on.
type Origin struct {
	// Value: it is no tensor but bytes that Python made of some object, stored as a one-dimensional tensor of u8 in one chunk.
	Value bool `json:"value,omitempty"`
	// RequiresGrad is what PyTorch says of a parameter.
	RequiresGrad bool `json:"requires_grad,omitempty"`
	// Path are the keys and indices by which it lies in nested dicts and lists; nil is its name alone.
	Path Path `json:"path,omitempty"`
}

// Path leads to a value in nested dicts (string) and lists (int).
type Path []any

// UnmarshalJSON reads strings and integers and nothing else.
func (p *Path) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var keys []any
	if err := d.Decode(&keys); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	for i, k := range keys {
		switch k := k.(type) {
		case string:
		case json.Number:
			n, err := k.Int64()
			if err != nil {
				return fmt.Errorf("path: %.20q is no index", k.String())
			}
			keys[i] = int(n)
		default:
			return errors.New("path: an element is neither a key nor an index")
		}
	}
	*p = keys
	return nil
}

// none reports whether the origin says nothing, which older formats can say too.
func (o Origin) none() bool { return !o.Value && !o.RequiresGrad && o.Path == nil }

// equal reports whether two ranks say the same.
func (o Origin) equal(b Origin) bool {
	return o.Value == b.Value && o.RequiresGrad == b.RequiresGrad && slices.Equal(o.Path, b.Path)
}

// validate reports why a tensor of a format cannot have this origin.
func (o Origin) validate(t phalanx.TensorInfo, format int) error {
	switch {
	case o.none():
		return nil
	case format < handedFormat:
		return fmt.Errorf("tensor %.60q: format %d knows neither paths nor values that are no tensors", t.Name, format)
	case t.PerRank:
		return fmt.Errorf("tensor %.60q: is each rank's own and has a place in PyTorch's state; it can only be one of them", t.Name)
	case o.Value && (t.DType != "u8" || len(t.Shape) != 1 || t.Shape[0] == 0 || t.Global != nil):
		return fmt.Errorf("value %.60q: %s%v: want bytes in one dimension, at least one", t.Name, t.DType, t.Shape)
	case o.Path != nil && len(o.Path) == 0:
		return fmt.Errorf("tensor %.60q: an empty path", t.Name)
	}
	return nil
}

// path is the way to a value in PyTorch's index.
func (o Origin) path(name string) []any {
	if o.Path == nil {
		return []any{name}
	}
	return o.Path
}
