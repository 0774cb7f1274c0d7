// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func key(op Op, k string, values ...string) Request {
	q := Request{Op: op, Keys: []string{k}}
	for _, v := range values {
		q.Values = append(q.Values, []byte(v))
	}
	return q
}

func number(op Op, k string, n int64) Request {
	return Request{Op: op, Keys: []string{k}, Number: n}
}

func i64(n int64) string   { return string(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
func text(s string) string { return i64(int64(len(s))) + s }

// What PyTorch's own server answers, request by request of one client.
func TestAnswers(t *testing.T) {
	m := NewMachine(1 << 20)
	for i, c := range []struct {
		q    Request
		want string
	}{
		{Request{Op: Validate, Number: magic}, ""},
		{Request{Op: Ping, Number: 7}, "\x07\x00\x00\x00"},
		{key(Set, "/a", "1"), ""},
		{key(Get, "/a"), text("1")},
		{key(CompareSet, "/n", "x", "y"), text("x")},
		{key(Check, "/n"), "\x01"},
		{key(CompareSet, "/n", "", "y"), text("y")},
		{key(CompareSet, "/n", "q", "z"), text("y")},
		{key(CompareSet, "/n", "y", "z"), text("z")},
		{Request{Op: Check, Keys: []string{"/a", "/b"}}, "\x01"},
		{Request{Op: Check, Keys: []string{"/a", "/n"}}, "\x00"},
		{Request{Op: NumKeys}, i64(2)},
		{key(Delete, "/a"), i64(1)},
		{key(Delete, "/a"), i64(0)},
		{key(Append, "/p", "1"), ""},
		{key(Append, "/p", "2"), ""},
		{Request{Op: MultiGet, Keys: []string{"/p", "/n"}}, text("12") + text("z")},
		{Request{Op: MultiSet, Keys: []string{"/k1", "/k2"}, Values: [][]byte{[]byte("v1"), []byte("v2")}}, ""},
		{number(Add, "/c", 3), i64(3)},
		{number(Add, "/c", -5), i64(-2)},
		{key(Get, "/c"), text("-2")},
		{Request{Op: Wait}, "\x00"},
		{key(QueuePush, "/q", "e1"), ""},
		{key(QueuePush, "/q", "e2"), ""},
		{key(QueueLen, "/q"), i64(2)},
		{key(Check, "/q"), "\x00"},
		{key(Delete, "/q"), i64(0)},
		{key(QueuePop, "/q"), i64(2) + text("e1")},
		{key(QueuePop, "/q"), i64(1) + text("e2")},
		{key(QueuePop, "/q"), i64(0)},
		{key(Check, "/q"), "\x01"},
		{Request{Op: ListKeys}, i64(5) + text("/c") + text("/k1") + text("/k2") + text("/n") + text("/p")},
		{number(Barrier, "/b", 1), "\x00"},
		{Request{Op: CancelWait}, "\x01"},
		{key(Set, "/e", ""), ""},
		{key(Get, "/e"), text("")},
	} {
		got, err := m.Do(1, c.q)
		var b []byte
		for _, r := range got {
			b = append(b, r.Bytes...)
		}
		if err != nil || string(b) != c.want {
			t.Errorf("request %d, %+v: %q, %v; want %q", i, c.q, b, err, c.want)
		}
	}
}

// What cannot be answered is an error and changes nothing.
func TestRefusals(t *testing.T) {
	m := NewMachine(1000)
	if _, err := m.Do(1, key(Set, "/k", "word")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q    Request
		want error
	}{
		{key(Get, "/none"), ErrMissing},
		{Request{Op: MultiGet, Keys: []string{"/k", "/none"}}, ErrMissing},
		{number(Add, "/k", 1), ErrNumber},
		{key(Set, "/big", strings.Repeat("x", 1000)), ErrFull},
		{key(QueuePush, "/big", strings.Repeat("x", 1000)), ErrFull},
		{key(Append, "/k", strings.Repeat("x", 1000)), ErrFull},
		{Request{Op: Validate, Number: 1}, ErrProtocol},
		{Request{Op: 0x7f}, ErrProtocol},
	} {
		if out, err := m.Do(1, c.q); !errors.Is(err, c.want) || out != nil {
			t.Errorf("%+v: %v, %v; want %v", c.q, out, err, c.want)
		}
	}
	if out, err := m.Do(1, Request{Op: NumKeys}); err != nil || string(out[0].Bytes) != i64(1) {
		t.Errorf("%v %v", out, err)
	}
	if out, err := m.Do(1, key(Get, "/k")); err != nil || string(out[0].Bytes) != text("word") {
		t.Errorf("%v %v", out, err)
	}
}

// Waits are answered when the last key is there, in the order of events, and forgotten when cancelled or when the client goes.
func TestWaits(t *testing.T) {
	m := NewMachine(1 << 20)
	do := func(c Client, q Request) (out []Reply) {
		t.Helper()
		out, err := m.Do(c, q)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		return out
	}
	free := func(cs ...Client) (out []Reply) {
		for _, c := range cs {
			out = append(out, Reply{c, []byte{ready}})
		}
		return out
	}
	want := func(got, want []Reply) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	want(do(1, Request{Op: Wait, Keys: []string{"a", "b"}}), nil)
	want(do(2, key(Wait, "a")), nil)
	want(do(3, key(Wait, "a")), nil)
	if _, err := m.Do(1, key(Get, "a")); !errors.Is(err, ErrProtocol) {
		t.Errorf("a client that waits asks: %v", err)
	}
	want(do(3, Request{Op: CancelWait}), []Reply{{3, []byte{canceled}}})
	want(do(9, key(Set, "a", "1")), free(2))
	want(do(9, key(Set, "b", "1")), free(1))
	want(do(1, key(Wait, "c")), nil)
	m.Gone(1)
	want(do(9, key(Set, "c", "1")), nil)
	// One element of a queue frees one client.
	want(do(1, key(Wait, "q")), nil)
	want(do(2, key(Wait, "q")), nil)
	want(do(9, key(QueuePush, "q", "e")), free(1))
	want(do(9, key(QueuePush, "q", "e")), free(2))
	// A barrier counts who is there, and can be used again.
	for range 2 {
		want(do(1, number(Barrier, "x", 3)), nil)
		want(do(2, number(Barrier, "x", 3)), nil)
		m.Gone(2)
		want(do(3, number(Barrier, "x", 3)), nil)
		want(do(4, number(Barrier, "x", 3)), free(1, 3, 4))
	}
	if len(m.waits)+len(m.waiting)+len(m.barriers) != 0 {
		t.Errorf("left behind: %v %v %v", m.waits, m.waiting, m.barriers)
	}
}

// Whatever is done, the bytes counted are those held, and nobody waits for what is there.
func TestAccounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMachine(2000)
		k := rapid.SampledFrom([]string{"a", "b", "c"})
		v := rapid.SliceOfN(rapid.Byte(), 0, 300)
		for range rapid.IntRange(1, 40).Draw(t, "n") {
			c := Client(rapid.IntRange(1, 3).Draw(t, "client"))
			q := Request{Op: Op(rapid.IntRange(int(Set), int(Barrier)).Draw(t, "op")), Keys: []string{k.Draw(t, "key")}, Number: rapid.Int64Range(0, 3).Draw(t, "number")}
			for range 2 {
				q.Values = append(q.Values, v.Draw(t, "value"))
			}
			if q.Op == MultiSet {
				q.Keys = append(q.Keys, k.Draw(t, "key"))
			}
			_, _ = m.Do(c, q)
			var used int64
			for k, v := range m.values {
				used += cost(k, v)
			}
			for k, q := range m.queues {
				for _, v := range q {
					used += cost(k, v)
				}
			}
			if used != m.used || used > m.limit {
				t.Fatalf("%d bytes are held, %d counted, of %d", used, m.used, m.limit)
			}
			for c, w := range m.waits {
				for k := range w.missing {
					if _, ok := m.values[k]; ok || !m.waiting[k][c] {
						t.Fatalf("client %d waits for %q", c, k)
					}
				}
			}
		}
	})
}

