// SPDX-License-Identifier: Apache-2.0

package torchfile_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"phalanx/ckpt/torchfile"
)

// FuzzOpen: an archive of any content. A tensor that can be read gives as many bytes as it says, and its name is its own.
func FuzzOpen(f *testing.F) {
	golden, err := filepath.Glob("testdata/golden/*.pt")
	if err != nil || len(golden) < 10 {
		f.Fatal(golden, err)
	}
	for _, name := range golden {
		f.Add(load(f, filepath.Base(name)))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		check(t, content)
	})
}

// FuzzPickle: an archive that is whole, with any pickle in it.
func FuzzPickle(f *testing.F) {
	f.Add([]byte(tensorPickle(f, 4)), []byte("abcd"))
	f.Add([]byte(pickleOfTwo(f)), []byte("abcd"))
	f.Add([]byte("\x80\x02}(X\x03\x00\x00\x00a.bK\x01X\x01\x00\x00\x00a](K\x01}su."), []byte{})
	f.Fuzz(func(t *testing.T, text, storage []byte) {
		if len(storage) > 1<<16 {
			return
		}
		check(t, pack(t, member{name: "a/data.pkl", content: string(text)}, member{name: "a/byteorder", content: "big"},
			member{name: "a/data/0", content: string(storage)}, member{name: "a/data/1", content: string(storage)}))
	})
}

func check(t *testing.T, content []byte) {
	f, err := torchfile.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return
	}
	names := map[string]bool{}
	for _, o := range f.Objects {
		if names[o.Name] || len(torchfile.Text(o.Value, 100)) > 104 {
			t.Fatalf("%q: %q", o.Name, torchfile.Text(o.Value, 100))
		}
		names[o.Name] = true
	}
	for i := range f.Tensors {
		tensor := &f.Tensors[i]
		if names[tensor.Name] {
			t.Fatalf("two values are called %q", tensor.Name)
		}
		names[tensor.Name] = true
		if tensor.Bytes() > 1<<22 { // up to 1 GiB by repeating; it would only take long
			continue
		}
		n := &count{}
		if err := f.WriteTo(n, tensor); err == nil && n.n != tensor.Bytes() {
			t.Fatalf("%+v: %d bytes", tensor, n.n)
		}
	}
}

type count struct{ n int64 }

func (c *count) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}
