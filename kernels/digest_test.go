// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"phalanx"
)

// eachPath runs a test once in plain Go and once with what the processor has.
func eachPath(t *testing.T, test func(t *testing.T)) {
	for name, path := range map[string]Path{"generic": Generic, "best": Best} {
		t.Run(name, func(t *testing.T) {
			defer Force(path)()
			test(t)
		})
	}
}

// stream is the generator of testdata/d1.py.
func stream(size int, start uint64) []byte {
	var b []byte
	for i := uint64(0); len(b) < size; i++ {
		b = binary.LittleEndian.AppendUint64(b, mix(start+i))
	}
	return b[:size]
}

// unaligned returns a copy of b that begins at an address with the given remainder modulo 64.
func unaligned(b []byte, remainder int) []byte {
	room := make([]byte, len(b)+128)
	for i := range 64 {
		if int(uintptr(addressOf(room[i:]))%64) == remainder {
			return append(room[i:i:i+len(b)], b...)
		}
	}
	panic("unreachable")
}

func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/d1.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			Seed    uint64
			Tensors []struct {
				Name, DType, Generator string
				Shape                  []int
				SizeBytes              int `json:"size_bytes"`
				RepeatName             int `json:"repeat_name"`
				Start                  uint64
				Root                   phalanx.Digest
				Leaves                 int64
			}
			Digest phalanx.Digest
		}
		VoteSeeds []struct {
			JobSeed uint64 `json:"job_seed"`
			Step    phalanx.Step
			Seed    uint64
		} `json:"vote_seeds"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) == 0 || len(file.VoteSeeds) == 0 {
		t.Fatal("no vectors")
	}
	eachPath(t, func(t *testing.T) {
		for n, v := range file.Vectors {
			var tensors []Tensor
			for _, want := range v.Tensors {
				x := Tensor{strings.Repeat(want.Name, want.RepeatName), want.DType, want.Shape, make([]byte, want.SizeBytes)}
				if want.Generator == "mix" {
					x.Data = stream(want.SizeBytes, want.Start)
				}
				tensors = append(tensors, x)
				if got := TensorDigest(v.Seed, x); got != want.Root {
					t.Errorf("vector %d tensor %.20q: root %v, want %v", n, x.Name, got, want.Root)
				}
				if got := LeafCount(x); got != want.Leaves {
					t.Errorf("vector %d tensor %.20q: %d leaves, want %d", n, x.Name, got, want.Leaves)
				}
				if got := referenceRoot(v.Seed, referenceTensorLeaves(v.Seed, x)); got != want.Root {
					t.Errorf("vector %d tensor %.20q: reference says %v, want %v", n, x.Name, got, want.Root)
				}
			}
			if got := Digest(v.Seed, tensors); got != v.Digest {
				t.Errorf("vector %d: digest %v, want %v", n, got, v.Digest)
			}
		}
	})
	for _, v := range file.VoteSeeds {
		if got := VoteSeed(v.JobSeed, v.Step); got != v.Seed {
			t.Errorf("vote seed of %d, %d: %d, want %d", v.JobSeed, v.Step, got, v.Seed)
		}
	}
}

// lengths are the edges of words, lanes, rows and leaves, and some lengths in between.
func lengths(rng *rand.Rand) []int {
	var all []int
	for _, edge := range []int{0, 4, 16, 64, 128, rowBytes, 7 * rowBytes, LeafBytes, 2 * LeafBytes} {
		for d := -5; d <= 5; d++ {
			if edge+d >= 0 {
				all = append(all, edge+d)
			}
		}
	}
	for range 20 {
		all = append(all, rng.IntN(3*LeafBytes))
	}
	return all
}

func TestPathsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := stream(4*LeafBytes, 77)
	for n, size := range lengths(rng) {
		seed := rng.Uint64()
		from := rng.IntN(LeafBytes)
		dtype := []string{"float32", "float64", "int8"}[n%3]
		x := Tensor{"w", dtype, []int{size, n}, unaligned(random[from:from+size], n%64)}
		want := referenceTensorLeaves(seed, x)
		stats := referenceStats([]Tensor{x})
		for _, path := range []Path{Generic, Best} {
			restore := Force(path)
			if got := LeafDigests(seed, x); !slices.Equal(got, want) {
				t.Errorf("size %d path %d: leaves %x, want %x", size, path, got, want)
			}
			got, gotStats := DigestStats(seed, []Tensor{x})
			if want := referenceRoot(seed, want); got != want {
				t.Errorf("size %d path %d: root %v, want %v", size, path, got, want)
			}
			if !sameStats(gotStats, stats) {
				t.Errorf("size %d %s path %d: %v, want %v", size, dtype, path, gotStats, stats)
			}
			restore()
		}
	}
}

// The largest words and the largest carries.
func TestExtremeWords(t *testing.T) {
	for _, fill := range []byte{0, 0xff, 0x80} {
		x := Tensor{Name: "w", DType: "uint8", Data: bytes.Repeat([]byte{fill}, LeafBytes+rowBytes+3)}
		want := referenceTensorLeaves(9, x)
		eachPath(t, func(t *testing.T) {
			if got := LeafDigests(9, x); !slices.Equal(got, want) {
				t.Errorf("fill %x: %x, want %x", fill, got, want)
			}
		})
	}
}

func sameStats(a, b Stats) bool {
	same := func(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) }
	return same(a.SumSquares, b.SumSquares) && same(a.AbsMax, b.AbsMax) && a.NonFinite == b.NonFinite
}

func TestStats(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 3*LeafBytes/4 + 21
	floats := make([]float32, n)
	for i := range floats {
		floats[i] = float32(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(30)-15)))
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for name, plant := range map[string][]float32{
		"finite": nil, "one infinity": {inf}, "one nan": {nan}, "both": {nan, inf, nan},
		"denormal": {1e-45, math.Float32frombits(1 << 31)}, "largest": {-math.MaxFloat32, math.MaxFloat32},
	} {
		for _, at := range []int{0, 7, n/2 + 3, n - 3} { // in vectors and in the tail
			data := slices.Clone(floats)
			copy(data[at:], plant)
			doubles := make([]float64, n)
			for i, x := range data {
				doubles[i] = float64(x)
			}
			tensors := []Tensor{
				{"a", "float32", []int{n}, Bytes(data)},
				{"b", "float64", []int{n}, Bytes(doubles)},
				{"c", "int64", []int{n}, Bytes(doubles)},
			}
			want := referenceStats(tensors)
			if name != "finite" && name != "denormal" && name != "largest" && want.NonFinite != 2*int64(len(plant)) {
				t.Fatalf("%s: the reference counts %d non-finite elements", name, want.NonFinite)
			}
			eachPath(t, func(t *testing.T) {
				d, got := DigestStats(5, tensors)
				if !sameStats(got, want) {
					t.Errorf("%s at %d: %+v, want %+v", name, at, got, want)
				}
				if d != Digest(5, tensors) {
					t.Errorf("%s: the digest depends on the statistics", name)
				}
			})
		}
	}
}

func TestStatsOfNothing(t *testing.T) {
	if _, got := DigestStats(1, nil); got != (Stats{}) {
		t.Errorf("stats of nothing: %+v", got)
	}
}

// The number of workers changes neither bits nor sums.
func TestWorkers(t *testing.T) {
	data := stream(40*LeafBytes+12, 5)
	for i := 3; i < len(data); i += 4 {
		data[i] = data[i]&0x81 | 0x3e // finite float32 near 1
	}
	tensors := []Tensor{
		{"a", "float32", nil, data[:4]}, {"b", "float32", nil, data}, {"c", "float32", nil, nil},
		{"d", "float32", nil, data[8:]}, {"e", "float32", nil, data[:LeafBytes]},
	}
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	digest, stats := DigestStats(8, tensors)
	if want := referenceStats(tensors); stats != want {
		t.Errorf("one worker: %+v, want %+v", stats, want)
	}
	for _, workers := range []int{2, 3, 5, 32} {
		runtime.GOMAXPROCS(workers)
		if d, s := DigestStats(8, tensors); d != digest || s != stats {
			t.Errorf("%d workers: %v %+v, want %v %+v", workers, d, s, digest, stats)
		}
	}
}

func TestNameOrderAndCombine(t *testing.T) {
	data := stream(3*LeafBytes, 1)
	sorted := []Tensor{
		{"A", "float32", []int{2}, data[:8]}, {"a", "float32", []int{3, 1}, data[:2*LeafBytes+12]},
		{"a.b", "uint8", nil, nil}, {"b", "float64", []int{0}, data[100:]},
	}
	given := []Tensor{sorted[3], sorted[1], sorted[0], sorted[2]}
	names := func() (s []string) {
		for _, x := range given {
			s = append(s, x.Name)
		}
		return s
	}
	before := names()
	want := Digest(6, sorted)
	if got := Digest(6, given); got != want {
		t.Errorf("the given order matters: %v, want %v", got, want)
	}
	if !slices.Equal(names(), before) {
		t.Errorf("Digest has reordered its argument")
	}
	var parts []Part
	for _, x := range sorted {
		parts = append(parts, Part{TensorDigest(6, x), LeafCount(x)})
	}
	if got := Combine(6, parts); got != want {
		t.Errorf("Combine: %v, want %v", got, want)
	}
	// Parts of parts: a combination is itself a part.
	left := Part{Combine(6, parts[:2]), parts[0].Leaves + parts[1].Leaves}
	if got := Combine(6, append([]Part{left}, parts[2:]...)); got != want {
		t.Errorf("Combine in two stages: %v, want %v", got, want)
	}
	if got := Combine(6, []Part{parts[1], parts[0], parts[2], parts[3]}); got == want {
		t.Errorf("Combine does not see the order")
	}
}

func TestFlipChangesOneLeaf(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	x := Tensor{"w", "float32", []int{9}, stream(4*LeafBytes+1001, 3)}
	eachPath(t, func(t *testing.T) {
		before, root := LeafDigests(1, x), TensorDigest(1, x)
		for range 300 {
			bit := rng.IntN(8 * len(x.Data))
			x.Data[bit/8] ^= 1 << (bit % 8)
			after := LeafDigests(1, x)
			for l := range after {
				hit := l == 1+bit/8/LeafBytes // the header leaf comes first
				for q := range 2 {
					if changed := after[l][q] != before[l][q]; changed != hit {
						t.Errorf("bit %d leaf %d key set %d: changed %v", bit, l, q, changed)
					}
				}
			}
			if d := TensorDigest(1, x); d[0] == root[0] || d[1] == root[1] {
				t.Errorf("bit %d: root %v unchanged from %v", bit, d, root)
			}
			x.Data[bit/8] ^= 1 << (bit % 8)
		}
	})
}

// Changes that an order-blind hash does not see: equal flips in two words, swapped words, swapped leaves.
func TestPositionAware(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	data := stream(3*LeafBytes, 4)
	root := func(b []byte) phalanx.Digest { return TensorDigest(2, Tensor{"w", "float32", nil, b}) }
	before := root(data)
	words := len(data) / 4
	for range 200 {
		i, j := rng.IntN(words), rng.IntN(words)
		if i == j {
			continue
		}
		swapped := slices.Clone(data)
		copy(swapped[4*i:4*i+4], data[4*j:4*j+4])
		copy(swapped[4*j:4*j+4], data[4*i:4*i+4])
		if d := root(swapped); d[0] == before[0] || d[1] == before[1] {
			t.Errorf("words %d and %d swapped: unseen", i, j)
		}
		flipped := slices.Clone(data)
		flipped[4*i] ^= 4
		flipped[4*j] ^= 4
		if d := root(flipped); d[0] == before[0] || d[1] == before[1] {
			t.Errorf("words %d and %d flipped: unseen", i, j)
		}
	}
	moved := append(slices.Clone(data[LeafBytes:2*LeafBytes]), data[:LeafBytes]...)
	if d := root(append(moved, data[2*LeafBytes:]...)); d[0] == before[0] || d[1] == before[1] {
		t.Errorf("leaves swapped: unseen")
	}
}

func TestHeaderCounts(t *testing.T) {
	data := stream(24, 1)
	seen := map[phalanx.Digest]string{}
	for _, x := range []Tensor{
		{"w", "float32", []int{6}, data}, {"w", "int32", []int{6}, data}, {"w", "float32", []int{2, 3}, data},
		{"w", "float32", []int{3, 2}, data}, {"w", "float32", []int{23}, data}, {"v", "float32", []int{6}, data},
		{"wfloat32", "", []int{6}, data}, {"w", "float32", []int{6}, append(slices.Clone(data), 0)[:24]},
	} {
		d := TensorDigest(1, x)
		what := x.Name + " " + x.DType + " " + strconv.Itoa(len(x.Shape))
		if other, ok := seen[d]; ok && x.Name+x.DType != "wfloat32" {
			t.Errorf("%s has the digest of %s", what, other)
		}
		seen[d] = what
	}
	if len(seen) != 7 { // the last one equals the first
		t.Errorf("%d digests, want 7", len(seen))
	}
}

func TestPolynomialArithmetic(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	values := []uint64{0, 1, 2, prime - 1, prime - 2, 1 << 60, 1<<32 - 1}
	for range 200 {
		values = append(values, rng.Uint64()%prime)
	}
	for _, x := range values {
		for _, y := range values {
			hi, lo := bits.Mul64(x, y)
			if got, want := mulMod(x, y), bits.Rem64(hi, lo, prime); got != want {
				t.Fatalf("%d · %d = %d, want %d", x, y, got, want)
			}
		}
	}
	if powMod(3, prime-1) != 1 || powMod(5, 0) != 1 || powMod(2, 61) != 1 {
		t.Error("powMod is wrong")
	}
}

func BenchmarkDigest(b *testing.B) {
	data := make([]byte, 64<<20)
	for i := range data {
		data[i] = byte(i * 7)
	}
	tensors := []Tensor{{"w", "float32", []int{len(data) / 4}, data}}
	for _, bench := range []struct {
		name string
		path Path
		cpus int
		run  func(uint64, []Tensor)
	}{
		{"best/1cpu", Best, 1, func(s uint64, x []Tensor) { Digest(s, x) }},
		{"best/2cpu", Best, 2, func(s uint64, x []Tensor) { Digest(s, x) }},
		{"best+stats/1cpu", Best, 1, func(s uint64, x []Tensor) { DigestStats(s, x) }},
		{"generic/1cpu", Generic, 1, func(s uint64, x []Tensor) { Digest(s, x) }},
		{"generic+stats/1cpu", Generic, 1, func(s uint64, x []Tensor) { DigestStats(s, x) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			defer Force(bench.path)()
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(bench.cpus))
			b.SetBytes(int64(len(data)))
			for i := 0; b.Loop(); i++ {
				bench.run(uint64(i), tensors)
			}
		})
	}
	b.Run("leaf", func(b *testing.B) { // out of the cache
		keys := newLaneKeys(1)
		b.SetBytes(LeafBytes)
		for b.Loop() {
			leafDigest(data[:LeafBytes], keys)
		}
	})
}