func start(t *testing.T, s *Server) (net.Conn, chan error) {
	t.Helper()
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), theirs) }()
	t.Cleanup(func() { ours.Close() })
	_ = ours.SetDeadline(time.Now().Add(10 * time.Second))
	return ours, ended
}

func send(t *testing.T, c net.Conn, qs ...Request) {
	t.Helper()
	var b []byte
	for _, q := range qs {
		b = q.Append(b)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// A wait is answered when another client sets the key; what was sent behind it is answered after it; a cancellation passes it.
func TestServer(t *testing.T) {
	s := NewServer()
	defer s.End()
	hello := Request{Op: Validate, Number: magic}
	a, aEnd := start(t, s)
	b, bEnd := start(t, s)
	send(t, a, hello, Request{Op: Ping, Number: 5})
	expect(t, a, "\x05\x00\x00\x00")
	send(t, b, hello)
	send(t, a, key(Wait, "/k"), key(Get, "/k"))
	send(t, b, key(Set, "/k", "v"))
	expect(t, a, "\x00"+text("v"))
	send(t, a, key(Wait, "/z"))
	send(t, a, Request{Op: CancelWait}, Request{Op: NumKeys})
	expect(t, a, "\x01"+i64(1))
	send(t, a, key(Wait, "/y"))
	s.End() // the generation ends: so do waits, and connections
	for _, ended := range []chan error{aEnd, bEnd} {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a connection outlives its store")
		}
	}
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("the wait was answered")
	}
	if len(s.conns) != 0 {
		t.Errorf("%d connections are left", len(s.conns))
	}
}

