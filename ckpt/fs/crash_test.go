// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/ckpt"
)

const childRoot = "PHALANX_FS_TEST_CHILD"

// object is the content that the child gives to its i-th key.
func object(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, 300_000) }

// TestMain is also the child of TestKilledWriter: it writes objects until it is killed.
func TestMain(m *testing.M) {
	root := os.Getenv(childRoot)
	if root == "" {
		os.Exit(m.Run())
	}
	s, err := New(root)
	for i := 0; err == nil; i++ {
		err = s.PutIfAbsent(context.Background(), fmt.Sprintf("k/%06d", i), ckpt.Bytes(object(i)))
		fmt.Println(i)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestKilledWriter(t *testing.T) {
	root := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childRoot+"="+root)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 6)
	if _, err := out.Read(first); err != nil { // it has written something
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // any moment is as good as another
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed

	s, err := New(root)
	if err != nil {
		t.Fatal(err)
	}
	page, err := ckpt.ListAll(t.Context(), s, "k/")
	if err != nil || len(page) == 0 {
		t.Fatal(page, err)
	}
	for i, info := range page {
		p, err := s.Get(t.Context(), info.Key, 0, -1)
		if err != nil || info.Key != fmt.Sprintf("k/%06d", i) || !bytes.Equal(p, object(i)) {
			t.Fatalf("%s holds %d bytes that were not written (%v)", info.Key, len(p), err)
		}
	}
	left := temps(t, s)
	if len(left) > 1 {
		t.Fatalf("left behind: %v", left)
	}
	if err := s.sweep(time.Now().Add(2 * orphanAge)); err != nil {
		t.Fatal(err)
	}
	if left := temps(t, s); len(left) > 0 {
		t.Fatalf("not swept: %v", left)
	}
	// The store goes on where the dead writer stopped.
	if err := s.PutIfAbsent(t.Context(), fmt.Sprintf("k/%06d", len(page)), ckpt.Bytes(object(len(page)))); err != nil {
		t.Fatal(err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := &Store{root: "/data"}
	for err, want := range map[error]struct {
		is   error
		hint string
	}{
		unix.ENOSPC: {ckpt.ErrNoSpace, "make room"},
		unix.EDQUOT: {ckpt.ErrNoSpace, "--keep"},
		unix.ESTALE: {ckpt.ErrUnavailable, "does not answer now"},
		unix.EROFS:  {ckpt.ErrReadOnly, "mounted read-only"},
		unix.EACCES: {ckpt.ErrReadOnly, "check owner and mode"},
		unix.ENOENT: {ckpt.ErrNotFound, "no such file below /data"},
		unix.EIO:    {unix.EIO, "input/output"},
	} {
		got := s.explain("put", "/data/a/b", err)
		if !errors.Is(got, want.is) || !strings.Contains(got.Error(), want.hint) || !strings.Contains(got.Error(), "put a/b") {
			t.Errorf("%v: %v", err, got)
		}
	}
}
