// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

func TestTransportCarriesPacketsAndStreams(t *testing.T) {
	udpA, lA := sockets(t)
	udpB, lB := sockets(t)
	a, b := NewTransport(udpA, lA, plainDialer, nil), NewTransport(udpB, lB, plainDialer, nil)
	addr := lB.Addr().String()
	if _, err := a.WriteTo([]byte("hello"), addr); err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-b.PacketCh():
		if string(p.Buf) != "hello" || p.From.String() != udpA.LocalAddr().String() || p.Timestamp.IsZero() {
			t.Errorf("packet %+v", p)
		}
	case <-time.After(patience):
		t.Fatal("no packet")
	}
	conn, err := a.DialTimeout(addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	select {
	case got := <-b.StreamCh():
		got.Close()
	case <-time.After(patience):
		t.Fatal("no stream")
	}
	if _, err := a.WriteTo(nil, "name:1"); err == nil {
		t.Error("a name was resolved on a probe path")
	}
	// Nobody reads: the goroutines are in their sends when Shutdown comes.
	if _, err := a.WriteTo([]byte("unread"), addr); err != nil {
		t.Fatal(err)
	}
	unread, err := a.DialTimeout(addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	for _, x := range []*Transport{a, b, b} {
		if err := x.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}

func TestTransportShutdownEndsADial(t *testing.T) {
	udp, l := sockets(t)
	dialing := make(chan struct{})
	stuck := StreamDialerFunc(func(ctx context.Context, _ string) (net.Conn, error) {
		close(dialing)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	x := NewTransport(udp, l, stuck, nil)
	ended := make(chan error, 1)
	go func() {
		_, err := x.DialTimeout("127.0.0.1:1", time.Hour)
		ended <- err
	}()
	<-dialing
	if err := x.Shutdown(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the dial succeeded")
		}
	case <-time.After(patience):
		t.Fatal("the dial goes on after Shutdown")
	}
}

func TestTransportAdvertises(t *testing.T) {
	udp, l := sockets(t)
	x := NewTransport(udp, l, plainDialer, nil)
	defer x.Shutdown()
	port := udp.LocalAddr().(*net.UDPAddr).Port
	if ip, p, err := x.FinalAdvertiseAddr("", 0); err != nil || ip.String() != "127.0.0.1" || p != port {
		t.Errorf("%v %d %v", ip, p, err)
	}
	if ip, p, err := x.FinalAdvertiseAddr("10.1.2.3", 99); err != nil || ip.String() != "10.1.2.3" || p != 99 {
		t.Errorf("%v %d %v", ip, p, err)
	}
	for _, bad := range []string{"0.0.0.0", "::", "a name"} {
		if _, _, err := x.FinalAdvertiseAddr(bad, 1); err == nil || !strings.Contains(err.Error(), "--advertise") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
