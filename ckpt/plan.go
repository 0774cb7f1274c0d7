// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"fmt"
	"slices"

	"phalanx"
)

// Sizes of what is written. A chunk is never larger than an object.
const (
	// DefaultObjectBytes makes one request of every object: large enough for throughput, small enough to send again.
	DefaultObjectBytes = 64 << 20
	// DefaultPuts keeps a disk and a few connections busy. A host's ranks write at the same time.
	DefaultPuts = 8
	// MinObjectBytes is the smallest object size that NewPlan takes, besides what the container adds.
	MinObjectBytes = 64
	// minChunkBytes stops the cutting for balance: smaller pieces cost more to describe than to write.
	minChunkBytes = 64 << 10
	// chunksPerRank is how finely a state is cut for balance: the ranks' shares differ by at most two chunks.
	chunksPerRank = 8
	// Align is where chunks begin in an object, in bytes: what vector loads and direct I/O into tensors want.
	Align = 64
)

// Plan says which rank writes what of the state of one coordinate. It is a pure function of layout, ranks and options, so
// that every member computes the same.
type Plan struct {
	Coordinate  int
	Container   string
	Layout      []phalanx.TensorInfo
	ObjectBytes int64
	Puts        int     // see PlanOptions
	Shards      []Shard // in rank order, one for each rank
}

// Shard is one rank's share.
type Shard struct {
	Rank phalanx.Rank
	// Boxes to write, in layout order and by bytes inside a tensor.
	Boxes []Box
	// Digests lists the tensors whose D1 this rank computes, ascending: those of its boxes, and those of the rank before it
	// (the last one's, for the first). So every tensor is digested whole by two ranks at least, from their own memories, and
	// the publisher compares: copies that differ are not published. The first rank adds the tensors without elements.
	Digests []int
	Bytes   int64
}

// PlanOptions are sizes in bytes; 0 is the default.
type PlanOptions struct {
	Container   string // ContainerDCP
	ObjectBytes int64  // capacity of an object, DefaultObjectBytes
	ChunkBytes  int64  // largest chunk, ObjectBytes
	// Puts is how many objects of a share are written at once, DefaultPuts. What is written does not depend on it.
	Puts int
}

// NewPlan deals the state of one coordinate to the ranks that hold it.
func NewPlan(coordinate int, layout []phalanx.TensorInfo, ranks []phalanx.Rank, o PlanOptions) (*Plan, error) {
	if err := CheckLayout(layout); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if o.ObjectBytes == 0 {
		o.ObjectBytes = DefaultObjectBytes
	}
	if o.Puts <= 0 {
		o.Puts = DefaultPuts
	}
	if o.Container == "" {
		o.Container = ContainerDCP
	}
	if err := checkContainer(FormatVersion, o.Container); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	// A chunk and what the container puts around it fit into one object.
	if most := o.ObjectBytes - (frame{o.Container}).around(o.ObjectBytes); o.ChunkBytes == 0 || o.ChunkBytes > most {
		o.ChunkBytes = most / Align * Align
	}
	if o.ObjectBytes < MinObjectBytes || o.ChunkBytes < MinObjectBytes {
		return nil, fmt.Errorf("plan: objects of %d and chunks of %d bytes, at least %d", o.ObjectBytes, o.ChunkBytes, MinObjectBytes)
	}
	ranks = slices.Clone(ranks)
	slices.Sort(ranks)
	if len(ranks) == 0 || ranks[0] < 0 || len(slices.Compact(slices.Clone(ranks))) != len(ranks) {
		return nil, fmt.Errorf("plan: ranks %v: want at least one, none negative, none twice", ranks)
	}
	p := &Plan{Coordinate: coordinate, Container: o.Container, Layout: layout, ObjectBytes: o.ObjectBytes, Puts: o.Puts}
	for _, r := range ranks {
		p.Shards = append(p.Shards, Shard{Rank: r})
	}
	p.deal(o.ChunkBytes)
	return p, nil
}

// deal cuts the tensors, laid end to end, into chunks and gives each rank a contiguous run: at most one tensor is split at
// each seam between two ranks.
func (p *Plan) deal(chunkBytes int64) {
	var total int64
	for _, t := range p.Layout {
		if !t.PerRank {
			total += t.Bytes()
		}
	}
	n := int64(len(p.Shards))
	target := min(chunkBytes, max(minChunkBytes, total/(n*chunksPerRank)))
	var at int64 // bytes dealt so far
	for i, t := range p.Layout {
		if t.PerRank { // there is nothing to balance
			boxes := Chunks(i, t, chunkBytes)
			for k := range p.Shards {
				s := &p.Shards[k]
				s.Boxes = append(s.Boxes, boxes...)
				s.Bytes += t.Bytes()
				s.Digests = append(s.Digests, i)
			}
			continue
		}
		boxes := Chunks(i, t, target)
		if len(boxes) == 0 {
			p.Shards[0].Digests = append(p.Shards[0].Digests, i)
		}
		for _, b := range boxes {
			_, length, err := b.Range(t)
			if err != nil {
				panic("ckpt: Chunks made a box that is none: " + err.Error()) // a bug here, never input
			}
			s := &p.Shards[shareOf(at+length/2, total, n)]
			s.Boxes = append(s.Boxes, b)
			s.Bytes += length
			if k := len(s.Digests); k == 0 || s.Digests[k-1] != i {
				s.Digests = append(s.Digests, i)
			}
			at += length
		}
	}
	p.crossCheck()
}

// crossCheck lets each rank digest what the one before it writes, too: it costs a second pass over a share and finds every
// tensor in which one of the two is wrong.
func (p *Plan) crossCheck() {
	own := make([][]int, len(p.Shards))
	for k, s := range p.Shards {
		own[k] = s.Digests
	}
	for k := range p.Shards {
		before := own[(k+len(own)-1)%len(own)]
		digests := slices.Concat(own[k], before)
		slices.Sort(digests)
		p.Shards[k].Digests = slices.Compact(digests)
	}
}

// shareOf returns which of n equal shares of total a byte is in, without overflowing.
func shareOf(at, total, n int64) int64 {
	share := total / n
	if share == 0 {
		return min(at, n-1)
	}
	return min(at/share, n-1)
}

// Transferable reports whether any holder of the state may write any rank's share. It may not when ranks have tensors of
// their own, which nobody else holds.
func (p *Plan) Transferable() bool {
	return !slices.ContainsFunc(p.Layout, func(t phalanx.TensorInfo) bool { return t.PerRank })
}

// Shard returns the share of a rank, nil when the rank has none.
func (p *Plan) Shard(rank phalanx.Rank) *Shard {
	for i := range p.Shards {
		if p.Shards[i].Rank == rank {
			return &p.Shards[i]
		}
	}
	return nil
}
