// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestMemories holds what both memories promise: a page is locked by one daemon at a time, outlives it, and a removed name
// is free while its mappings stay good.
func TestMemories(t *testing.T) {
	for name, m := range map[string]Memory{"shared": SharedMemory{}, "heap": NewHeapMemory()} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "phalanx.x.0.1.page")
			p, err := m.CreatePage(path, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			p.WriteSealed(Sealed{})
			if _, err := m.CreatePage(path, 0, 1); !errors.Is(err, os.ErrExist) {
				t.Fatalf("created twice: %v", err)
			}
			if _, err := m.AdoptPage(path); !errors.Is(err, ErrLocked) {
				t.Fatalf("adopted from a living daemon: %v", err)
			}
			watched, err := m.WatchPage(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Unmap(); err != nil {
				t.Fatal(err)
			}
			p, err = m.AdoptPage(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, n := p.ReadSealed(); n != 1 {
				t.Fatalf("the promise was written %d times after the adoption", n)
			}
			r, err := m.CreateRegion(filepath.Join(dir, "phalanx.x.0.1.seg"), 100)
			if err != nil || len(r.Bytes()) != 100 {
				t.Fatalf("%d bytes, %v", len(r.Bytes()), err)
			}
			if got := m.List(filepath.Join(dir, "phalanx.x.0.")); !slices.Equal(got, []string{path, r.Path()}) {
				t.Fatalf("lists %v", got)
			}
			if err := m.Remove(path); err != nil {
				t.Fatal(err)
			}
			if _, err := m.OpenRegion(path, false); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("opened a removed name: %v", err)
			}
			p.WriteSealed(Sealed{})
			if _, n := watched.ReadSealed(); n != 2 {
				t.Fatalf("the mapping of a removed page saw %d writes", n)
			}
			b, err := m.Bells(filepath.Join(dir, "bells"))
			if err != nil {
				t.Fatal(err)
			}
			again, err := m.Bells(filepath.Join(dir, "bells"))
			if err != nil {
				t.Fatal(err)
			}
			b.Bell(3).Ring()
			if again.Bell(3).Wait(0, time.Second) != 1 {
				t.Fatal("a ring was not heard")
			}
			for _, err := range []error{p.Unmap(), watched.Unmap(), r.Unmap(), again.Unmap()} {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
