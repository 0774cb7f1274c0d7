// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/ckpt"
	"phalanx/ckpt/storetest"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	storetest.Test(t, func(t *testing.T) ckpt.Store { return open(t) })
}

func temps(t *testing.T, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.root, tempDir))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestWritesLeaveNoTemporaryFile(t *testing.T) {
	s := open(t)
	body := ckpt.Bytes([]byte("x"))
	bad := body
	bad.CRC64NVME++
	for _, b := range []ckpt.Body{body, body, bad} {
		_ = s.PutIfAbsent(t.Context(), "a/b", b)
		_ = s.Put(t.Context(), "a/c", b)
	}
	if names := temps(t, s); len(names) != 0 {
		t.Fatalf("left behind: %v", names)
	}
}

func TestOrphansAreSwept(t *testing.T) {
	s := open(t)
	old := time.Now().Add(-2 * orphanAge)
	orphan := filepath.Join(s.root, tempDir, "put-orphan")
	young := filepath.Join(s.root, tempDir, "put-young")
	for _, path := range []string{orphan, young} {
		if err := os.WriteFile(path, []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	living, err := s.createTemp() // holds its lock
	if err != nil {
		t.Fatal(err)
	}
	defer s.discard(living)
	for _, path := range []string{orphan, living.Name()} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := New(s.root); err != nil {
		t.Fatal(err)
	}
	left := strings.Join(temps(t, s), " ")
	if strings.Contains(left, "put-orphan") || !strings.Contains(left, "put-young") || !strings.Contains(left, filepath.Base(living.Name())) {
		t.Fatalf("after the sweep: %s", left)
	}
}

func TestLinkedIsSuccess(t *testing.T) {
	// A link whose answer was lost: the name exists and is our own temporary file.
	s := open(t)
	f, err := s.createTemp()
	if err != nil {
		t.Fatal(err)
	}
	defer s.discard(f)
	if linked(f.Name()) {
		t.Fatal("linked before the link")
	}
	if err := os.Link(f.Name(), filepath.Join(s.root, "x")); err != nil {
		t.Fatal(err)
	}
	if !linked(f.Name()) {
		t.Fatal("not linked after the link")
	}
}

func TestReadOnly(t *testing.T) {
	s := open(t)
	body := ckpt.Bytes([]byte("x"))
	if err := s.Put(t.Context(), "a", body); err != nil {
		t.Fatal(err)
	}
	r, err := NewReadOnly(s.root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), "a", 0, -1); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{r.Put(t.Context(), "a", body), r.PutIfAbsent(t.Context(), "b", body), r.Delete(t.Context(), "a")} {
		if !errors.Is(err, ckpt.ErrReadOnly) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestClearErrorsAtOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Fatalf("a file as directory: %v", err)
	}
	if _, err := NewReadOnly(filepath.Join(file, "below")); !errors.Is(err, ckpt.ErrNotFound) {
		t.Fatalf("a missing directory: %v", err)
	}
	if os.Geteuid() == 0 {
		t.Log("root may write everywhere: the permission check is not tested")
		return
	}
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	if _, err := New(closed); !errors.Is(err, ckpt.ErrReadOnly) {
		t.Fatalf("a directory that cannot be written: %v", err)
	}
}

func TestForeignFilesAreNotObjects(t *testing.T) {
	s := open(t)
	for _, name := range []string{"has space", ".hidden", "ok"} {
		if err := os.WriteFile(filepath.Join(s.root, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(s.root, "dangling")); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page) != 1 || page[0].Key != "ok" {
		t.Fatalf("List gave %v, %v", page, err)
	}
}

func TestDeleteRacesWithPut(t *testing.T) {
	// Deleting the last object of a directory removes it; a writer that wants to link into it must not fail.
	s := open(t)
	done := make(chan error, 1) // 1: the goroutine ends without a reader
	go func() {
		for range 100 {
			if err := s.Put(t.Context(), "d/x", ckpt.Bytes([]byte("x"))); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
			if err := s.Delete(t.Context(), "d/x"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A pipe among the objects is no object, and nobody waits for its other end.
func TestPipeIsNoObject(t *testing.T) {
	dir := t.TempDir()
	s, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "job"), 0o755), unix.Mkfifo(filepath.Join(dir, "job", "pipe"), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if p, err := s.Get(ctx, "job/pipe", 0, -1); !errors.Is(err, ckpt.ErrNotFound) || ctx.Err() != nil {
		t.Errorf("read %d bytes: %v", len(p), err)
	}
}

// TestTidy: what a store made for its writes goes away, and comes back when it writes again; what was there before stays.
func TestTidy(t *testing.T) {
	s := open(t)
	s.Tidy()
	if _, err := os.Stat(filepath.Join(s.root, tempDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after tidying up: %v", err)
	}
	if err := s.PutIfAbsent(t.Context(), "a/b", ckpt.Bytes([]byte("x"))); err != nil {
		t.Error(err)
	}
	second, err := New(s.root)
	if err != nil {
		t.Fatal(err)
	}
	second.Tidy()
	if names := temps(t, s); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// TestRenameFolder: a folder gets its name at once, and nothing is replaced.
func TestRenameFolder(t *testing.T) {
	s := open(t)
	for _, key := range []string{"a.partial/x", "b/x"} {
		if err := s.PutIfAbsent(t.Context(), key, ckpt.Bytes([]byte(key))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RenameFolder("a.partial", "b"); !errors.Is(err, ckpt.ErrExists) {
		t.Errorf("onto another: %v", err)
	}
	if err := s.RenameFolder("a.partial", "a"); err != nil {
		t.Error(err)
	}
	if b, err := s.Get(t.Context(), "a/x", 0, -1); err != nil || string(b) != "a.partial/x" {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.RenameFolder("a.partial", "c"); !errors.Is(err, ckpt.ErrNotFound) {
		t.Errorf("of nothing: %v", err)
	}
}
