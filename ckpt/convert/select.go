// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"strings"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/view"
)

// Selection says which tensors are taken, and as what.
type Selection struct {
	Only    []string // globs; none takes every tensor
	Renames []Rename // tried in order, the first that matches counts
	// Strip removes what wrappers of PyTorch put into names: "module." at the beginning, and "_orig_mod." anywhere.
	Strip bool
	// DType is what floating-point tensors are cast to; "" casts none. Others stay as they are.
	DType string
}

// Rename turns the name From into To, or, when From ends with a dot, all names that begin with From into ones that begin with To.
type Rename struct{ From, To string }

// ParseRename reads FROM=TO.
func ParseRename(text string) (Rename, error) {
	from, to, ok := strings.Cut(text, "=")
	if !ok || from == "" {
		return Rename{}, fmt.Errorf("rename %.80q: want FROM=TO", text)
	}
	return Rename{from, to}, nil
}

func (r Rename) apply(name string) (string, bool) {
	if name == r.From {
		return r.To, true
	}
	rest, ok := strings.CutPrefix(name, r.From)
	if ok && strings.HasSuffix(r.From, ".") {
		return r.To + rest, true
	}
	return name, false
}

// Item is a tensor of the source as it will be written.
type Item struct {
	Tensor int // in the source's tensors
	phalanx.TensorInfo
}

// ErrClash: two tensors would have one name.
var ErrClash = errors.New("two tensors have one name")

// ErrName: a tensor would have a name that none can have.
var ErrName = errors.New("a tensor needs a name")

// Select lists what a selection takes, in the order of the source.
func Select(v *view.View, s Selection) ([]Item, error) {
	match, err := view.AnyGlob(s.Only)
	if err != nil {
		return nil, err
	}
	if err := CheckCast(s.DType); err != nil {
		return nil, err
	}
	var items []Item
	from := map[string]string{}
	for i := range v.Tensors {
		t := &v.Tensors[i]
		if !match(t.Name) {
			continue
		}
		info := t.Info()
		info.Name = s.rename(t.Name)
		if other, taken := from[info.Name]; taken {
			return nil, fmt.Errorf("%.80q and %.80q would both be %.80q: %w", other, t.Name, info.Name, ErrClash)
		}
		from[info.Name] = t.Name
		if info.Name == "" && t.Name != "" {
			return nil, fmt.Errorf("%.80q would get the name \"\": %w", t.Name, ErrName)
		}
		if t.DType == "" {
			return nil, fmt.Errorf("tensor %.80q: dtype %.80q cannot be converted; leave it out with --only: %w", t.Name, t.DTypeName, ckpt.ErrFormat)
		}
		if s.DType != "" && Floating(t.DType) {
			info.DType = s.DType // elem casts every float to every other
		}
		items = append(items, Item{i, info})
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("no tensor of %s is selected: %w", v.Place, ckpt.ErrNotFound)
	}
	if err := ckpt.CheckLayout(Layout(items)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return items, nil
}

func (s Selection) rename(name string) string {
	if s.Strip {
		for strings.HasPrefix(name, "module.") {
			name = strings.TrimPrefix(name, "module.")
		}
		name = strings.TrimPrefix(name, "_orig_mod.")
		name = strings.ReplaceAll(name, "._orig_mod.", ".")
	}
	for _, r := range s.Renames {
		if to, ok := r.apply(name); ok {
			return to
		}
	}
	return name
}

// floats are the dtypes between which tensors are cast.
var floats = []string{"f64", "f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"}

// CheckCast says why tensors are not cast to a dtype; "" is none.
func CheckCast(dtype string) error {
	if dtype != "" && !Floating(dtype) {
		return fmt.Errorf("dtype %.40q: tensors are cast to floating-point types only: %s", dtype, strings.Join(floats, ", "))
	}
	return nil
}

// Floating reports whether a dtype is one of those that tensors are cast between.
func Floating(dtype string) bool {
	for _, f := range floats {
		if f == dtype {
			return true
		}
	}
	return false
}

// Layout lists what the items are.
func Layout(items []Item) []phalanx.TensorInfo {
	layout := make([]phalanx.TensorInfo, len(items))
	for i, it := range items {
		layout[i] = it.TensorInfo
	}
	return layout
}
