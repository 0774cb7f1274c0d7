// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"phalanx"
	"phalanx/ckpt"
)

// Layout lists the tensors.
func (v *View) Layout() []phalanx.TensorInfo {
	layout := make([]phalanx.TensorInfo, len(v.Tensors))
	for i := range v.Tensors {
		layout[i] = v.Tensors[i].Info()
		if layout[i].DType == "" {
			layout[i].DType = v.Tensors[i].DTypeName
		}
	}
	return layout
}

// MaxLayoutBytes bounds a file of shapes.
const MaxLayoutBytes = 256 << 20

// DecodeLayout reads a file of shapes: {"tensors": [{"name", "dtype", "shape"}, …]}, as inspect --json prints it among other
// things, or {"NAME": {"dtype", "shape"}, …}. The dtype may be missing, then it is "" and any is right. It never panics and
// allocates in proportion to the input.
func DecodeLayout(b []byte) ([]phalanx.TensorInfo, error) {
	fail := func(err error) ([]phalanx.TensorInfo, error) {
		return nil, fmt.Errorf(`shapes: %w; want {"NAME": {"dtype": "f32", "shape": [2, 3]}, …} or what phalanx ckpt inspect --json prints`, err)
	}
	if len(b) > MaxLayoutBytes {
		return fail(fmt.Errorf("%d bytes, at most %d", len(b), MaxLayoutBytes))
	}
	var top map[string]json.RawMessage
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&top); err != nil {
		return fail(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("bytes after the end"))
	}
	type entry struct {
		Name  string `json:"name"`
		DType string `json:"dtype"`
		Shape *[]int `json:"shape"`
	}
	var list []entry
	if raw, ok := top["tensors"]; ok && bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
		if err := json.Unmarshal(raw, &list); err != nil {
			return fail(err)
		}
	} else {
		for name, raw := range top {
			e := entry{}
			if err := json.Unmarshal(raw, &e); err != nil {
				return fail(fmt.Errorf("tensor %.80q: %w", name, err))
			}
			e.Name = name
			list = append(list, e)
		}
		slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	}
	layout := make([]phalanx.TensorInfo, len(list))
	check := make([]phalanx.TensorInfo, len(list))
	for i, e := range list {
		if e.Shape == nil {
			return fail(fmt.Errorf("tensor %.80q has no shape", e.Name))
		}
		layout[i] = phalanx.TensorInfo{Name: e.Name, DType: e.DType, Shape: *e.Shape}
		check[i] = layout[i]
		if e.DType == "" {
			check[i].DType = "u8"
		}
	}
	if err := ckpt.CheckLayout(check); err != nil {
		return fail(err)
	}
	return layout, nil
}

// Compare says how stored tensors differ from wanted ones, in both directions. A wanted dtype of "" is any.
func Compare(stored, wanted []phalanx.TensorInfo) ckpt.LayoutDiff {
	types := make(map[string]string, len(stored))
	for _, t := range stored {
		types[t.Name] = t.DType
	}
	wanted = slices.Clone(wanted)
	for i, t := range wanted {
		if t.DType == "" {
			wanted[i].DType = types[t.Name]
		}
	}
	return ckpt.CompareLayouts(stored, wanted)
}
