// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"phalanx"
)

var testKey = bytes.Repeat([]byte{7}, 32)

// sockets opens a TCP listener and a UDP socket on one loopback port, as a daemon does.
func sockets(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return udp, l
		}
		l.Close()
	}
	t.Fatal("no port is free for both TCP and UDP")
	return nil, nil
}

func testName(host string) string {
	return GossipName(phalanx.Incarnate{Member: phalanx.NewMemberID(host, 0), Incarnation: 1}, "t")
}

// start runs a member with real sockets until the test ends.
func start(t *testing.T, host string, change func(*GossipConfig), seeds ...string) *Gossip {
	t.Helper()
	udp, streams := sockets(t)
	cfg := GossipConfig{
		Name: testName(host), Key: testKey, Label: "job", Seeds: seeds,
		Meta:      Meta{Incarnation: 1, DaemonPort: 1}.Encode(),
		Transport: NewTransport(udp, streams, plainDialer, nil),
	}
	if change != nil {
		change(&cfg)
	}
	g, err := StartGossip(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// await reads hints until one has the name and kind.
func await(t *testing.T, g *Gossip, name string, kind HintKind) Hint {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case h, ok := <-g.Hints():
			if !ok {
				t.Fatalf("hints closed before %s was %s", name, kind)
			}
			if h.Name == name && h.Kind == kind {
				return h
			}
			t.Logf("passed over: %s %s", h.Name, h.Kind)
		case <-deadline:
			t.Fatalf("%s was never %s", name, kind)
		}
	}
}

func names(g *Gossip) string {
	var s []string
	for _, m := range g.Members() {
		s = append(s, m.Name)
	}
	return strings.Join(s, " ")
}

func TestGossipSeesDeathLeaveAndUpdate(t *testing.T) {
	a := start(t, "a", nil)
	b := start(t, "b", nil, a.Addr())
	c := start(t, "c", nil, a.Addr())
	if h := await(t, a, testName("b"), HintAlive); h.Addr != b.Addr() || h.At.IsZero() {
		t.Errorf("hint %+v, want address %s", h, b.Addr())
	}
	await(t, b, testName("c"), HintAlive)
	await(t, c, testName("b"), HintAlive)

	next := Meta{Incarnation: 1, DaemonPort: 1, Roles: RoleVoter}.Encode()
	if err := c.UpdateMeta(next); err != nil {
		t.Fatal(err)
	}
	if h := await(t, b, testName("c"), HintUpdated); !bytes.Equal(h.Meta, next) {
		t.Errorf("meta %x, want %x", h.Meta, next)
	}
	if err := c.UpdateMeta(make([]byte, MaxMetaBytes+1)); err == nil {
		t.Error("metadata that is too long was taken")
	}

	if err := c.Close(); err != nil { // no word: a death
		t.Fatal(err)
	}
	await(t, b, testName("c"), HintDead)
	if got := names(b); got != testName("a") {
		t.Errorf("b knows %s", got)
	}

	if err := a.Leave(2 * time.Second); err != nil {
		t.Fatal(err)
	}
	await(t, b, testName("a"), HintLeft)
	if got := names(b); got != "" {
		t.Errorf("b knows %s", got)
	}
	if err := a.UpdateMeta(next); err == nil {
		t.Error("metadata of a member that left was updated")
	}
}

func TestWrongKeyAndWrongLabelAreNotAdmitted(t *testing.T) {
	a := start(t, "a", nil)
	foreign := start(t, "foreign", func(c *GossipConfig) { c.Key = bytes.Repeat([]byte{8}, 32) }, a.Addr())
	other := start(t, "other", func(c *GossipConfig) { c.Label = "other job" }, a.Addr())
	// An admitted member that came later shows that the others had their time.
	start(t, "b", nil, a.Addr())
	await(t, a, testName("b"), HintAlive)
	time.Sleep(4 * probeInterval)
	if got := names(a); got != testName("b") {
		t.Errorf("a knows %s", got)
	}
	if names(foreign) != "" || names(other) != "" {
		t.Errorf("the refused know %q and %q", names(foreign), names(other))
	}
}

func TestGossipConfigIsChecked(t *testing.T) {
	good := GossipConfig{Name: "h/0.1-n", Key: testKey}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*GossipConfig){
		"name":     func(c *GossipConfig) { c.Name = "" },
		"key":      func(c *GossipConfig) { c.Key = c.Key[:16] },
		"label":    func(c *GossipConfig) { c.Label = strings.Repeat("x", 256) },
		"metadata": func(c *GossipConfig) { c.Meta = make([]byte, MaxMetaBytes+1) },
	} {
		c := good
		udp, streams := sockets(t)
		c.Transport = NewTransport(udp, streams, plainDialer, nil) // ends with the failure, or goleak complains
		change(&c)
		if _, err := StartGossip(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("bad %s: %v", name, err)
		}
	}
}

