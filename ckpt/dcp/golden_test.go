// SPDX-License-Identifier: Apache-2.0

package dcp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
)

// whole is a tensor put together of its chunks.
type whole struct {
	dtype string
	shape []int
	bytes []byte // row-major
}

// readMetadata decodes the index of a checkpoint in a folder.
func readMetadata(t testing.TB, dir string) *dcp.Metadata {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, dcp.MetadataName))
	if err != nil {
		t.Fatal(err)
	}
	m, err := dcp.DecodeMetadata(b, pickle.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return m
}

// readAll reads a checkpoint in a folder, as a program would that has no PyTorch.
func readAll(t testing.TB, dir string, m *dcp.Metadata) (map[string]whole, map[string]any) {
	t.Helper()
	tensors, objects := map[string]whole{}, map[string]any{}
	for _, tensor := range m.Tensors {
		w := whole{dtype: tensor.DType, shape: tensor.Shape}
		w.bytes = bytes.Repeat([]byte{0xee}, int(phalanx.TensorInfo{DType: w.dtype, Shape: w.shape}.Bytes()))
		seen := int64(0)
		for _, c := range tensor.Chunks {
			place(w, c, readChunk(t, dir, tensor, c))
			seen += c.Elements()
		}
		if seen*int64(phalanx.DTypeSize(w.dtype)) != int64(len(w.bytes)) {
			t.Errorf("%s: the chunks of %s have %d elements", dir, tensor.Name, seen)
		}
		tensors[tensor.Name] = w
	}
	for _, o := range m.Objects {
		v, err := dcp.ReadObject(bytes.NewReader(readRecord(t, dir, o.File, o.At, o.Length)), o.Length)
		if err != nil {
			t.Fatalf("%s: %s: %v", dir, o.Name, err)
		}
		objects[o.Name] = v
	}
	return tensors, objects
}

func readRecord(t testing.TB, dir, file string, at, length int64) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return b[at : at+length]
}

// readChunk returns the elements of a chunk in row-major order.
func readChunk(t testing.TB, dir string, tensor dcp.Tensor, c dcp.Chunk) []byte {
	t.Helper()
	record := readRecord(t, dir, c.File, c.At, c.Length)
	info, err := dcp.ParseRecord(bytes.NewReader(record), c.Length)
	if err != nil {
		t.Fatalf("%s: %s: %v", dir, tensor.Name, err)
	}
	storage := record[info.At : info.At+info.StorageBytes]
	if info.DType != tensor.DType || !slices.Equal(info.Shape, c.Size) || info.Swap || crc32.ChecksumIEEE(storage) != info.CRC32 {
		t.Fatalf("%s: %s: record %+v of chunk %+v", dir, tensor.Name, info, c)
	}
	elements := make([]byte, info.Bytes())
	if err := info.Gather(elements, storage); err != nil {
		t.Fatal(err)
	}
	return elements
}

// place copies the elements of a box into a whole tensor, element by element.
func place(w whole, c dcp.Chunk, elements []byte) {
	size := phalanx.DTypeSize(w.dtype)
	at := make([]int, len(c.Size))
	for n := range int(c.Elements()) {
		to := 0
		for d := range at {
			to = to*w.shape[d] + c.Offset[d] + at[d]
		}
		copy(w.bytes[to*size:(to+1)*size], elements[n*size:])
		for d := len(at) - 1; d >= 0; d-- {
			if at[d]++; at[d] < c.Size[d] {
				break
			}
			at[d] = 0
		}
	}
}

// numbers reads elements as float64.
func (w whole) numbers() []float64 {
	var v []float64
	size := phalanx.DTypeSize(w.dtype)
	for b := w.bytes; len(b) > 0; b = b[size:] {
		switch w.dtype {
		case "f64":
			v = append(v, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		case "f32":
			v = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		case "bf16":
			v = append(v, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b))<<16)))
		case "f16":
			v = append(v, half(binary.LittleEndian.Uint16(b), 5, 10))
		case "f8_e4m3fn":
			v = append(v, half(uint16(b[0]), 4, 3))
		case "i64":
			v = append(v, float64(int64(binary.LittleEndian.Uint64(b))))
		case "bool":
			v = append(v, float64(b[0]))
		}
	}
	return v
}

// half reads a small positive float of so many bits of exponent and fraction.
func half(bits uint16, exponent, fraction int) float64 {
	e := int(bits>>fraction) & (1<<exponent - 1)
	f := float64(bits&(1<<fraction-1)) / float64(int(1)<<fraction)
	if e == 0 {
		return math.Ldexp(f, 2-1<<(exponent-1))
	}
	return math.Ldexp(1+f, e-(1<<(exponent-1)-1))
}

// want describes a tensor: its elements count upwards where none are given.
type want struct {
	dtype  string
	shape  []int
	values []float64
}

