// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"cmp"
	"fmt"
	"slices"
)

// covered checks that the pieces cover every element once: no two share an element, and they have as many as the whole.
func (t *Whole) covered() error {
	all, ok := length(8, t.Shape)
	if !ok {
		return fmt.Errorf("%w: tensor %.200q: its boxes reach to %d, more elements than can be counted", ErrDamaged, t.Name, t.Shape)
	}
	var pieces []Piece // those with elements
	var sum int64
	for _, p := range t.Pieces {
		if n, _ := length(8, p.Size); n > 0 {
			pieces, sum = append(pieces, p), sum+n
		}
	}
	if a, b, found := overlap(pieces, t.Shape); found {
		return fmt.Errorf("%w: tensor %.200q: the box at %d of size %d in %s overlaps the one at %d of size %d in %s", ErrDamaged,
			t.Name, a.Offset, a.Size, a.File, b.Offset, b.Size, b.File)
	}
	if sum != all {
		return fmt.Errorf("%w: tensor %.200q of shape %d: its %d boxes have %d of %d elements; a file of the folder is missing", ErrDamaged,
			t.Name, t.Shape, len(t.Pieces), sum, all)
	}
	return nil
}

// overlap finds two pieces that share an element. It sweeps along the dimension that is cut most, so that only pieces which
// meet there are compared.
func overlap(pieces []Piece, shape []int) (a, b Piece, found bool) {
	if len(pieces) < 2 {
		return a, b, false
	}
	if len(shape) == 0 {
		return pieces[0], pieces[1], true
	}
	sweep, most := 0, 0
	for d := range shape {
		begins := map[int]struct{}{}
		for _, p := range pieces {
			begins[p.Offset[d]] = struct{}{}
		}
		if len(begins) > most {
			sweep, most = d, len(begins)
		}
	}
	sorted := slices.Clone(pieces)
	slices.SortStableFunc(sorted, func(a, b Piece) int { return cmp.Compare(a.Offset[sweep], b.Offset[sweep]) })
	var open []Piece // begun and not ended before the present one begins
	for _, p := range sorted {
		open = slices.DeleteFunc(open, func(q Piece) bool { return q.Offset[sweep]+q.Size[sweep] <= p.Offset[sweep] })
		for _, q := range open {
			if meet(p, q) {
				return q, p, true
			}
		}
		open = append(open, p)
	}
	return a, b, false
}

func meet(a, b Piece) bool {
	for d := range a.Offset {
		if a.Offset[d]+a.Size[d] <= b.Offset[d] || b.Offset[d]+b.Size[d] <= a.Offset[d] {
			return false
		}
	}
	return true
}
