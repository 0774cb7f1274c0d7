// SPDX-License-Identifier: Apache-2.0

package npy_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt/elem"
	"phalanx/ckpt/npy"
)

func golden(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "golden", name+".npy"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestLikeNumPy: what is written has the bytes that NumPy writes.
func TestLikeNumPy(t *testing.T) {
	shapes := map[string][]int{"scalar": {}, "empty": {0, 4}, "line": {3}}
	dtypes := map[string]string{"scalar": "f32", "empty": "i16", "line": "f32"}
	for _, d := range phalanx.DTypes() {
		if npy.DType(d) == d {
			shapes[d], dtypes[d] = []int{2, 3}, d
		}
	}
	if len(shapes) != 17 {
		t.Fatal(len(shapes))
	}
	for name, shape := range shapes {
		want := golden(t, name)
		data := want[len(want)-int(phalanx.TensorInfo{DType: dtypes[name], Shape: shape}.Bytes()):]
		var b bytes.Buffer
		w, err := npy.NewWriter(&b, dtypes[name], shape)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range data {
			if _, err := w.Write([]byte{c}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil || !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s: %v\n%q\n%q", name, err, b.Bytes(), want)
		}
	}
}

// TestWidened: bf16 and the 8-bit floats are f32 in the file, in pieces of any size.
func TestWidened(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dtype := rapid.SampledFrom([]string{"bf16", "f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0fnu"}).Draw(rt, "dtype")
		n := rapid.IntRange(0, 40000).Draw(rt, "n")
		src := make([]byte, n*phalanx.DTypeSize(dtype))
		for i := range src {
			src[i] = byte(i * 31)
		}
		var b bytes.Buffer
		w, err := npy.NewWriter(&b, dtype, []int{n})
		if err != nil {
			rt.Fatal(err)
		}
		for rest := src; len(rest) > 0; {
			k := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
			if _, err := w.Write(rest[:k]); err != nil {
				rt.Fatal(err)
			}
			rest = rest[k:]
		}
		head, err := npy.Header("f32", []int{n})
		if err != nil || w.Close() != nil || !bytes.HasPrefix(b.Bytes(), head) || b.Len() != len(head)+4*n {
			rt.Fatalf("%d bytes, %v, %v", b.Len(), err, w.Close())
		}
		want := make([]float64, n)
		if err := elem.Decode(want, dtype, src); err != nil {
			rt.Fatal(err)
		}
		for i, x := range want {
			if got := float64(math.Float32frombits(binary.LittleEndian.Uint32(b.Bytes()[len(head)+4*i:]))); got != x && !(math.IsNaN(got) && math.IsNaN(x)) {
				rt.Fatalf("element %d is %v, want %v", i, got, x)
			}
		}
	})
}

func TestLongHeader(t *testing.T) {
	for _, n := range []int{3, 16000, 21820, 21821, 21822, 21823, 21824, 21825, 40000} {
		head, err := npy.Header("u8", slices.Repeat([]int{1}, n))
		if err != nil {
			t.Fatal(err)
		}
		length, before := int(binary.LittleEndian.Uint16(head[8:])), 10
		if head[6] == 2 {
			length, before = int(binary.LittleEndian.Uint32(head[8:])), 12
		}
		if before+length != len(head) || len(head)%64 != 0 || head[len(head)-1] != '\n' || (head[6] == 2) != (len(head)-10 > math.MaxUint16) {
			t.Errorf("%d dimensions: version %d, %d and %d of %d bytes", n, head[6], before, length, len(head))
		}
	}
}

func TestRefused(t *testing.T) {
	if _, err := npy.NewWriter(io.Discard, "f33", nil); err == nil || !strings.Contains(err.Error(), "no element type") {
		t.Error(err)
	}
	if _, err := npy.Header("bf16", nil); err == nil {
		t.Error("a header for bf16")
	}
	if _, err := npy.Header("u8", []int{-1}); err == nil {
		t.Error("a negative dimension")
	}
	w, err := npy.NewWriter(io.Discard, "bf16", []int{2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 5)); err == nil || !strings.Contains(err.Error(), "1 bytes more") {
		t.Error(err)
	}
	if _, err := w.Write(make([]byte, 3)); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), "1 bytes of the tensor are missing") {
		t.Error(err)
	}
}
