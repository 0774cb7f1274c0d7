// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"phalanx"
	"phalanx/ckpt"
)

// limits are sizes in bytes that reading keeps to.
type limits struct {
	// whole is the largest shard that is fetched whole for its checksum when a part of it is asked for. Larger ones are read
	// through once.
	whole int64
	// fetch bounds one request, and so the memory of requests in flight.
	fetch int64
	// batch is what Stream reads at once. Two batches are in memory: one is read while the other is consumed.
	batch int64
}

// usual are the limits outside of tests.
var usual = limits{whole: 64 << 20, fetch: 8 << 20, batch: 32 << 20}

// limit returns the limits of the view.
func (v *View) limit() limits {
	if v.limits == (limits{}) {
		return usual
	}
	return v.limits
}

// piece is a box of a tensor that is to be read into dst, row-major.
type piece struct {
	tensor int
	box    Box
	dst    []byte
}

// segment is a byte range of a shard and the runs of a transfer that are in it.
type segment struct {
	piece, shard int
	from, to     int64 // bytes of the shard's stored range
	first, runs  int64 // runs of the transfer; parts outside of [from, to) are others'
}

// fetch is one request and what its bytes are for.
type fetch struct {
	object     string
	at, length int64
	segments   []segment
}

// Cost is what a read takes.
type Cost struct {
	Needed   int64 `json:"needed_bytes"` // what is asked for
	Read     int64 `json:"read_bytes"`   // what is fetched for it
	Requests int   `json:"requests"`
	// Widened counts shards that are fetched whole, or read through first, because their checksum covers all of them.
	Widened int `json:"widened_shards"`
}

// OverRead is the ratio of what is fetched to what is needed, 1 at best; 0 when nothing is needed.
func (c Cost) OverRead() float64 {
	if c.Needed == 0 {
		return 0
	}
	return float64(c.Read) / float64(c.Needed)
}

// Add sums costs.
func (c Cost) Add(d Cost) Cost {
	return Cost{c.Needed + d.Needed, c.Read + d.Read, c.Requests + d.Requests, c.Widened + d.Widened}
}

// source is a shard that a piece needs.
type source struct {
	Shard
	index    int // in the tensor's shards
	transfer transfer
}

// strategy says how the stored bytes of a shard are verified.
type strategy uint8

const (
	unverified strategy = iota // there is no checksum
	whole                      // fetched whole, compared before anything is given back
	running                    // summed as its bytes pass in order
	earlier                    // read through once before, then in ranges
)

// strategyFor decides how a shard is verified.
func (v *View) strategyFor(s *Shard, elem int64, inOrder bool) strategy {
	switch {
	case s.Sum.Kind == NoSum:
		return unverified
	case s.exact(elem) && inOrder:
		return running
	case s.exact(elem) && s.Length <= v.limit().whole:
		return whole
	}
	return earlier
}

// sources finds the shards of a piece and where in them its elements are.
func (v *View) sources(ctx context.Context, p *piece) ([]source, error) {
	t := &v.Tensors[p.tensor]
	elem := int64(phalanx.DTypeSize(t.DType))
	if elem == 0 {
		return nil, fmt.Errorf("tensor %.80q: dtype %.80q cannot be read: %w", t.Name, t.DTypeName, ckpt.ErrFormat)
	}
	if err := p.box.Check(t.Shape); err != nil {
		return nil, fmt.Errorf("tensor %.80q: %w", t.Name, err)
	}
	var out []source
	covered := int64(0)
	for _, i := range v.touching(p.tensor, p.box) {
		s, err := v.located(ctx, p.tensor, i)
		if err != nil {
			return nil, err
		}
		part, _ := s.Intersect(p.box)
		covered += part.Elements()
		out = append(out, source{s, i, newTransfer(part, s.Box, p.box, s.strides(), s.First, elem)})
	}
	if covered != p.box.Elements() {
		return nil, fmt.Errorf("tensor %.80q: shards hold %d of the %d elements of the box at %v of %v: %w", t.Name, covered, p.box.Elements(),
			p.box.Offset, p.box.Shape, ckpt.ErrIncomplete)
	}
	return out, nil
}

// planner turns pieces into requests. It is pure.
type planner struct {
	gap      int64
	most     int64 // bytes of a request
	segments []segment
	objects  []string // of each segment
	at       []int64  // of each segment, in its object
}

