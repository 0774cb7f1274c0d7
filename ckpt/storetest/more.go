// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"phalanx/ckpt"
)

// metadataKeys: the index of a PyTorch checkpoint begins with a dot, and is an object like others.
func metadataKeys(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	const key = "m/step-1/" + ckpt.MetadataName
	must(t, s.PutIfAbsent(ctx, key, text("index")))
	want(t, s.PutIfAbsent(ctx, key, text("other")), ckpt.ErrExists)
	must(t, s.Put(ctx, "m/step-1/__0_0.distcp", text("data")))
	content(t, s, key, "index")
	info, err := s.Stat(ctx, key)
	must(t, err)
	if info.Size != 5 {
		t.Fatalf("stat: %+v", info)
	}
	page, err := s.List(ctx, "m/", "", 0)
	must(t, err)
	if len(page) != 2 || page[0].Key != key {
		t.Fatalf("list: %+v", page)
	}
	for _, bad := range []string{ckpt.MetadataName, "m/.metadata/x", "m/.metadata2", "m/.Metadata"} {
		if err := s.Put(ctx, bad, text("x")); err == nil {
			t.Errorf("key %q was taken", bad)
		}
	}
	must(t, s.Delete(ctx, key))
	_, err = s.Stat(ctx, key)
	want(t, err, ckpt.ErrNotFound)
}

// manyKeys: more keys than one answer of S3 holds, found from anywhere between them.
func manyKeys(t *testing.T, s ckpt.Store) {
	const n, writers = 1100, 16
	key := func(i int) string { return fmt.Sprintf("many/%02d/%04d", i/100, i) }
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				if err := s.Put(t.Context(), key(i), text(key(i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	var wanted []string
	for i := range n {
		wanted = append(wanted, key(i))
	}
	if got := collect(t, s, "many/", "", 0); !slices.Equal(got, wanted) {
		t.Fatalf("a list of %d keys has %d", n, len(got))
	}
	for _, after := range []struct {
		key  string
		from int
	}{{key(99), 100}, {key(999), 1000}, {"many/05/0550x", 551}, {"many/05", 500}, {"many/07/", 700}, {key(n - 1), n}} {
		if got := collect(t, s, "many/", after.key, 333); !slices.Equal(got, wanted[after.from:]) {
			t.Errorf("after %s: %d keys, want %d", after.key, len(got), n-after.from)
		}
	}
}

// manyWriters: writers of different keys and of one key, and readers, at the same time.
func manyWriters(t *testing.T, s ckpt.Store) {
	const writers, each = 16, 8
	ctx := t.Context()
	var mu sync.Mutex
	won := map[string]int{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				own := fmt.Sprintf("w/%d/%d", w, i)
				if err := s.PutIfAbsent(ctx, own, text(own)); err != nil {
					t.Error(err)
				}
				shared := fmt.Sprintf("shared/%d", i)
				if err := s.PutIfAbsent(ctx, shared, text(own)); err == nil {
					mu.Lock()
					won[shared]++
					mu.Unlock()
				}
				if p, err := s.Get(ctx, own, 0, -1); err != nil || string(p) != own {
					t.Errorf("%s reads back as %q, %v", own, p, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range each {
		if shared := fmt.Sprintf("shared/%d", i); won[shared] != 1 {
			t.Errorf("%d writers created %s", won[shared], shared)
		}
	}
	if got := len(collectAny(t, s, "w/")); got != writers*each {
		t.Errorf("%d objects, want %d", got, writers*each)
	}
}

func collectAny(t *testing.T, s ckpt.Store, prefix string) []ckpt.Info {
	t.Helper()
	all, err := ckpt.ListAll(t.Context(), s, prefix)
	must(t, err)
	return all
}

// pattern is content of any size without memory for it.
type pattern struct{ size int64 }

func (p pattern) ReadAt(b []byte, off int64) (int, error) {
	n := min(int64(len(b)), p.size-off)
	for i := range n {
		b[i] = patternByte(off + i)
	}
	if n < int64(len(b)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func patternByte(at int64) byte { return byte(at ^ at>>9 ^ at>>17) }

// largeObject: one object of the size of a data object, and ranges of it.
func largeObject(t *testing.T, s ckpt.Store) {
	if testing.Short() {
		t.Skip("64 MiB: not with -short")
	}
	ctx := t.Context()
	const size = 64<<20 + 7
	whole := make([]byte, size)
	_, err := pattern{size}.ReadAt(whole, 0)
	must(t, err)
	body := ckpt.Body{ReaderAt: pattern{size}, Size: size, CRC64NVME: ckpt.Checksum(whole)}
	must(t, s.PutIfAbsent(ctx, "large", body))
	info, err := s.Stat(ctx, "large")
	must(t, err)
	if info.Size != size || info.HasCRC && info.CRC64NVME != body.CRC64NVME {
		t.Fatalf("stat: %+v", info)
	}
	for _, r := range []struct{ off, n int64 }{{0, 10}, {size - 5, -1}, {33<<20 + 1, 1 << 20}} {
		p, err := s.Get(ctx, "large", r.off, r.n)
		must(t, err)
		end := int64(size)
		if r.n >= 0 {
			end = r.off + r.n
		}
		if !slices.Equal(p, whole[r.off:end]) {
			t.Errorf("%d bytes from %d are others", r.n, r.off)
		}
	}
	p, err := s.Get(ctx, "large", 0, -1)
	must(t, err)
	if ckpt.Checksum(p) != body.CRC64NVME {
		t.Error("the whole object is another")
	}
}