func TestGossipOwnSocketsAndLifeAfterClose(t *testing.T) {
	g, err := StartGossip(GossipConfig{Name: testName("solo"), Key: testKey, BindAddr: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.UpdateMeta(nil); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if g.Leave(time.Second) == nil || g.UpdateMeta(nil) == nil {
		t.Error("a closed member acts")
	}
	g.Rejoin([]string{"127.0.0.1:1"})
	for range g.Hints() { // ends because it is closed
	}
}

// A cut that outlasts memberlist's gossip to the dead stays for ever without the reconciler.
func TestReconcilerHealsALongCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 6
		n := newSimNet()
		var roster []string
		for i := range size {
			roster = append(roster, fmt.Sprintf("10.0.0.%d:%d", i+1, simPort))
		}
		var all []*Gossip
		for i := range size {
			g, err := StartGossip(GossipConfig{Name: testName(fmt.Sprint("h", i)), Key: testKey, Label: "job",
				Seeds: roster, Transport: n.join(byte(i + 1))})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
			time.Sleep(20 * ms)
		}
		full := func(want int) bool {
			for _, g := range all {
				if len(g.Members()) != want {
					return false
				}
			}
			return true
		}
		within := func(limit time.Duration, want int, what string) {
			t.Helper()
			for began := time.Now(); !full(want); time.Sleep(100 * ms) {
				if time.Since(began) > limit {
					for _, g := range all {
						t.Logf("%s knows %s", g.cfg.Name, names(g))
					}
					t.Fatalf("%s: not after %v", what, limit)
				}
			}
		}
		within(10*time.Second, size-1, "all join")
		low := func(addr string) bool { return addr < roster[size/2] }
		n.setCut(func(from, to string) bool { return low(from) != low(to) })
		within(20*time.Second, size/2-1, "halves part")
		time.Sleep(5 * time.Minute)
		if !full(size/2 - 1) {
			t.Error("the halves see each other through a cut")
		}
		n.setCut(func(string, string) bool { return false })
		within(60*time.Second, size-1, "halves meet again")
		for _, g := range all {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
		// A bubble's clock stands still once this function returns: let memberlist's last probes run out.
		time.Sleep(time.Minute)
	})
}

func TestHintsDropTheOldest(t *testing.T) {
	v := newGossipView("self")
	node := func(i int) *memberlist.Node {
		return &memberlist.Node{Name: fmt.Sprint(i), Addr: net.IPv4(10, 0, 0, 1), Port: 1, Meta: []byte{0, 9}}
	}
	for i := range hintQueue + 10 {
		v.NotifyJoin(node(i))
	}
	if got := v.dropped.Load(); got != 10 {
		t.Errorf("%d dropped, want 10", got)
	}
	if h := <-v.hints; h.Name != "10" || !bytes.Equal(h.Meta, []byte{9}) {
		t.Errorf("oldest kept hint %+v", h)
	}
	if got := len(v.members()); got != hintQueue+10 {
		t.Errorf("%d members", got)
	}
	v.members()[0].Meta[0] = 1
	if v.members()[0].Meta[0] != 9 {
		t.Error("members are not copies")
	}
	v.close()
	v.NotifyLeave(node(0)) // a late timer of memberlist: no panic
}

func TestViewRefusesWhatIsNoDaemon(t *testing.T) {
	v := newGossipView("self")
	for _, n := range []*memberlist.Node{
		{Name: "n"}, {Name: strings.Repeat("n", maxNameBytes+1), Meta: []byte{0}}, {Name: "n", Meta: make([]byte, MaxMetaBytes+2)},
	} {
		if v.NotifyAlive(n) == nil {
			t.Errorf("%d bytes of name and %d of metadata were taken", len(n.Name), len(n.Meta))
		}
	}
	if err := v.NotifyAlive(&memberlist.Node{Name: "n", Meta: []byte{0}}); err != nil {
		t.Error(err)
	}
}

func TestListLoggerFoldsRepeats(t *testing.T) {
	var out safeBuffer
	log := listLogger(slog.New(slog.NewTextHandler(&out, nil)))
	for range 50 {
		log.Printf("[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=%d", 1)
	}
	log.Printf("[DEBUG] memberlist: chatter")
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "hint=") || !strings.Contains(got, "level=WARN") {
		t.Errorf("log:\n%s", got)
	}
}

// safeBuffer is written by the logger and read by the test.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
