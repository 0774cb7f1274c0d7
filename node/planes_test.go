// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"phalanx/membership"
)

// Both ends of a connection send with the mark of its protocol, and no two protocols share one.
func TestPacketsCarryTheMarkOfTheirProtocol(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		k := NewJobKey()
		id := identity(t, k, "job", "h/0")
		l, err := Listen(nil, addr, id, quiet())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		seen := map[uint8]string{}
		for protocol := range l.queues {
			want := DSCP(protocol)
			if other := seen[want]; other != "" && !isTrial(protocol) && !isTrial(other) || want == 0 || want>>3 == 3 || want>>3 == 6 {
				t.Errorf("%s and %s have the mark %d", protocol, other, want)
			}
			seen[want] = protocol
			out, err := l.Dial(brief(t), l.Addr().String(), protocol)
			if err != nil {
				t.Fatalf("%s: %v", protocol, err)
			}
			in, err := l.Of(protocol).Accept()
			if err != nil {
				t.Fatalf("%s: %v", protocol, err)
			}
			for end, c := range map[string]net.Conn{"dialled": out, "accepted": in} {
				if got := classOf(t, c.(*tls.Conn).NetConn().(*net.TCPConn)); got != int(want)<<2 {
					t.Errorf("%s: the %s end sends with traffic class %#x, want %#x", protocol, end, got, int(want)<<2)
				}
				c.Close()
			}
		}
		udp, err := machineNetwork{}.ListenPacket(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		l.mark(udp, ProtoGossip)
		if got := classOf(t, udp.(*net.UDPConn)); got != int(DSCP(ProtoGossip))<<2 {
			t.Errorf("gossip sends with traffic class %#x", got)
		}
		udp.Close()
	}
}

func isTrial(protocol string) bool { return protocol == ProtoTryPeer || protocol == ProtoTryData }

func classOf(t *testing.T, s syscall.Conn) (class int) {
	t.Helper()
	raw, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		family, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			inner = err
		} else if family == unix.AF_INET6 {
			class, inner = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS)
		} else {
			class, inner = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS)
		}
	})
	if err := errors.Join(err, inner); err != nil {
		t.Fatal(err)
	}
	return class
}

// What is no socket is not marked and works all the same.
func TestWhatIsNoSocketIsNotMarked(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if membership.SetTrafficClass(a, 10) == nil {
		t.Error("a pipe was marked")
	}
}
