// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/collective/store"
	"phalanx/elastic"
)

// storeDaemons are as much of the daemons of some hosts as serves the store.
func storeDaemons(t *testing.T, hosts ...string) []*Daemon {
	t.Helper()
	key := NewJobKey()
	var all []*Daemon
	var peers []Peer
	for _, h := range hosts {
		who := incarnate(h, 0, 1)
		d := &Daemon{cfg: Config{Host: h, Bind: "127.0.0.1"}, log: quiet(), ctx: t.Context(), state: elastic.NewState()}
		d.listener = listen(t, identity(t, key, "job", who.Member))
		d.roster = newRoster(NewPaths(t.TempDir(), ""), nil, func() Peer { return Peer{} })
		d.kv = newStores(d)
		kv := d.kv // a test may put another one there
		d.ends.Go(func() { kv.accept(d.listener.Of(ProtoStore)) })
		peers = append(peers, Peer{Incarnate: who, Host: h, Addr: d.addr()})
		all = append(all, d)
	}
	for _, d := range all {
		d.roster.learn(peers)
		t.Cleanup(func() { // the context has ended
			d.kv.close()
			d.listener.Close()
			d.ends.Wait()
		})
	}
	return all
}

// read makes daemons read a world of one rank on each host, in this order.
func read(g uint64, hosts string, all ...*Daemon) phalanx.Generation {
	var seats []phalanx.Incarnate
	for _, h := range strings.Fields(hosts) {
		seats = append(seats, incarnate(h, 0, 1))
	}
	s := elastic.NewState()
	s.World = plainWorld(g, seats...)
	for _, d := range all {
		d.kv.stateChanged(s)
	}
	return s.World.Generation
}

// storeClient is a client that only knows a port.
type storeClient struct {
	t *testing.T
	net.Conn
}

func connect(t *testing.T, d *Daemon, g phalanx.Generation) storeClient {
	t.Helper()
	port, err := d.kv.listen(g, 0)
	if err != nil {
		t.Fatal(err)
	}
	return dialStore(t, port)
}

func dialStore(t *testing.T, port int) storeClient {
	t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	s := storeClient{t, c}
	s.send(store.Request{Op: store.Validate, Number: 0x3c85f7ce})
	return s
}

func (c storeClient) send(q store.Request) {
	c.t.Helper()
	if _, err := c.Write(q.Append(nil)); err != nil {
		c.t.Fatal(err)
	}
}

func (c storeClient) add(key string, n int64) int64 {
	c.t.Helper()
	c.send(store.Request{Op: store.Add, Keys: []string{key}, Number: n})
	var b [8]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		c.t.Fatal(err)
	}
	return int64(binary.LittleEndian.Uint64(b[:]))
}

// ended wants the end of the connection, and nothing before it.
func (c storeClient) ended() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
		c.t.Errorf("read %d bytes, %v; want the end of the connection", n, err)
	}
}

// All hosts see one store, also those whose daemon reads of the generation before rank 0's does. A wait ends with the generation,
// and the next one's store is empty.
func TestStoreOfAGeneration(t *testing.T) {
	ds := storeDaemons(t, "a", "b", "c")
	a, b, c := ds[0], ds[1], ds[2]
	g := read(1, "a b c", b)
	early := connect(t, b, g)
	time.Sleep(2 * storeRetry) // it has asked and was sent away
	read(1, "a b c", a, c)
	if n := early.add("/n", 1); n != 1 {
		t.Errorf("the first one counts %d", n)
	}
	here, far := connect(t, a, g), connect(t, c, g)
	if n := here.add("/n", 1) + 10*far.add("/n", 1); n != 32 {
		t.Errorf("the others count %d, want 2 and 3", n)
	}
	for _, x := range []storeClient{here, far, early} {
		x.send(store.Request{Op: store.Wait, Keys: []string{"/never"}})
	}
	c.kv.revoke(g) // sealed there first
	far.ended()
	if _, err := c.kv.listen(g, 0); err == nil {
		t.Error("a store of a generation that is sealed is served")
	}
	next := read(2, "b c", a, b, c)
	for _, x := range []storeClient{here, early} {
		x.ended()
	}
	if n := connect(t, c, next).add("/n", 1); n != 1 {
		t.Errorf("the next generation begins with %d", n)
	}
	if _, err := a.kv.listen(g, 0); err == nil {
		t.Error("a store of a generation that is over is served")
	}
}