func TestServerRefusesStrangers(t *testing.T) {
	s := NewServer()
	defer s.End()
	for _, bytes := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\x01\x02\x03\x04", "\x00\xce\xf7\x85\x3c\x7f"} {
		c, ended := start(t, s)
		go func() { _, _ = c.Write([]byte(bytes)) }() // the other end may close before it has read all
		if err := <-ended; !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %v", bytes, err)
		}
	}
}

// FuzzStoreRequest: what is read is written again to the same bytes, claims cost no memory, and the machine stands any of it.
func FuzzStoreRequest(f *testing.F) {
	for _, q := range []Request{
		{Op: Validate, Number: magic}, key(Set, "/a", "1"), key(CompareSet, "/n", "", "y"), number(Add, "/c", -3), {Op: Wait, Keys: []string{"/a", "/b"}},
		{Op: MultiSet, Keys: []string{"/k1", "/k2"}, Values: [][]byte{[]byte("v1"), nil}}, {Op: ListKeys}, number(Barrier, "/b", 2), {Op: Ping, Number: 9}, key(QueuePop, "q"),
	} {
		f.Add(q.Append(nil))
	}
	f.Add([]byte("\x01\x00\x00\x80\x00\x00\x00\x00\x00abc"))
	f.Add([]byte("\x05\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		m := NewMachine(1 << 16)
		r := bufio.NewReader(bytes.NewReader(in))
		for read := 0; ; {
			q, err := ReadRequest(r)
			if err != nil {
				return
			}
			b := q.Append(nil)
			if !bytes.Equal(b, in[read:read+len(b)]) {
				t.Fatalf("%+v was read from %q and is written as %q", q, in[read:], b)
			}
			read += len(b)
			for _, c := range []Client{1, 2} {
				if _, err := m.Do(c, q); err != nil && m.used > m.limit {
					t.Fatal(err)
				}
			}
		}
	})
}
