// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/ckpt"
)

const smallDisk = "PHALANX_FS_TEST_SMALL_DISK"

// TestSmallDisk: a full disk is an error of its own that leaves nothing half, and heals when somebody makes room; a mount that
// turns read-only is said to be one. The child has a file system of 4 MiB for itself.
func TestSmallDisk(t *testing.T) {
	if dir := os.Getenv(smallDisk); dir != "" {
		onSmallDisk(t, dir)
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "^TestSmallDisk$", "-test.v")
	c.Env = append(os.Environ(), smallDisk+"="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS, // any user may mount in its own
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestSmallDisk") {
		t.Fatalf("%v\n%s\n(the test needs user and mount namespaces; allow them with sysctl kernel.unprivileged_userns_clone=1)", err, out)
	}
}

func onSmallDisk(t *testing.T, dir string) {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	s, err := New(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	mib := func(i int) ckpt.Body { return ckpt.Bytes(bytes.Repeat([]byte{byte(i)}, 1<<20)) }
	stored := 0
	for ; stored < 10; stored++ {
		if err = s.PutIfAbsent(ctx, fmt.Sprint("k/", stored), mib(stored)); err != nil {
			break
		}
	}
	if !errors.Is(err, ckpt.ErrNoSpace) || !strings.Contains(err.Error(), "make room") || stored == 0 {
		t.Fatalf("after %d MiB: %v", stored, err)
	}
	if left := temps(t, s); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	page, err := ckpt.ListAll(ctx, s, "")
	if err != nil || len(page) != stored {
		t.Errorf("%d objects, want %d, %v", len(page), stored, err)
	}
	if err := s.Delete(ctx, "k/0"); err != nil {
		t.Fatal(err)
	}
	if err := s.PutIfAbsent(ctx, "k/again", mib(7)); err != nil {
		t.Errorf("with room again: %v", err)
	}

	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.PutIfAbsent(ctx, "k/late", mib(8)); !errors.Is(err, ckpt.ErrReadOnly) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a write to a read-only mount: %v", err)
	}
	if _, err := New(s.root); !errors.Is(err, ckpt.ErrReadOnly) {
		t.Errorf("opening a read-only mount for writing: %v", err)
	}
	if _, err := s.Probe(ctx); !errors.Is(err, ckpt.ErrReadOnly) {
		t.Errorf("probing a read-only mount: %v", err)
	}
	r, err := NewReadOnly(s.root)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := r.Get(ctx, "k/again", 0, -1); err != nil || len(p) != 1<<20 {
		t.Errorf("reading it: %d bytes, %v", len(p), err)
	}
}

func TestBeacons(t *testing.T) {
	dir := t.TempDir()
	here, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := here.Beacons(); err != nil || len(found) != 0 {
		t.Fatal(found, err)
	}
	for range 2 { // again is no error
		if err := here.WriteBeacon("a"); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := here.AwaitBeacon(short, "a"); !errors.Is(err, ErrNotShared) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("alone: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { // it appears late
		if there, err := New(dir); err == nil {
			_ = there.WriteBeacon("b")
		}
	})
	long, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := here.AwaitBeacon(long, "a"); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"", "a/b", "..", ".x"} {
		if err := here.WriteBeacon(host); err == nil {
			t.Errorf("host %q left a beacon", host)
		}
	}
	if page, err := ckpt.ListAll(t.Context(), here, ""); err != nil || len(page) != 0 {
		t.Errorf("beacons are listed as objects: %v, %v", page, err)
	}
	if left := temps(t, here); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestProbe(t *testing.T) {
	s := open(t)
	p, err := s.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, a := range p.Abilities {
		has[a.Name] = a.Has
		if !a.Has && a.Lost == "" {
			t.Errorf("%s is missing and nothing is lost", a.Name)
		}
	}
	if !has["write"] || !has["conditional create"] || !has["locks"] || has["checksum is kept"] || !has["room"] {
		t.Errorf("%+v", p.Abilities)
	}
	if left := temps(t, s); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
