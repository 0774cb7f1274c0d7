// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/elem"
	"phalanx/ckpt/view"
	"phalanx/kernels"
)

// pieceBytes bounds what Read holds of a tensor at a time.
const pieceBytes = 32 << 20

// Options say for whom a plan is and what it may do.
type Options struct {
	// Rank is whose own tensors are taken, where each rank has some.
	Rank phalanx.Rank
	// Cast lets floating-point tensors be stored as another floating-point dtype than is wanted.
	Cast bool
}

// Source is where a tensor of the state is from.
type Source struct {
	Tensor int // of the view; -1: nothing there, what the rank has stays
	Box    view.Box
	DType  string // as it is stored
}

// Plan says where each tensor of a rank's state is from.
type Plan struct {
	Wanted  []phalanx.TensorInfo
	Sources []Source // one for each of Wanted

	view *view.View
}

// All lists the tensors of a view under their own names.
func All(v *view.View) []convert.Item {
	items := make([]convert.Item, len(v.Tensors))
	for i := range v.Tensors {
		items[i] = convert.Item{Tensor: i, TensorInfo: v.Tensors[i].Info()}
	}
	return items
}

// New finds the tensors of a state among those of a view. The difference names what is missing or does not fit, and as unexpected
// the items that this rank has no use for; another coordinate may have one: see Unexpected.
func New(v *view.View, items []convert.Item, wanted []phalanx.TensorInfo, o Options) (*Plan, ckpt.LayoutDiff) {
	p := &Plan{Wanted: wanted, view: v}
	var diff ckpt.LayoutDiff
	byName := make(map[string]int, len(items))
	owned := map[string][]int{} // items that are one rank's own, by the name without the rank
	for i, it := range items {
		byName[it.Name] = i
		if name, _, ok := strings.Cut(it.Name, rankMark); ok {
			owned[name] = append(owned[name], i)
		}
	}
	used := make([]bool, len(items))
	for _, w := range wanted {
		at, found := byName[w.Name]
		if own := owned[w.Name]; w.PerRank && len(own) > 0 {
			at, found = own[0], true // the first one's, where this rank had none
			for _, k := range own {
				used[k] = true
				if items[k].Name == ckpt.PerRankName(w.Name, o.Rank) {
					at = k
				}
			}
		}
		if !found {
			diff.Missing = append(diff.Missing, w.Name)
			p.Sources = append(p.Sources, Source{Tensor: -1})
			continue
		}
		used[at] = true
		s, why := source(items[at], w, o)
		if why != "" {
			diff.Changed = append(diff.Changed, w.Name+": "+why)
		}
		p.Sources = append(p.Sources, s)
	}
	for i, it := range items {
		if !used[i] {
			diff.Unexpected = append(diff.Unexpected, it.Name)
		}
	}
	slices.Sort(diff.Missing)
	slices.Sort(diff.Unexpected)
	slices.Sort(diff.Changed)
	return p, diff
}

// rankMark is what ckpt.PerRankName puts between a name and a rank.
const rankMark = "@rank-"

// source is the box of an item that a wanted tensor is, or why it is none.
func source(it convert.Item, w phalanx.TensorInfo, o Options) (Source, string) {
	whole, offset := w.Shape, make([]int, len(w.Shape))
	if w.Global != nil {
		whole, offset = w.Global.Shape, w.Global.Offset
	}
	s := Source{Tensor: it.Tensor, Box: view.Box{Offset: offset, Shape: w.Shape}, DType: it.DType}
	if !slices.Equal(it.Shape, whole) {
		return s, fmt.Sprintf("stored %s%v, wanted %s%v", it.DType, it.Shape, w.DType, whole)
	}
	if it.DType != w.DType && !(o.Cast && convert.Floating(it.DType) && convert.Floating(w.DType)) {
		return s, fmt.Sprintf("stored %s%v, wanted %s%v", it.DType, it.Shape, w.DType, whole)
	}
	return s, ""
}

// Unexpected are the items that no coordinate has a use for, given what each of them calls unexpected.
func Unexpected(each [][]string) []string {
	if len(each) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(each[0]), func(name string) bool {
		return slices.ContainsFunc(each[1:], func(other []string) bool {
			_, found := slices.BinarySearch(other, name)
			return !found
		})
	})
}

// Read gives the elements of a tensor of the state, row-major and in order, to take, which keeps nothing of p. It returns their D1
// digest (seed 0). A tensor without a source has neither: the digest is zero and take is not called.
func (p *Plan) Read(ctx context.Context, tensor int, take func(off int64, b []byte) error) (phalanx.Digest, error) {
	w, s := p.Wanted[tensor], p.Sources[tensor]
	if s.Tensor < 0 {
		return phalanx.Digest{}, nil
	}
	hasher := kernels.NewTensorHasher(0, w.Name, w.DType, w.Shape)
	var buffer, cast []byte
	for _, c := range ckpt.Chunks(tensor, w, pieceBytes) {
		box := view.Box{Offset: make([]int, len(c.Offset)), Shape: c.Size}
		for d := range c.Offset {
			box.Offset[d] = s.Box.Offset[d] + c.Offset[d]
		}
		off, length, err := c.Range(w)
		if err != nil {
			return phalanx.Digest{}, fmt.Errorf("tensor %.80q: %w", w.Name, err)
		}
		buffer = grown(buffer, box.Elements()*int64(phalanx.DTypeSize(s.DType)))
		if err := p.view.ReadBox(ctx, s.Tensor, box, buffer); err != nil {
			return phalanx.Digest{}, err
		}
		b := buffer
		if s.DType != w.DType {
			cast = grown(cast, length)
			if _, err := elem.Cast(cast, w.DType, buffer, s.DType); err != nil {
				return phalanx.Digest{}, fmt.Errorf("tensor %.80q: %w", w.Name, err)
			}
			b = cast
		}
		hasher.Write(b)
		if err := take(off, b); err != nil {
			return phalanx.Digest{}, err
		}
	}
	return hasher.Sum(), nil
}

func grown(b []byte, n int64) []byte {
	if int64(cap(b)) < n {
		return make([]byte, n)
	}
	return b[:n]
}
