// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt/pickle"
)

// packed puts bytes into an archive as storage 0, without a pickle: the tests describe the tensors themselves.
func packed(t testing.TB, storage []byte) *File {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	n := uint64(len(storage))
	for _, h := range []*zip.FileHeader{
		{Name: "a/data.pkl"},
		{Name: "a/data/0", CRC32: crc32.ChecksumIEEE(storage), CompressedSize64: n, UncompressedSize64: n},
	} {
		w, err := z.CreateRaw(h)
		if err == nil && h.UncompressedSize64 > 0 {
			_, err = w.Write(storage)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := openArchive(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return &File{archive: a, verified: map[string]error{}}
}

// TestStridesInPieces: whatever the strides, pieces and memory give the same elements.
func TestStridesInPieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dtype := rapid.SampledFrom([]string{"u8", "i16", "f32", "c128"}).Draw(rt, "dtype")
		size := phalanx.DTypeSize(dtype)
		storage := make([]byte, 400*size)
		for i := range storage {
			storage[i] = byte(i*7 + i>>8)
		}
		shape := rapid.SliceOfN(rapid.IntRange(1, 5), 1, 4).Draw(rt, "shape")
		tensor := &Tensor{Name: "t", Swap: rapid.Bool().Draw(rt, "swap"), Tensor: pickle.Tensor{Storage: "0", StorageBytes: int64(len(storage)), DType: dtype, Shape: shape}}
		tensor.Offset = int64(rapid.IntRange(0, 9).Draw(rt, "offset"))
		for range shape {
			tensor.Strides = append(tensor.Strides, rapid.IntRange(0, 24).Draw(rt, "stride"))
		}
		want := make([]byte, tensor.Bytes())
		if err := tensor.Gather(want, storage); err != nil {
			rt.Fatal(err)
		}
		if tensor.Swap {
			pickle.SwapBytes(dtype, want)
		}
		f := packed(t, storage)
		at, err := f.Locate(tensor)
		if err != nil {
			rt.Fatal(err)
		}
		var memory, pieces bytes.Buffer
		if err := f.WriteTo(&memory, tensor); err != nil {
			rt.Fatal(err)
		}
		if err := f.inPieces(&pieces, tensor, at); err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(memory.Bytes(), want) || !bytes.Equal(pieces.Bytes(), want) {
			rt.Fatalf("%+v: in memory %x, in pieces %x, want %x", tensor, memory.Bytes(), pieces.Bytes(), want)
		}
	})
}

// TestLargeTransposed: a tensor above the size that is held in memory, with its dimensions swapped.
func TestLargeTransposed(t *testing.T) {
	const rows, columns = 5000, 4500 // 90 MB of f32
	storage := make([]byte, rows*columns*4)
	for i := range rows * columns {
		binary.LittleEndian.PutUint32(storage[i*4:], uint32(i))
	}
	f := packed(t, storage)
	tensor := &Tensor{Name: "t", Tensor: pickle.Tensor{Storage: "0", StorageBytes: int64(len(storage)), DType: "f32", Shape: []int{columns, rows}, Strides: []int{1, columns}}}
	count := &counter{rows: rows, columns: columns}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := f.WriteTo(count, tensor); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if count.wrong > 0 || count.seen != rows*columns {
		t.Errorf("%d of %d elements, %d are wrong", count.seen, rows*columns, count.wrong)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 3*inMemory {
		t.Errorf("%d MiB were allocated", took>>20)
	}
	part := &Tensor{Name: "p", Tensor: pickle.Tensor{Storage: "0", StorageBytes: int64(len(storage)), DType: "f32", Shape: []int{rows - 1, columns}, Strides: []int{columns, 1}, Offset: columns}}
	sum := crc32.NewIEEE()
	if err := f.WriteTo(sum, part); err != nil || sum.Sum32() != crc32.ChecksumIEEE(storage[columns*4:]) {
		t.Error("a part that is contiguous is read wrong:", err)
	}
}

// counter checks elements of the transposed tensor as they come.
type counter struct{ rows, columns, seen, wrong int }

func (c *counter) Write(p []byte) (int, error) {
	for i := 0; i < len(p); i += 4 {
		if int(binary.LittleEndian.Uint32(p[i:])) != c.seen%c.rows*c.columns+c.seen/c.rows {
			c.wrong++
		}
		c.seen++
	}
	return len(p), nil
}

// TestSwapKeepsWhatItIsGiven: a writer must not change the bytes it is given.
func TestSwapKeepsWhatItIsGiven(t *testing.T) {
	var b bytes.Buffer
	p := []byte{1, 2, 3, 4}
	if _, err := swapper(&b, &Tensor{Swap: true, Tensor: pickle.Tensor{DType: "i16"}}).Write(p); err != nil || !slices.Equal(p, []byte{1, 2, 3, 4}) {
		t.Fatal(p, err)
	}
	if !slices.Equal(b.Bytes(), []byte{2, 1, 4, 3}) {
		t.Fatal(b.Bytes())
	}
	if _, err := swapper(io.Discard, &Tensor{Swap: true, Tensor: pickle.Tensor{DType: "i16"}}).Write(p[:3]); err == nil {
		t.Fatal("half an element")
	}
}