// goldens are the checkpoints in testdata, as the programs that wrote them filled them.
func goldens() []golden {
	old := map[string]want{
		"m.w0": {"f32", []int{5, 4}, nil}, "m.w1": {"bf16", []int{3, 8}, nil}, "m.r": {"f32", []int{4}, nil},
		"m.p": {"f16", []int{2, 3}, nil}, "o.s": {"f32", []int{}, []float64{7}}, "o.f8": {"f8_e4m3fn", []int{4}, nil},
		"o.i": {"i64", []int{3}, nil}, "o.b": {"bool", []int{2}, []float64{1, 0}}, "l.2": {"f64", []int{2}, nil},
	}
	now := map[string]want{
		"m.w0": {"f32", []int{10, 4}, nil}, "m.w1": {"f32", []int{4, 10}, nil}, "m.rep": {"f32", []int{3, 3}, nil},
		"m.bf": {"bf16", []int{8, 2}, nil}, "m.f8": {"f8_e4m3fn", []int{16}, nil},
		"m.t": {"f32", []int{4, 3}, []float64{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}}, "m.i": {"i64", []int{5}, nil},
		"m.b": {"bool", []int{2}, []float64{1, 0}}, "m.s": {"f32", []int{}, []float64{2.5}}, "l.0": {"f32", []int{2}, []float64{1, 1}},
	}
	var all []golden
	for _, ranks := range []int{1, 2, 4} {
		o, n := golden{"dcp-2.11", ranks, 5, old, map[string]any{"o.lr": 0.1, "l.0": int64(1), "l.1": "x"}},
			golden{"dcp-2.15", ranks, 6, now, map[string]any{"o.step": int64(7), "o.lr": 1e-3, "l.1": "x", "o.betas": []any{0.9, 0.95}}}
		if ranks == 4 {
			o.tensors, n.tensors = cloned(o.tensors), cloned(n.tensors)
			o.tensors["m.w2"] = want{"f32", []int{6, 6}, nil}
			n.tensors["m.w2d"] = want{"f32", []int{6, 8}, nil}
		}
		all = append(all, o, n)
	}
	return all
}

func cloned(m map[string]want) map[string]want {
	c := map[string]want{}
	for k, v := range m {
		c[k] = v
	}
	return c
}

type golden struct {
	set     string
	ranks   int
	items   int
	tensors map[string]want
	objects map[string]any
}

func (g golden) dir() string { return filepath.Join("testdata", g.set, fmt.Sprint("d", g.ranks)) }

// TestGolden: what PyTorch 2.11 and 2.15 wrote at 1, 2 and 4 ranks has the values that were put in.
func TestGolden(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.dir(), func(t *testing.T) {
			m := readMetadata(t, g.dir())
			if m.Version != "1.0.0" || m.PropertyItems != g.items || len(m.Foreign) != 0 {
				t.Errorf("version %q, %d properties, foreign %v", m.Version, m.PropertyItems, m.Foreign)
			}
			g.compare(t, m)
		})
	}
}

func (g golden) compare(t *testing.T, m *dcp.Metadata) {
	t.Helper()
	tensors, objects := readAll(t, g.dir(), m)
	if len(tensors) != len(g.tensors) {
		t.Errorf("%d tensors, want %d", len(tensors), len(g.tensors))
	}
	for name, want := range g.tensors {
		got, values := tensors[name], want.values
		if values == nil {
			values = countUp(want.shape)
		}
		if got.dtype != want.dtype || !slices.Equal(got.shape, want.shape) || !slices.Equal(got.numbers(), values) {
			t.Errorf("%s: %s %v %v, want %s %v %v", name, got.dtype, got.shape, got.numbers(), want.dtype, want.shape, values)
		}
		keys := m.Paths[name]
		if joined := strings.Trim(strings.ReplaceAll(fmt.Sprint(keys), " ", "."), "[]"); joined != name {
			t.Errorf("%s has the path %v", name, keys)
		}
	}
	if len(objects) != len(g.objects) {
		t.Errorf("%d objects, want %d", len(objects), len(g.objects))
	}
	for name, want := range g.objects {
		got := objects[name]
		if tuple, ok := got.(*pickle.Tuple); ok {
			got = tuple.Items
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func countUp(shape []int) []float64 {
	values := make([]float64, phalanx.TensorInfo{DType: "u8", Shape: shape}.Bytes())
	for i := range values {
		values[i] = float64(i)
	}
	return values
}

// TestEncodeGolden: the indexes of PyTorch, written again, say the same with five properties, and always in the same bytes.
func TestEncodeGolden(t *testing.T) {
	for _, g := range goldens() {
		m := readMetadata(t, g.dir())
		b, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := dcp.DecodeMetadata(b, pickle.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if again.PropertyItems != 5 {
			t.Errorf("%s: %d properties", g.dir(), again.PropertyItems)
		}
		g.compare(t, again)
		second, err := again.Encode()
		if err != nil || !bytes.Equal(b, second) {
			t.Errorf("%s: written again it differs (%v)", g.dir(), err)
		}
		if again.PropertyItems = m.PropertyItems; fmt.Sprint(*again) != fmt.Sprint(*m) {
			t.Errorf("%s: says\n%+v, want\n%+v", g.dir(), *again, *m)
		}
	}
}
