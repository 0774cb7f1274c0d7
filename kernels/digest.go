// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"phalanx"
)

// Tensor is a named array. Data is contiguous and little-endian; DType and Shape are digested as they are spelled.
type Tensor struct {
	Name  string
	DType string
	Shape []int
	Data  []byte
}

// Digest returns the D1 job root of the tensors. It orders them by name itself and leaves the slice as it is.
func Digest(seed uint64, tensors []Tensor) phalanx.Digest {
	d, _ := digest(seed, tensors, false)
	return d
}

// DigestStats returns what Digest returns, and the statistics of the float32 and float64 tensors among them.
func DigestStats(seed uint64, tensors []Tensor) (phalanx.Digest, Stats) {
	return digest(seed, tensors, true)
}

// TensorDigest returns the root of one tensor, header leaf included.
func TensorDigest(seed uint64, t Tensor) phalanx.Digest {
	return Digest(seed, []Tensor{t})
}

// LeafDigests returns the digests of a tensor's leaves, header first, before they enter the polynomial. They tell in
// which 64 KiB two copies differ.
func LeafDigests(seed uint64, t Tensor) [][2]uint64 {
	work := newPass(newLaneKeys(seed), []Tensor{t}, false)
	work.run()
	return work.digests
}

// LeafCount is the number of leaves of a tensor, header included: what [Combine] needs beside its root.
func LeafCount(t Tensor) int64 {
	return int64(leavesOf(len(header(t.Name, t.DType, t.Shape))) + leavesOf(len(t.Data)))
}

func leavesOf(size int) int { return (size + LeafBytes - 1) / LeafBytes }

// header returns the bytes of a tensor's header leaf.
func header(name, dtype string, shape []int) []byte {
	b := make([]byte, 0, len(name)+len(dtype)+3+8*len(shape))
	b = append(append(b, name...), 0)
	b = append(append(b, dtype...), 0)
	for i, n := range shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, 0)
}

func digest(seed uint64, tensors []Tensor, stats bool) (phalanx.Digest, Stats) {
	if !slices.IsSortedFunc(tensors, byName) {
		tensors = slices.Clone(tensors)
		slices.SortStableFunc(tensors, byName)
	}
	keys := newLaneKeys(seed)
	work := newPass(keys, tensors, stats)
	work.run()
	root := newPolynomial(keys.r)
	for _, l := range work.digests {
		root.add(l)
	}
	return root.sum, foldStats(work.stats)
}

func byName(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) }

// pass is one walk over the leaves of a list of tensors. Workers write to disjoint places of digests and stats, which
// are folded in order afterwards: the result does not know how many workers there were.
type pass struct {
	keys    *laneKeys
	runs    []run
	digests [][2]uint64
	stats   []leafStats // nil when not asked for
}

// run is a header or a tensor's data: bytes that are cut into leaves of their own.
type run struct {
	data  []byte
	kind  statsKind
	first int // index of its first leaf
}

func newPass(keys *laneKeys, tensors []Tensor, stats bool) *pass {
	w := &pass{keys: keys, runs: make([]run, 0, 2*len(tensors))}
	leaves := 0
	for _, t := range tensors {
		h := header(t.Name, t.DType, t.Shape)
		w.runs = append(w.runs, run{h, noStats, leaves})
		leaves += leavesOf(len(h))
		if len(t.Data) > 0 {
			w.runs = append(w.runs, run{t.Data, statsKindOf(t.DType), leaves})
			leaves += leavesOf(len(t.Data))
		}
	}
	w.digests = make([][2]uint64, leaves)
	if stats {
		w.stats = make([]leafStats, leaves)
	}
	return w
}

const (
	// claimLeaves is how many leaves a worker takes at a time: 1 MiB amortises the claim and keeps streams sequential.
	claimLeaves = 16
	// maxWorkers bounds the goroutines of one call: about this many reach a socket's memory bandwidth.
	maxWorkers = 16
)

// run digests all leaves and returns when every worker has ended.
func (w *pass) run() {
	leaves := len(w.digests)
	workers := min(runtime.GOMAXPROCS(0), maxWorkers, leaves/claimLeaves)
	if workers < 2 {
		w.leaves(0, leaves)
		return
	}
	var next atomic.Int64
	claim := func() {
		for {
			end := int(next.Add(claimLeaves))
			if end-claimLeaves >= leaves {
				return
			}
			w.leaves(end-claimLeaves, min(end, leaves))
		}
	}
	var group sync.WaitGroup
	for range workers - 1 {
		group.Go(claim)
	}
	claim()
	group.Wait()
}

// leaves digests the leaves with the indexes first ≤ l < end.
func (w *pass) leaves(first, end int) {
	if first >= end {
		return
	}
	i, found := slices.BinarySearchFunc(w.runs, first, func(r run, l int) int { return cmp.Compare(r.first, l) })
	if !found {
		i--
	}
	for l := first; l < end; i++ {
		r := w.runs[i]
		for from := (l - r.first) * LeafBytes; from < len(r.data) && l < end; from += LeafBytes {
			data := r.data[from:min(from+LeafBytes, len(r.data))]
			w.digests[l] = leafDigest(data, w.keys)
			if w.stats != nil {
				w.stats[l] = statsOf(data, r.kind)
			}
			l++
		}
	}
}
