// SPDX-License-Identifier: Apache-2.0

package dcp_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/dcp/dcptest"
)

// record builds a whole record in memory.
func record(t testing.TB, dtype string, shape []int) (content, payload []byte) {
	t.Helper()
	payload = dcptest.New("", dtype, shape...).Bytes
	content, err := dcptest.Record(dtype, shape, payload)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(content)) != dcp.RecordLen(int64(len(payload))) {
		t.Fatalf("record of %s %v has %d bytes, not %d", dtype, shape, len(content), dcp.RecordLen(int64(len(payload))))
	}
	return content, payload
}

func shapes() [][]int {
	deep := make([]int, 32)
	for i := range deep {
		deep[i] = 1
	}
	return [][]int{{}, {0}, {1}, {3, 0, 2}, {0, 1 << 40, 3}, {7}, {2, 3}, {300, 2}, {2, 3, 5}, {2, 3, 5, 7}, {70000}, deep}
}

// TestRecordIsZip: an archive that a reader of zip archives accepts, with the members that PyTorch looks for, their
// checksums right and the payload where it must be.
func TestRecordIsZip(t *testing.T) {
	for _, dtype := range phalanx.DTypes() {
		for _, shape := range shapes() {
			content, payload := record(t, dtype, shape)
			r, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
			if err != nil {
				t.Fatalf("%s %v: %v", dtype, shape, err)
			}
			got := map[string]string{}
			for _, f := range r.File {
				got[f.Name] = string(readMember(t, f))
				at, err := f.DataOffset()
				if err != nil || f.Name == "archive/data/0" && at != dcp.PayloadAt {
					t.Errorf("%s %v: %s is at %d, %v", dtype, shape, f.Name, at, err)
				}
				if f.Method != zip.Store || f.NonUTF8 {
					t.Errorf("%s %v: %s has method %d", dtype, shape, f.Name, f.Method)
				}
			}
			if len(got) != 4 || got["archive/version"] != "3\n" || got["archive/byteorder"] != "little" ||
				got["archive/data/0"] != string(payload) || !strings.HasPrefix(got["archive/data.pkl"], "\x80\x02ctorch._utils\n") {
				t.Errorf("%s %v: members %q", dtype, shape, slices.Collect(keys(got)))
			}
		}
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func readMember(t testing.TB, f *zip.File) []byte {
	t.Helper()
	r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r) // checks the CRC at the end
	if err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	return b
}

// archive makes an archive of names and contents in turn.
func archive(t testing.TB, deflate bool, namesAndContents ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(namesAndContents); i += 2 {
		method := zip.Store
		if deflate && strings.Contains(namesAndContents[i], "data/") {
			method = zip.Deflate
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: namesAndContents[i], Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, namesAndContents[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRecordLarge: from 4 GiB on the sizes need 64 bits; the payload stays where it is.
func TestRecordLarge(t *testing.T) {
	for _, payload := range []int64{math.MaxUint32 - 1<<16 - 1, math.MaxUint32 - 1<<16, math.MaxUint32 - 1, math.MaxUint32, 1 << 32, 5 << 32, 1 << 50} {
		shape := []int{int(payload)}
		header, err := dcp.RecordHeader("u8", shape, payload, 12345)
		if err != nil {
			t.Fatal(err)
		}
		trailer := dcp.RecordTrailer("u8", shape, payload, 12345)
		if len(header) != dcp.PayloadAt || int64(len(trailer)) != dcp.TrailerLen(payload) {
			t.Fatalf("%d: header of %d, trailer of %d bytes", payload, len(header), len(trailer))
		}
		r, err := zip.NewReader(sparse{header, trailer, payload}, dcp.RecordLen(payload))
		if err != nil {
			t.Fatalf("%d: %v", payload, err)
		}
		f := r.File[3]
		at, err := f.DataOffset()
		if err != nil || at != dcp.PayloadAt || f.UncompressedSize64 != uint64(payload) || f.CRC32 != 12345 {
			t.Errorf("%d: payload of %d bytes at %d, %v", payload, f.UncompressedSize64, at, err)
		}
	}
}

// sparse is a record whose payload is zeros, without the memory for it.
type sparse struct {
	header, trailer []byte
	payload         int64
}

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	end := int64(len(s.header)) + s.payload
	for i := range p {
		switch at := at + int64(i); {
		case at < int64(len(s.header)):
			p[i] = s.header[at]
		case at < end:
			p[i] = 0
		case at-end < int64(len(s.trailer)):
			p[i] = s.trailer[at-end]
		default:
			return i, io.EOF
		}
	}
	return len(p), nil
}

// TestRecordRefuses what is not a tensor, in one sentence.
func TestRecordRefuses(t *testing.T) {
	many := make([]int, 200)
	for i := range many {
		many[i] = 1
	}
	for _, c := range []struct {
		dtype   string
		shape   []int
		payload int64
		says    string
	}{
		{"f12", []int{2}, 8, `dtype "f12"`},
		{"f32", []int{2}, 9, "has 8 bytes, not 9"},
		{"f32", []int{-2}, -8, "not negative"},
		{"f32", []int{math.MaxInt, 2}, 0, "63 bits"},
		{"f32", []int{1 << 31, 1 << 31}, math.MaxInt64, "63 bits"},
		{"f32", []int{0, -1}, 0, "not negative"},
		{"f32", many, 4, "too many dimensions"},
	} {
		_, err := dcp.RecordHeader(c.dtype, c.shape, c.payload, 0)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: %v, want %q", c.dtype, c.shape, err, c.says)
		}
		if !strings.Contains(c.says, "dimensions") && dcp.RecordTrailer(c.dtype, c.shape, c.payload, 0) != nil {
			t.Errorf("%s %v: has a trailer", c.dtype, c.shape)
		}
	}
	// Any 32 dimensions fit, however large their strides.
	wide := make([]int, 32)
	for i := range wide {
		wide[i] = 1
	}
	wide[31] = 1 << 56
	if _, err := dcp.RecordHeader("u8", wide, 1<<56, 0); err != nil {
		t.Error(err)
	}
}

func ExampleRecordHeader() {
	payload := make([]byte, 24)
	crc := crc32.ChecksumIEEE(payload)
	header, err := dcp.RecordHeader("f32", []int{2, 3}, int64(len(payload)), crc)
	trailer := dcp.RecordTrailer("f32", []int{2, 3}, int64(len(payload)), crc)
	fmt.Println(len(header), len(trailer), err)
	// Output: 1024 268 <nil>
}
