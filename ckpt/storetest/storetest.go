// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"phalanx/ckpt"
)

type test struct {
	name string
	run  func(t *testing.T, s ckpt.Store)
}

// Test runs the suite. open returns an empty store; two calls of one test give stores that share nothing.
func Test(t *testing.T, open func(t *testing.T) ckpt.Store) {
	Promises(t, open)
	run(t, open, []test{{"ManyKeys", manyKeys}, {"LargeObject", largeObject}})
}

// Promises runs the suite without its large tests, for further ways to use a store that has passed Test.
func Promises(t *testing.T, open func(t *testing.T) ckpt.Store) {
	run(t, open, []test{
		{"PutIfAbsent", putIfAbsent},
		{"PutIfAbsentIsExclusive", exclusive},
		{"BodyMustHaveItsChecksum", badBody},
		{"Put", put},
		{"PutIfMatch", putIfMatch},
		{"PutIfMatchIsExclusive", matchExclusive},
		{"GetRanges", ranges},
		{"GetInto", into},
		{"EmptyObject", empty},
		{"Stat", stat},
		{"ListOrder", listOrder},
		{"ListPages", listPages},
		{"Delete", deletes},
		{"Keys", keys},
		{"MetadataKeys", metadataKeys},
		{"ManyWriters", manyWriters},
		{"EndedContext", ended},
	})
}

func run(t *testing.T, open func(t *testing.T) ckpt.Store, tests []test) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func content(t *testing.T, s ckpt.Store, key, text string) {
	t.Helper()
	p, err := s.Get(t.Context(), key, 0, -1)
	must(t, err)
	if string(p) != text {
		t.Fatalf("%s holds %q, want %q", key, p, text)
	}
}

func text(s string) ckpt.Body { return ckpt.Bytes([]byte(s)) }

func putIfAbsent(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	must(t, s.PutIfAbsent(ctx, "a/b/c", text("one")))
	want(t, s.PutIfAbsent(ctx, "a/b/c", text("two")), ckpt.ErrExists)
	want(t, s.PutIfAbsent(ctx, "a/b/c", text("one")), ckpt.ErrExists)
	content(t, s, "a/b/c", "one")
}

func exclusive(t *testing.T, s ckpt.Store) {
	const writers = 8
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { errs[i] = s.PutIfAbsent(t.Context(), "race/key", text(fmt.Sprint(i))) })
	}
	wg.Wait()
	winner := slices.Index(errs, nil)
	if winner < 0 {
		t.Fatalf("nobody won: %v", errs)
	}
	for i, err := range errs {
		if i != winner {
			want(t, err, ckpt.ErrExists)
		}
	}
	content(t, s, "race/key", fmt.Sprint(winner))
}

// shortReader ends before its announced size.
type shortReader struct{ io.ReaderAt }

func badBody(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	bad := text("content")
	bad.CRC64NVME++
	want(t, s.PutIfAbsent(ctx, "bad/absent", bad), ckpt.ErrCorrupt)
	want(t, s.Put(ctx, "bad/put", bad), ckpt.ErrCorrupt)
	must(t, s.Put(ctx, "bad/kept", text("kept")))
	want(t, s.Put(ctx, "bad/kept", bad), ckpt.ErrCorrupt)
	content(t, s, "bad/kept", "kept")
	short := ckpt.Body{ReaderAt: shortReader{bytes.NewReader([]byte("abc"))}, Size: 10, CRC64NVME: ckpt.Checksum([]byte("abc"))}
	if err := s.PutIfAbsent(ctx, "bad/short", short); err == nil {
		t.Fatal("a body that ends early was stored")
	}
	for _, key := range []string{"bad/absent", "bad/put", "bad/short"} {
		_, err := s.Stat(ctx, key)
		want(t, err, ckpt.ErrNotFound)
	}
}

func put(t *testing.T, s ckpt.Store) {
	must(t, s.Put(t.Context(), "hint", text("one")))
	content(t, s, "hint", "one")
	must(t, s.Put(t.Context(), "hint", text("longer")))
	content(t, s, "hint", "longer")
}

func putIfMatch(t *testing.T, s ckpt.Store) {
	if !s.Capabilities().ConditionalReplace {
		t.Skip("the store cannot replace conditionally and says so")
	}
	ctx := t.Context()
	want(t, s.PutIfMatch(ctx, "cas", "any", text("x")), ckpt.ErrNotFound)
	must(t, s.Put(ctx, "cas", text("one")))
	first, err := s.Stat(ctx, "cas")
	must(t, err)
	must(t, s.PutIfMatch(ctx, "cas", first.ETag, text("two")))
	want(t, s.PutIfMatch(ctx, "cas", first.ETag, text("six")), ckpt.ErrExists)
	content(t, s, "cas", "two")
}

