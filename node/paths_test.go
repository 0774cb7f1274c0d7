// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"phalanx"
)

// A socket path that the kernel would refuse is replaced by a short one, and the short one is that of this directory alone.
func TestSocketPathsCanBeBound(t *testing.T) {
	shallow := NewPaths("/d", "")
	if got := shallow.Socket(3); got != "/d/members/3/sock" {
		t.Errorf("a shallow directory's socket is %s", got)
	}
	root := t.TempDir()
	deep := filepath.Join(root, strings.Repeat("a", 60), strings.Repeat("b", 60))
	p := NewPaths(deep, "")
	seen := map[string]bool{}
	for _, s := range []string{p.Socket(0), p.Socket(1), NewPaths(deep+"x", "").Socket(0)} {
		if len(s) >= 108 || seen[s] {
			t.Errorf("socket %s is too long or taken twice", s)
		}
		seen[s] = true
	}
	l, err := net.Listen("unix", p.Socket(0))
	if err != nil {
		t.Fatalf("the kernel refuses it: %v", err)
	}
	l.Close()
}

// A directory is one place in shared memory whatever name leads to it.
func TestPathsFollowLinks(t *testing.T) {
	root := t.TempDir()
	real, link := filepath.Join(root, "real"), filepath.Join(root, "link")
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if a, b := NewPaths(real, root), NewPaths(link, root); a != b {
		t.Errorf("%+v and %+v", a, b)
	}
	if NewPaths(real, root).Bells() == NewPaths(root, root).Bells() {
		t.Error("two directories share their bells")
	}
}

func TestLivesAreListedAndRemoved(t *testing.T) {
	shm := t.TempDir()
	p := NewPaths(t.TempDir(), shm)
	other := NewPaths(t.TempDir(), shm)
	touch := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []phalanx.Incarnation{10, 2, 9} {
		for _, kind := range append([]string{"page", "seg", "board"}, slabKinds...) {
			touch(p.Shared(1, n, kind))
		}
	}
	touch(p.Shared(2, 7, "page"))
	touch(other.Shared(1, 4, "page"))
	touch(p.Shared(1, 11, "seg")) // no page: never was a life
	touch(strings.Replace(p.Shared(1, 5, "page"), ".5.", ".x.", 1))
	if got := p.Lives(1); !slices.Equal(got, []phalanx.Incarnation{2, 9, 10}) {
		t.Errorf("lives %v", got)
	}
	if got := p.Lives(0); len(got) != 0 {
		t.Errorf("lives of nobody: %v", got)
	}
	p.Remove(1, 9)
	p.Remove(1, 9)
	if got := p.Lives(1); !slices.Equal(got, []phalanx.Incarnation{2, 10}) {
		t.Errorf("lives after one was removed: %v", got)
	}
	left, err := filepath.Glob(filepath.Join(shm, "*.1.9.*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if !slices.Equal(p.Lives(2), []phalanx.Incarnation{7}) || !slices.Equal(other.Lives(1), []phalanx.Incarnation{4}) {
		t.Error("others' lives are gone")
	}
}

func TestWriteJSONReplacesWholeFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	for _, want := range []int{1, 2} {
		if err := writeJSON(path, want); err != nil {
			t.Fatal(err)
		}
		var got int
		if err := readJSON(path, &got); err != nil || got != want {
			t.Errorf("read %d, %v", got, err)
		}
	}
	if err := writeJSON(path, func() {}); err == nil {
		t.Error("a function is written")
	}
	if err := writeJSON(filepath.Join(dir, "none", "x.json"), 1); err == nil {
		t.Error("written into a directory that does not exist")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	var n int
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readJSON(path, &n); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
}
