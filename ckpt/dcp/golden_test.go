// SPDX-License-Identifier: Apache-2.0

package dcp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/dcp/dcptest"
	"phalanx/ckpt/pickle"
)

// readMetadata decodes the index of a checkpoint in a folder.
func readMetadata(t testing.TB, dir string) *dcp.Metadata {
	t.Helper()
	m, err := dcptest.Read(dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return m
}

func readRecord(t testing.TB, dir, file string, at, length int64) []byte {
	t.Helper()
	b, err := dcptest.ReadRecord(dir, file, at, length)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// numbers reads elements as float64.
func numbers(w dcptest.Tensor) []float64 {
	var v []float64
	size := phalanx.DTypeSize(w.DType)
	for b := w.Bytes; len(b) > 0; b = b[size:] {
		switch w.DType {
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
	oldest := map[string]want{
		"m.w": {"f32", []int{5, 4}, nil}, "m.bf": {"bf16", []int{3, 8}, nil}, "m.s": {"f32", []int{}, []float64{2.5}},
		"m.t": {"f32", []int{4, 3}, now["m.t"].values},
	}
	all := []golden{{"dcp-2.0", 1, 5, oldest, map[string]any{"step": int64(7), "list": []any{int64(1), "x"}}}}
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

func (g golden) version() string {
	if g.set == "dcp-2.0" { // which did not know of versions
		return ""
	}
	return "1.0.0"
}

// goldenDirs are all folders of goldens, and the one of TestPutOff.
func goldenDirs() []string {
	dirs := []string{putOff}
	for _, g := range goldens() {
		dirs = append(dirs, g.dir())
	}
	return dirs
}

const putOff = "testdata/dcp-2.15/put-off"

// TestPutOff: a conjugate and its imaginary part, which PyTorch had put off to make, are read as what they are.
func TestPutOff(t *testing.T) {
	tensors, _, err := dcptest.ReadAll(putOff, readMetadata(t, putOff))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]float32{
		"plain": {0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6}, "conj": {0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6},
		"adjoint": {0, 1, 3, 4, 1, 2, 4, 5, 2, 3, 5, 6}, "imag": {1, 2, 3, 4, 5, 6},
	} {
		var b []byte
		for _, v := range want {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		if !bytes.Equal(tensors[name].Bytes, b) {
			t.Errorf("%s: % x, want % x", name, tensors[name].Bytes, b)
		}
	}
}

// TestGolden: what PyTorch 2.0 wrote, and 2.11 and 2.15 at 1, 2 and 4 ranks, has the values that were put in.
func TestGolden(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.dir(), func(t *testing.T) {
			m := readMetadata(t, g.dir())
			if m.Version != g.version() || m.PropertyItems != g.items || len(m.Foreign) != 0 {
				t.Errorf("version %q, %d properties, foreign %v", m.Version, m.PropertyItems, m.Foreign)
			}
			g.compare(t, m)
		})
	}
}

func (g golden) compare(t *testing.T, m *dcp.Metadata) {
	t.Helper()
	tensors, objects, err := dcptest.ReadAll(g.dir(), m)
	if err != nil {
		t.Fatal(err)
	}
	if len(tensors) != len(g.tensors) {
		t.Errorf("%d tensors, want %d", len(tensors), len(g.tensors))
	}
	for name, want := range g.tensors {
		got, values := tensors[name], want.values
		if values == nil {
			values = countUp(want.shape)
		}
		if got.DType != want.dtype || !slices.Equal(got.Shape, want.shape) || !slices.Equal(numbers(got), values) {
			t.Errorf("%s: %s %v %v, want %s %v %v", name, got.DType, got.Shape, numbers(got), want.dtype, want.shape, values)
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
		switch v := got.(type) {
		case *pickle.Tuple:
			got = v.Items
		case *pickle.List:
			got = v.Items
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
		if again.PropertyItems, again.Version = m.PropertyItems, m.Version; fmt.Sprint(*again) != fmt.Sprint(*m) {
			t.Errorf("%s: says\n%+v, want\n%+v", g.dir(), *again, *m)
		}
	}
}