// add plans the ranges of a source. Parts of a shard that is fetched whole are cut only by the size of a request.
func (pl *planner) add(pieceAt int, s *source, how strategy) {
	add := func(from, to, first, runs int64) {
		pl.segments = append(pl.segments, segment{pieceAt, s.index, from, to, first, runs})
		pl.objects = append(pl.objects, s.Object)
		pl.at = append(pl.at, s.At+from)
	}
	if how == whole {
		for from := int64(0); from < s.Length; from += pl.most {
			add(from, min(from+pl.most, s.Length), 0, s.transfer.count())
		}
		return
	}
	var from, to, first, n int64
	s.transfer.each(func(src, _ int64) bool {
		end := src + s.transfer.run
		switch {
		case n > first && src >= from && src <= to+pl.gap && max(to, end)-from <= pl.most:
			to = max(to, end)
		default:
			if n > first {
				add(from, to, first, n-first)
			}
			from, to, first = src, end, n
			for ; to-from > pl.most; from += pl.most { // a run that is longer than a request
				add(from, from+pl.most, n, 1)
			}
		}
		n++
		return true
	})
	if n > first {
		add(from, to, first, n-first)
	}
}

// fetches joins ranges of an object that lie near each other.
func (pl *planner) fetches() []fetch {
	order := make([]int, len(pl.segments))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(strings.Compare(pl.objects[a], pl.objects[b]), cmp.Compare(pl.at[a], pl.at[b]))
	})
	var out []fetch
	for _, i := range order {
		s, object, at := pl.segments[i], pl.objects[i], pl.at[i]
		length := s.to - s.from
		if k := len(out) - 1; k >= 0 {
			if f := &out[k]; f.object == object && at <= f.at+f.length+pl.gap && max(f.length, at+length-f.at) <= pl.most {
				f.length = max(f.length, at+length-f.at)
				f.segments = append(f.segments, s)
				continue
			}
		}
		out = append(out, fetch{object, at, length, []segment{s}})
	}
	return out
}

// Plan says what ReadBox of a box takes. It reads no data, but the headers of archives around the elements.
func (v *View) Plan(ctx context.Context, tensor int, box Box) (Cost, error) {
	p := &piece{tensor: tensor, box: box}
	sources, err := v.sources(ctx, p)
	if err != nil {
		return Cost{}, err
	}
	elem := int64(phalanx.DTypeSize(v.Tensors[tensor].DType))
	cost := Cost{Needed: box.Elements() * elem}
	pl := planner{gap: v.files.Gap(), most: v.limit().fetch}
	for i := range sources {
		how := v.strategyFor(&sources[i].Shard, elem, false)
		pl.add(0, &sources[i], how)
		if how == whole || how == earlier {
			cost.Widened++
		}
		if how == earlier {
			cost.Read += sources[i].Length
			cost.Requests += int((sources[i].Length + pl.most - 1) / pl.most)
		}
	}
	for _, f := range pl.fetches() {
		cost.Read += f.length
		cost.Requests++
	}
	return cost, nil
}

// StreamCost says what Stream of tensors takes. It reads nothing, so archives around elements are counted as a whole.
func (v *View) StreamCost(ctx context.Context, tensors []int) (Cost, error) {
	var cost Cost
	for _, i := range tensors {
		t := &v.Tensors[i]
		cost.Needed += t.Bytes()
		pl := planner{gap: v.files.Gap(), most: v.limit().fetch}
		for _, p := range v.pieces(i) {
			for _, k := range v.touching(p.tensor, p.box) {
				s := t.Shards[k]
				elem := int64(phalanx.DTypeSize(t.DType))
				if s.Record { // as if its elements filled it
					s.Record, s.First, s.Length = false, 0, s.Elements()*elem
				}
				part, _ := s.Intersect(p.box)
				how := v.strategyFor(&s, elem, true)
				pl.add(0, &source{s, k, newTransfer(part, s.Box, p.box, s.strides(), s.First, elem)}, how)
			}
		}
		for _, f := range pl.fetches() {
			cost.Read += f.length
			cost.Requests++
		}
		for k := range t.Shards {
			s := &t.Shards[k]
			if s.Record {
				cost.Read += s.Length - s.Elements()*int64(phalanx.DTypeSize(t.DType))
				cost.Requests++
			} else if v.strategyFor(s, int64(phalanx.DTypeSize(t.DType)), true) == earlier {
				cost.Read += s.Length
				cost.Requests += int((s.Length + pl.most - 1) / pl.most)
				cost.Widened++
			}
		}
	}
	return cost, ctx.Err()
}