// A daemon that comes back serves where its predecessor did.
func TestStoreAtTheSamePort(t *testing.T) {
	d := storeDaemons(t, "a")[0]
	g := read(1, "a", d)
	port, err := d.kv.listen(g, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.kv.close()
	d.kv = newStores(d)
	read(1, "a", d)
	if again, err := d.kv.listen(g, port); err != nil || again != port {
		t.Fatalf("listens at %d, %v; want %d", again, err, port)
	}
	dialStore(t, port).add("/n", 1)
}

// What forwards and names no generation, or one that is not here, gets nothing.
func TestStoreNotHere(t *testing.T) {
	ds := storeDaemons(t, "a", "b")
	a, b := ds[0], ds[1]
	read(7, "a b", a, b)
	for line, want := range map[string]byte{"6\n": storeNotHere, "8\n": storeNotHere, "7\n": storeHere} {
		c, err := b.listener.Dial(brief(t), a.addr(), ProtoStore)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, line)
		var answer [1]byte
		if _, err := io.ReadFull(c, answer[:]); err != nil || answer[0] != want {
			t.Errorf("%q: %d, %v; want %d", line, answer[0], err, want)
		}
		c.Close()
	}
	c, err := b.listener.Dial(brief(t), a.addr(), ProtoStore)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, strings.Repeat("x", 100))
	refused(t, c, err)
}

// Over the unix socket a process names the generation.
func TestStoreOverTheSocket(t *testing.T) {
	d := storeDaemons(t, "a")[0]
	read(3, "a", d)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(d.kv.handle))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv.Listener.Close()
	srv.Listener = l
	srv.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, peerUID{}, os.Getuid())
	}
	srv.Start()
	defer srv.Close()
	ask := func(query, upgrade string) (net.Conn, *http.Response, *bufio.Reader) {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "GET /v1/store?%s HTTP/1.1\r\nHost: d\r\n%s\r\n", query, upgrade)
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, res, in
	}
	up := "Connection: Upgrade\r\nUpgrade: " + storeProtocol + "\r\n"
	for _, c := range []struct {
		query, upgrade string
		want           int
	}{{"generation=2", up, 410}, {"generation=4", up, 409}, {"generation=x", up, 400}, {"", up, 400}, {"generation=3", "", 426}} {
		if _, res, _ := ask(c.query, c.upgrade); res.StatusCode != c.want {
			t.Errorf("%q: %s, want %d", c.query, res.Status, c.want)
		}
	}
	c, res, in := ask("generation=3", up)
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res.Status)
	}
	s := storeClient{t, bufferedConn{c, in}}
	s.send(store.Request{Op: store.Validate, Number: 0x3c85f7ce})
	if n := s.add("/n", 4); n != 4 {
		t.Errorf("counts %d", n)
	}
	read(4, "a", d)
	s.ended()
}

// FuzzStoreGeneration: what is read is one line of a generation, and nothing behind it is taken.
func FuzzStoreGeneration(f *testing.F) {
	for _, s := range []string{"7\nrest", "2.7\n", "\n", "x", strings.Repeat("1", 80) + "\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		in := bufio.NewReader(strings.NewReader(s))
		g, err := readStoreGeneration(in)
		if err != nil {
			return
		}
		line, rest, _ := strings.Cut(s, "\n")
		if back, err := phalanx.ParseGeneration(line); err != nil || back != g {
			t.Errorf("%q is read as %s", s, g)
		}
		if left, _ := io.ReadAll(in); string(left) != rest {
			t.Errorf("%q is left of %q", left, s)
		}
	})
}
