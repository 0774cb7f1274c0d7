// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/chaos/netns"
	"phalanx/membership"
)

// TestFilters: what a filter names is dropped, and nothing else.
func TestFilters(t *testing.T) {
	t.Parallel()
	n, err := netns.New("a", "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	a, b, c := n.Hosts[0], n.Hosts[1], n.Hosts[2]
	for _, from := range n.Hosts {
		for _, to := range n.Hosts {
			if from != to {
				know(t, from, to)
			}
		}
	}
	only := func(h ...*netns.Host) []*netns.Host { return h }
	for _, x := range []struct {
		what    string
		filters []netns.Filter
		// How many of 200 come: from a to b, back, from c to b, and with the mark 10 from a to b.
		ab, ba, cb, marked int
	}{
		{"nothing", nil, 200, 200, 200, 200},
		{"one way", []netns.Filter{{From: only(a), To: only(b)}}, 0, 200, 200, 0},
		{"both ways", netns.Split(only(a), only(b, c)), 0, 0, 200, 0},
		{"into b", []netns.Filter{{To: only(b)}}, 0, 200, 0, 0},
		{"marked", []netns.Filter{{DSCP: []uint8{10, 34}}}, 200, 200, 200, 0},
		{"a third", []netns.Filter{{From: only(a), Percent: 33}}, 134, 200, 200, 134},
	} {
		if err := n.Apply(x.filters...); err != nil {
			t.Fatal(err)
		}
		for _, way := range []struct {
			what     string
			from, to *netns.Host
			dscp     uint8
			want     int
		}{{"a to b", a, b, 0, x.ab}, {"b to a", b, a, 0, x.ba}, {"c to b", c, b, 0, x.cb}, {"a to b, marked", a, b, 10, x.marked}} {
			got := talk(t, way.from, way.to, way.dscp, 200)
			off := max(got-way.want, way.want-got)
			if off > 0 && (x.filters == nil || x.filters[0].Percent == 0) || off > 45 { // seven times the deviation of the draws
				t.Errorf("%s, %s: %d of 200 came, want %d", x.what, way.what, got, way.want)
			}
		}
	}
}

// know tells one host the hardware address of another one for good. Else the kernel asks for it now and then, a filter drops the
// answers too, and packets are lost for a while after the filter is gone.
func know(t *testing.T, from, to *netns.Host) {
	t.Helper()
	mac, err := to.Command("cat", "/sys/class/net/eth0/address").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := from.Command("ip", "neigh", "replace", to.Addr.String(), "lladdr", strings.TrimSpace(string(mac)), "dev", "eth0", "nud", "permanent").CombinedOutput()
	if err != nil {
		t.Fatalf("tell %s where %s is: %v\n%s", from.Name, to.Name, err, out)
	}
}

// talk sends datagrams with a mark from one host to another and counts those that come. Its ends are this program, see talker.
func talk(t *testing.T, from, to *netns.Host, dscp uint8, n int) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	listen := to.Command(self)
	listen.Env = append(os.Environ(), "PHALANX_NETNS_TALK=listen "+to.Addr.String())
	out, err := listen.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := listen.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := listen.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the listener does not listen")
	}
	send := from.Command(self)
	send.Env = append(os.Environ(), fmt.Sprintf("PHALANX_NETNS_TALK=send %s %d %d", to.Addr, dscp, n))
	if out, err := send.CombinedOutput(); err != nil {
		t.Fatalf("send: %v\n%s", err, out)
	}
	in.Close()
	lines.Scan()
	got, err := strconv.Atoi(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	if err := listen.Wait(); err != nil {
		t.Fatal(err)
	}
	return got
}

// talker is the end of a talk: it says when it listens and counts until its input has ended and nothing more comes, or it sends.
func talker(what string) error {
	var kind, addr string
	var dscp uint8
	var n int
	if _, err := fmt.Sscanf(what+" 0 0", "%s %s %d %d", &kind, &addr, &dscp, &n); err != nil {
		return err
	}
	addr = net.JoinHostPort(addr, "9000")
	if strings.HasPrefix(kind, "listen") {
		c, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		fmt.Println("listens")
		go func() { // ends with the process
			_, _ = io.Copy(io.Discard, os.Stdin)
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // what is under way comes at once
		}()
		for got := 0; ; got++ {
			if _, _, err := c.ReadFrom(make([]byte, 16)); err != nil {
				fmt.Println(got)
				return nil
			}
		}
	}
	c, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	if err := membership.SetTrafficClass(c, dscp); err != nil {
		return err
	}
	for range n {
		if _, err := c.Write([]byte("x")); err != nil && !os.IsTimeout(err) && !isUnreachable(err) {
			return err
		}
		time.Sleep(100 * time.Microsecond) // the queues are short
	}
	return nil
}

func isUnreachable(err error) bool {
	return strings.Contains(err.Error(), unix.EHOSTUNREACH.Error()) || strings.Contains(err.Error(), unix.ECONNREFUSED.Error())
}