func matchExclusive(t *testing.T, s ckpt.Store) {
	if !s.Capabilities().ConditionalReplace {
		t.Skip("the store cannot replace conditionally and says so")
	}
	must(t, s.Put(t.Context(), "cas", text("start")))
	info, err := s.Stat(t.Context(), "cas")
	must(t, err)
	const writers = 8
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { errs[i] = s.PutIfMatch(t.Context(), "cas", info.ETag, text(fmt.Sprint(i))) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			want(t, err, ckpt.ErrExists)
		}
	}
	if won != 1 {
		t.Fatalf("%d writers replaced the same version: %v", won, errs)
	}
}

func ranges(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	must(t, s.PutIfAbsent(ctx, "r", text("0123456789")))
	for _, test := range []struct {
		off, n int64
		want   string
	}{{0, -1, "0123456789"}, {0, 4, "0123"}, {3, 4, "3456"}, {7, -1, "789"}, {8, 100, "89"}, {10, 5, ""}, {2, 0, ""}} {
		p, err := s.Get(ctx, "r", test.off, test.n)
		must(t, err)
		if string(p) != test.want {
			t.Errorf("Get(%d, %d) = %q, want %q", test.off, test.n, p, test.want)
		}
	}
	_, err := s.Get(ctx, "r", 11, 1)
	want(t, err, ckpt.ErrNotFound)
	_, err = s.Get(ctx, "nothing", 0, 1)
	want(t, err, ckpt.ErrNotFound)
	_, err = s.Get(ctx, "r/below", 0, 1)
	want(t, err, ckpt.ErrNotFound)

	// What Get returns belongs to the caller.
	p, err := s.Get(ctx, "r", 0, -1)
	must(t, err)
	p[0] = 'x'
	content(t, s, "r", "0123456789")
}

// into reads into the caller's memory, whether the store does so itself or not. The object is larger than one piece.
func into(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	whole := make([]byte, 600<<10)
	for i := range whole {
		whole[i] = byte(i * 31 >> 8)
	}
	must(t, s.PutIfAbsent(ctx, "into", ckpt.Bytes(whole)))
	size := len(whole)
	for _, test := range []struct{ off, n, want int }{{0, size, size}, {1, 300 << 10, 300 << 10}, {size - 5, 100, 5}, {size, 10, 0}, {7, 0, 0}} {
		p := bytes.Repeat([]byte{0xee}, test.n+8)
		n, sum, err := ckpt.GetInto(ctx, s, "into", int64(test.off), p[:test.n])
		must(t, err)
		want := whole[test.off : test.off+test.want]
		if n != test.want || !bytes.Equal(p[:n], want) || sum != ckpt.Checksum(want) {
			t.Errorf("GetInto(%d, %d) read %d bytes with crc64nvme %s, want %d with %s", test.off, test.n, n, sum, test.want, ckpt.Checksum(want))
		}
		if !bytes.Equal(p[test.n:], bytes.Repeat([]byte{0xee}, 8)) {
			t.Errorf("GetInto(%d, %d) wrote beyond what it was given", test.off, test.n)
		}
	}
	_, _, err := ckpt.GetInto(ctx, s, "into", int64(size)+1, make([]byte, 1))
	want(t, err, ckpt.ErrNotFound)
	_, _, err = ckpt.GetInto(ctx, s, "nothing", 0, make([]byte, 1))
	want(t, err, ckpt.ErrNotFound)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := ckpt.GetInto(ended, s, "into", 0, make([]byte, size)); err == nil {
		t.Error("a read whose context has ended succeeded")
	}
}

func empty(t *testing.T, s ckpt.Store) {
	must(t, s.PutIfAbsent(t.Context(), "empty", text("")))
	content(t, s, "empty", "")
	info, err := s.Stat(t.Context(), "empty")
	must(t, err)
	if info.Size != 0 {
		t.Fatalf("size %d", info.Size)
	}
}

func stat(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	_, err := s.Stat(ctx, "s/x")
	want(t, err, ckpt.ErrNotFound)
	must(t, s.Put(ctx, "s/x", text("content")))
	_, err = s.Stat(ctx, "s")
	want(t, err, ckpt.ErrNotFound) // a prefix is no object
	a, err := s.Stat(ctx, "s/x")
	must(t, err)
	if a.Key != "s/x" || a.Size != 7 || a.ETag == "" {
		t.Fatalf("stat: %+v", a)
	}
	if keeps := s.Capabilities().KeepsChecksum; a.HasCRC != keeps || keeps && a.CRC64NVME != ckpt.Checksum([]byte("content")) {
		t.Fatalf("stat: %+v, KeepsChecksum is %v", a, keeps)
	}
	b, err := s.Stat(ctx, "s/x")
	must(t, err)
	if a != b {
		t.Fatalf("two stats of one object differ: %+v, %+v", a, b)
	}
	must(t, s.Put(ctx, "s/x", text("CONTENT")))
	c, err := s.Stat(ctx, "s/x")
	must(t, err)
	if c.ETag == a.ETag {
		t.Fatal("the ETag did not change with the object")
	}
}

