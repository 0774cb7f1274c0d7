// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"phalanx"
)

// Bounds on what a layout may say. They keep a damaged or hostile manifest from costing memory or overflowing sums.
const (
	MaxTensors     = 1 << 20
	MaxNameBytes   = 1024
	MaxDims        = 16
	MaxTensorBytes = 1 << 50
)

// checkTensor reports why a tensor cannot be stored.
func checkTensor(t phalanx.TensorInfo) error {
	switch {
	case t.Name == "" || len(t.Name) > MaxNameBytes || !utf8.ValidString(t.Name) || strings.ContainsRune(t.Name, 0):
		return fmt.Errorf("tensor %.60q: a name has 1 to %d bytes of UTF-8 without NUL", t.Name, MaxNameBytes)
	case phalanx.DTypeSize(t.DType) == 0:
		return fmt.Errorf("tensor %.60q: dtype %.20q is unknown", t.Name, t.DType)
	case len(t.Shape) > MaxDims:
		return fmt.Errorf("tensor %.60q: %d dimensions, at most %d", t.Name, len(t.Shape), MaxDims)
	}
	size := int64(phalanx.DTypeSize(t.DType))
	for _, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("tensor %.60q: dimension %d is negative", t.Name, d)
		}
		// The bound holds for the product of the dimensions that are not 0: an empty tensor's strides are bounded too.
		if d > 0 && int64(d) > MaxTensorBytes/size {
			return fmt.Errorf("tensor %.60q: larger than %d bytes", t.Name, int64(MaxTensorBytes))
		}
		size *= int64(max(d, 1))
	}
	return checkGlobal(t)
}

// checkGlobal reports why a tensor cannot be a part of the larger one that it says it is.
func checkGlobal(t phalanx.TensorInfo) error {
	g := t.Global
	switch {
	case g == nil:
		return nil
	case t.PerRank:
		return fmt.Errorf("tensor %.60q: is a box of a larger tensor and of each rank's own; it can only be one of them", t.Name)
	case len(g.Shape) != len(t.Shape) || len(g.Offset) != len(t.Shape):
		return fmt.Errorf("tensor %.60q: %d dimensions in a tensor of %d at an offset of %d", t.Name, len(t.Shape), len(g.Shape), len(g.Offset))
	}
	for d, n := range t.Shape {
		if g.Offset[d] < 0 || g.Offset[d] > g.Shape[d] || n > g.Shape[d]-g.Offset[d] {
			return fmt.Errorf("tensor %.60q: dimension %d covers [%d, %d+%d) of %d", t.Name, d, g.Offset[d], g.Offset[d], n, g.Shape[d])
		}
	}
	return checkTensor(phalanx.TensorInfo{Name: t.Name, DType: t.DType, Shape: g.Shape})
}

// CheckLayout reports why a list of tensors cannot be a state: a bad tensor, or a name that appears twice.
func CheckLayout(layout []phalanx.TensorInfo) error {
	if len(layout) > MaxTensors {
		return fmt.Errorf("layout: %d tensors, at most %d", len(layout), MaxTensors)
	}
	seen := make(map[string]bool, len(layout))
	for _, t := range layout {
		if err := checkTensor(t); err != nil {
			return fmt.Errorf("layout: %w", err)
		}
		if seen[t.Name] {
			return fmt.Errorf("layout: tensor %.60q appears twice", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

// layoutHash names a layout: names, dtypes, shapes and their order. Each part carries it, so that the publisher notices a
// tensor that no part mentions.
func layoutHash(layout []phalanx.TensorInfo) string {
	h := sha256.New()
	for _, t := range layout {
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		// Encoding strings and ints cannot fail; each line is unambiguous because JSON quotes newlines.
		fields := []any{t.Name, t.DType, shape}
		if t.Global != nil || t.PerRank {
			fields = append(fields, t.Global, t.PerRank)
		}
		line, _ := json.Marshal(fields)
		h.Write(append(line, '\n'))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// LayoutDiff says how the tensors of a checkpoint differ from those of a running job, in both directions.
type LayoutDiff struct {
	Missing    []string // wanted, not stored
	Unexpected []string // stored, not wanted
	Changed    []string // "NAME: stored DTYPE[SHAPE], wanted DTYPE[SHAPE]"
}

// Empty reports whether there is no difference. Order is none.
func (d LayoutDiff) Empty() bool {
	return len(d.Missing) == 0 && len(d.Unexpected) == 0 && len(d.Changed) == 0
}

func (d LayoutDiff) String() string {
	var lines []string
	for _, s := range d.Missing {
		lines = append(lines, "missing in the checkpoint: "+s)
	}
	for _, s := range d.Unexpected {
		lines = append(lines, "unexpected in the checkpoint: "+s)
	}
	lines = append(lines, d.Changed...)
	return strings.Join(lines, "\n")
}

// CompareLayouts compares by name. Names are reported in byte order.
func CompareLayouts(stored, wanted []phalanx.TensorInfo) LayoutDiff {
	var d LayoutDiff
	byName := make(map[string]phalanx.TensorInfo, len(stored))
	for _, t := range stored {
		byName[t.Name] = t
	}
	for _, w := range wanted {
		s, found := byName[w.Name]
		delete(byName, w.Name)
		switch {
		case !found:
			d.Missing = append(d.Missing, w.Name)
		case s.DType != w.DType || !slices.Equal(s.Shape, w.Shape):
			d.Changed = append(d.Changed, fmt.Sprintf("%s: stored %s%v, wanted %s%v", w.Name, s.DType, s.Shape, w.DType, w.Shape))
		}
	}
	for name := range byName {
		d.Unexpected = append(d.Unexpected, name)
	}
	slices.Sort(d.Missing)
	slices.Sort(d.Unexpected)
	slices.Sort(d.Changed)
	return d
}
