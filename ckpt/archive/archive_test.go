// SPDX-License-Identifier: Apache-2.0

package archive_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"testing"

	"phalanx/ckpt/archive"
)

// pack makes an archive of stored members.
func pack(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range names {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = w.Write([]byte("content of " + name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func open(t *testing.T, content []byte) *archive.Reader {
	t.Helper()
	r, err := archive.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestBody: the bytes of members are found, by many at once, also behind bytes that are no part of the archive.
func TestBody(t *testing.T) {
	content := append([]byte("something before"), pack(t, "a/one", "a/two", "a/three")...)
	r := open(t, content)
	var group sync.WaitGroup
	for range 50 {
		for _, f := range r.Files {
			group.Go(func() {
				at, err := r.Body(f)
				if want := "content of " + f.Name; err != nil || !bytes.HasPrefix(content[at:], []byte(want)) {
					t.Errorf("%s begins at %d, %v", f.Name, at, err)
				}
			})
		}
	}
	group.Wait()
}

// TestBodyOfAnother: a local header that says something else than the directory is refused.
func TestBodyOfAnother(t *testing.T) {
	good := pack(t, "a/one", "a/two")
	for name, c := range map[string]struct {
		change func(b []byte)
		want   string
	}{
		"name":   {func(b []byte) { copy(b[30:], "a/two") }, "another name"},
		"length": {func(b []byte) { binary.LittleEndian.PutUint16(b[26:], 4) }, "another name"},
		"long":   {func(b []byte) { binary.LittleEndian.PutUint16(b[26:], 9) }, "another name"},
		"method": {func(b []byte) { b[8] = 8 }, "method 8, the directory 0"},
		"magic":  {func(b []byte) { b[0] = 0 }, "not a valid zip file"},
	} {
		content := bytes.Clone(good)
		c.change(content)
		r := open(t, content)
		if at, err := r.Body(r.Files[0]); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d, %v", name, at, err)
		}
		if _, err := r.Body(r.Files[1]); err != nil {
			t.Errorf("%s: of the other member: %v", name, err)
		}
	}
}
