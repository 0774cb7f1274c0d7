// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"phalanx"
)

func TestProbeOfLivingKernels(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	// Nobody accepts, as when the process is stopped: the kernel completes the handshake all the same.
	if r := ProbeHost(t.Context(), addr); r.Answer != AnswerAccepted || !r.Answer.Alive() || r.Detail != "" || r.Addr != addr {
		t.Errorf("listening: %+v", r)
	}
	listener.Close()
	if r := ProbeHost(t.Context(), addr); r.Answer != AnswerRefused || !r.Answer.Alive() || r.Detail == "" {
		t.Errorf("nobody listens: %+v", r)
	}
}

// silentAddr returns an address whose kernel drops every SYN: a listener whose queue of one is full.
func silentAddr(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port)
	for range 8 {
		conn, err := net.DialTimeout("tcp", addr, 200*ms)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Skip("this kernel does not drop connects to a full queue")
	return ""
}

func TestProbeOfSilence(t *testing.T) {
	addr := silentAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
	defer cancel()
	if r := ProbeHost(ctx, addr); r.Answer != AnswerSilent || r.Answer.Alive() || r.Took < 250*ms {
		t.Errorf("full queue: %+v", r)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if r := ProbeHost(ctx, addr); r.Answer != AnswerUnknown {
		t.Errorf("a cancelled probe says %s", r.Answer)
	}
	if r := ProbeHost(t.Context(), "no port"); r.Answer != AnswerUnknown {
		t.Errorf("a wrong address says %s", r.Answer)
	}
}

func TestClassifyDial(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	syscallErr := func(errno unix.Errno) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)}
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want Answer
	}{
		"accepted":             {t.Context(), nil, AnswerAccepted},
		"refused":              {t.Context(), syscallErr(unix.ECONNREFUSED), AnswerRefused},
		"reset":                {t.Context(), syscallErr(unix.ECONNRESET), AnswerRefused},
		"no answer to ARP":     {t.Context(), syscallErr(unix.EHOSTUNREACH), AnswerSilent},
		"kernel gave up":       {t.Context(), syscallErr(unix.ETIMEDOUT), AnswerSilent},
		"deadline":             {t.Context(), &net.OpError{Op: "dial", Err: context.DeadlineExceeded}, AnswerSilent},
		"cancelled":            {cancelled, &net.OpError{Op: "dial", Err: context.Canceled}, AnswerUnknown},
		"no route from here":   {t.Context(), syscallErr(unix.ENETUNREACH), AnswerUnknown},
		"no descriptors here":  {t.Context(), syscallErr(unix.EMFILE), AnswerUnknown},
		"no local port":        {t.Context(), syscallErr(unix.EADDRNOTAVAIL), AnswerUnknown},
		"forbidden by a local": {t.Context(), syscallErr(unix.EPERM), AnswerUnknown},
	} {
		if got := classifyDial(c.ctx, c.err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// wrapped hides a connection as tls.Conn does.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestUserTimeoutAndAckState(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := SetUserTimeout(wrapped{wrapped{conn}}, 1500*time.Microsecond); err != nil {
		t.Fatal(err)
	}
	var got int
	if err := onSocket(conn, func(fd int) (err error) {
		got, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		return err
	}); err != nil || got != 2 {
		t.Errorf("user timeout %d ms, %v, want 2", got, err)
	}
	state, err := ReadAckState(wrapped{conn})
	if err != nil || state.Waiting() || state.SinceAck > patience {
		t.Errorf("ack state %+v, %v", state, err)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if err := SetUserTimeout(a, time.Second); !errors.Is(err, errNoSocket) {
		t.Errorf("user timeout of a pipe: %v", err)
	}
	if _, err := ReadAckState(a); !errors.Is(err, errNoSocket) {
		t.Errorf("ack state of a pipe: %v", err)
	}
}

func TestJudgeHost(t *testing.T) {
	now := time.Unix(1000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	probe := func(a Answer, began, took time.Duration) ProbeResult {
		return ProbeResult{Answer: a, Began: ago(began), Took: took}
	}
	silent := probe(AnswerSilent, 900*ms, 800*ms)
	see := func(id phalanx.MemberID, heard time.Duration, p ProbeResult) HostObservation {
		return HostObservation{Observer: id, LastHeard: ago(heard), Probe: p}
	}
	late := func(o HostObservation, d time.Duration) HostObservation {
		o.Lateness = d
		return o
	}
	for name, c := range map[string]struct {
		observed []HostObservation
		want     HostVerdict
		why      string
	}{
		"nobody looked":    {nil, HostUndecided, "nobody looked"},
		"two hosts agree":  {[]HostObservation{see("a/0", 1000*ms, silent), see("b/0", 1200*ms, silent)}, HostIsSilent, "silent to 2"},
		"one is too few":   {[]HostObservation{see("a/0", 1000*ms, silent)}, HostUndecided, "silent to 1"},
		"one NIC, one say": {[]HostObservation{see("a/0", 1000*ms, silent), see("a/1", 1000*ms, silent)}, HostUndecided, "silent to 1"},
		"its own members are no observers": {[]HostObservation{see("a/0", 1000*ms, silent), see("x/0", 1000*ms, silent),
			see("x/1", 0, probe(AnswerAccepted, 10*ms, ms))}, HostUndecided, "silent to 1"},
		"refusal is life":    {[]HostObservation{see("a/0", 1000*ms, probe(AnswerRefused, 100*ms, ms))}, HostAnswers, "refused"},
		"acks are life":      {[]HostObservation{see("a/0", 100*ms, silent)}, HostAnswers, "100ms ago"},
		"a broken path":      {[]HostObservation{see("a/0", time.Second, silent), see("b/0", time.Second, silent), see("c/0", 10*ms, ProbeResult{})}, HostDisputed, "answers 1"},
		"stall of 0.5 s":     {[]HostObservation{see("a/0", 500*ms, probe(AnswerSilent, 500*ms, 500*ms)), see("b/0", 500*ms, probe(AnswerSilent, 500*ms, 500*ms))}, HostAnswers, "500ms ago"},
		"connect too young":  {[]HostObservation{see("a/0", time.Second, probe(AnswerSilent, 300*ms, 300*ms)), see("b/0", time.Second, silent)}, HostUndecided, "too early"},
		"probe failed here":  {[]HostObservation{see("a/0", time.Second, probe(AnswerUnknown, 900*ms, ms)), see("b/0", time.Second, silent)}, HostUndecided, "says nothing"},
		"no probe":           {[]HostObservation{see("a/0", time.Second, ProbeResult{}), see("b/0", time.Second, silent)}, HostUndecided, "no fresh probe"},
		"old probe":          {[]HostObservation{see("a/0", 9*time.Second, probe(AnswerSilent, 9*time.Second, time.Second)), see("b/0", time.Second, silent)}, HostUndecided, "no fresh probe"},
		"old acceptance":     {[]HostObservation{see("a/0", time.Second, probe(AnswerAccepted, 1000*ms, ms)), see("b/0", time.Second, silent)}, HostUndecided, "silent to 1"},
		"late observer":      {[]HostObservation{late(see("a/0", time.Second, silent), 400*ms), see("b/0", time.Second, silent)}, HostUndecided, "late by 400ms"},
		"late, yet sure":     {[]HostObservation{late(see("a/0", time.Second, silent), 50*ms), see("b/0", time.Second, silent)}, HostIsSilent, "silent to 2"},
		"never heard before": {[]HostObservation{{Observer: "a/0", Probe: silent}, {Observer: "b/0", Probe: silent}}, HostIsSilent, "never heard"},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := JudgeHost("x", c.observed, DefaultHostPolicy(), now)
			if got != c.want || !strings.Contains(why, c.why) {
				t.Errorf("got %s, want %s with %q: %s", got, c.want, c.why, why)
			}
		})
	}
	if got, _ := JudgeHost("x", []HostObservation{see("a/0", time.Second, silent)}, HostPolicy{}, now); got != HostUndecided {
		t.Errorf("no policy: %s", got)
	}
}

func TestHostSilentEvidence(t *testing.T) {
	now := time.Unix(1000, 5)
	got := HostSilentEvidence([]phalanx.Incarnate{{Member: "x/10", Incarnation: 2}, {Member: "x/9", Incarnation: 1}}, "why", "a/0", now)
	want := phalanx.Evidence{Kind: phalanx.HostSilent, About: phalanx.Incarnate{Member: "x/9", Incarnation: 1}, Source: "a/0",
		UnixNS: now.UnixNano(), Detail: "why"}
	if len(got) != 2 || got[0] != want || got[1].About.Member != "x/10" {
		t.Errorf("got %v", got)
	}
}
