// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadCorpus(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("b.go", "2")
	write("a/z.txt", "1")
	write("c/a.md", "3")
	write("c/b.py", "4")
	write(".git/x.txt", "hidden")
	write(".x.txt", "hidden")
	write("d.exe", "no text")
	if err := os.Symlink(filepath.Join(dir, "b.go"), filepath.Join(dir, "e.go")); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir   string
		limit int64
		want  string
	}{{dir, 100, "1234"}, {dir, 4, "1234"}, {dir, 3, "123"}, {link, 2, "12"}} {
		got, err := ReadCorpus(c.dir, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Data) != c.want || got.Hash != NewCorpus([]byte(c.want)).Hash {
			t.Errorf("limit %d: %q, want %q", c.limit, got.Data, c.want)
		}
	}
	for _, bad := range []string{filepath.Join(dir, "none"), t.TempDir()} {
		if _, err := ReadCorpus(bad, 100); err == nil {
			t.Errorf("%s was taken for a corpus", bad)
		}
	}
	if _, err := ReadCorpus(dir, 0); err == nil {
		t.Error("a limit of 0 was taken")
	}
}