func listOrder(t *testing.T, s ckpt.Store) {
	names := []string{"a/b", "a-b", "a.b/c", "a0", "a/b-c", "a/b0", "b/1/2/3", "b/10", "b/1-2", "z", "A/b"}
	for _, k := range names {
		must(t, s.Put(t.Context(), k, text(k)))
	}
	slices.Sort(names)
	for _, prefix := range []string{"", "a", "a/", "a/b", "b/1", "b/1/", "none", "z"} {
		var wanted []string
		for _, k := range names {
			if strings.HasPrefix(k, prefix) {
				wanted = append(wanted, k)
			}
		}
		for limit := range 4 {
			if got := collect(t, s, prefix, "", limit); !slices.Equal(got, wanted) {
				t.Errorf("List(%q) in pages of %d:\n got %q\nwant %q", prefix, limit, got, wanted)
			}
		}
		// after need not be a key that exists.
		for _, after := range []string{"a", "a/", "a/b", "a/b.", "b", "b/1/2/2", "b/1/", "zz"} {
			later := slices.DeleteFunc(slices.Clone(wanted), func(k string) bool { return k <= after })
			if got := collect(t, s, prefix, after, 0); !slices.Equal(got, later) {
				t.Errorf("List(%q, after %q):\n got %q\nwant %q", prefix, after, got, later)
			}
		}
	}
}

func collect(t *testing.T, s ckpt.Store, prefix, after string, limit int) []string {
	t.Helper()
	var all []string
	for {
		page, err := s.List(t.Context(), prefix, after, limit)
		must(t, err)
		if len(page) == 0 {
			return all
		}
		if limit > 0 && len(page) > limit {
			t.Fatalf("List gave %d objects, limit %d", len(page), limit)
		}
		for _, info := range page {
			if info.Size != int64(len(info.Key)) {
				t.Errorf("List: %s has size %d", info.Key, info.Size)
			}
			all = append(all, info.Key)
		}
		after = page[len(page)-1].Key
	}
}

func listPages(t *testing.T, s ckpt.Store) {
	const n = 30
	var wanted []string
	for i := range n {
		k := fmt.Sprintf("p/%03d/%s", i, strings.Repeat("x", i%3+1))
		wanted = append(wanted, k)
		must(t, s.Put(t.Context(), k, text(k)))
	}
	if got := collect(t, s, "p/", "", 7); !slices.Equal(got, wanted) {
		t.Fatalf("got %q", got)
	}
	all, err := ckpt.ListAll(t.Context(), s, "p/")
	must(t, err)
	if len(all) != n {
		t.Fatalf("ListAll gave %d of %d", len(all), n)
	}
}

func deletes(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	must(t, s.Put(ctx, "d/1", text("1")))
	must(t, s.Put(ctx, "d/2", text("2")))
	must(t, s.Delete(ctx, "d/1"))
	must(t, s.Delete(ctx, "d/1"))
	must(t, s.Delete(ctx, "none/at/all"))
	must(t, s.Delete(ctx, "d/2/below"))
	_, err := s.Get(ctx, "d/1", 0, -1)
	want(t, err, ckpt.ErrNotFound)
	content(t, s, "d/2", "2")
	must(t, s.Delete(ctx, "d/2"))
	must(t, s.PutIfAbsent(ctx, "d/2", text("again")))
	content(t, s, "d/2", "again")
}

func keys(t *testing.T, s ckpt.Store) {
	ctx := t.Context()
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".", ".tmp/x", "a b", "a\x00", "é", "a/.b",
		strings.Repeat("k", 201), strings.Repeat("abc/", 300) + "x"} {
		if err := s.PutIfAbsent(ctx, key, text("x")); err == nil {
			t.Errorf("key %q was taken", key)
		}
		if err := s.Delete(ctx, key); err == nil {
			t.Errorf("key %q was deleted", key)
		}
		if _, err := s.Get(ctx, key, 0, -1); err == nil {
			t.Errorf("key %q was read", key)
		}
	}
	if page, err := s.List(ctx, "", "", 0); err != nil || len(page) != 0 {
		t.Errorf("refused keys left %v, %v", page, err)
	}
	must(t, s.PutIfAbsent(ctx, "A-z0.9_/x.json", text("x")))
}

func ended(t *testing.T, s ckpt.Store) {
	must(t, s.Put(t.Context(), "e", text("e")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, s.PutIfAbsent(ctx, "e2", text("x")), context.Canceled)
	want(t, s.Put(ctx, "e2", text("x")), context.Canceled)
	_, err := s.Get(ctx, "e", 0, -1)
	want(t, err, context.Canceled)
	_, err = s.Stat(ctx, "e")
	want(t, err, context.Canceled)
	_, err = s.List(ctx, "", "", 0)
	want(t, err, context.Canceled)
	want(t, s.Delete(ctx, "e"), context.Canceled)
	content(t, s, "e", "e")
	_, err = s.Stat(t.Context(), "e2")
	want(t, err, ckpt.ErrNotFound)
}
