// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Answer says what a fresh TCP connect tells about the kernel at the other end.
type Answer uint8

// The answers. The zero value says nothing.
const (
	// AnswerUnknown: the probe failed here (no descriptor, no route, cancelled): it says nothing about the other host.
	AnswerUnknown Answer = iota
	// AnswerAccepted: its kernel completed the handshake. It does so for a stopped process too.
	AnswerAccepted
	// AnswerRefused: its kernel answered that nobody listens.
	AnswerRefused
	// AnswerSilent: nothing came back, not even a refusal, or the network says that the host does not answer.
	AnswerSilent
)

func (a Answer) String() string {
	switch a {
	case AnswerUnknown:
		return "unknown"
	case AnswerAccepted:
		return "accepted"
	case AnswerRefused:
		return "refused"
	case AnswerSilent:
		return "silent"
	default:
		return fmt.Sprintf("answer(%d)", uint8(a))
	}
}

// Alive reports whether the answer proves a living kernel.
func (a Answer) Alive() bool { return a == AnswerAccepted || a == AnswerRefused }

// ProbeResult is what one probe saw.
type ProbeResult struct {
	Addr   string
	Answer Answer
	Began  time.Time
	Took   time.Duration
	Detail string // the error in words, "" when accepted
}

// ProbeHost opens a fresh TCP connection to addr, IP:PORT, and closes it at once. It waits as long as ctx allows: give it
// a deadline of 0.6 to 0.9 s, a first SYN that is lost is sent again only after 1 s by default. A ctx without a deadline
// gets 0.9 s. A listener whose queue is full also looks silent, though its kernel lives: what its kernel acknowledges on
// older connections (ReadAckState) tells the two apart. The listener sees a stream that is reset before its first byte.
// Silence is only an answer when the deadline ran out, not when ctx was cancelled.
func ProbeHost(ctx context.Context, addr string) ProbeResult {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 900*time.Millisecond)
		defer cancel()
	}
	began := time.Now()
	// Without keep-alive and multipath TCP: the connection ends before either matters.
	dialer := net.Dialer{KeepAlive: -1}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	result := ProbeResult{Addr: addr, Began: began, Took: time.Since(began), Answer: classifyDial(ctx, err)}
	if err != nil {
		result.Detail = err.Error()
		return result
	}
	// Reset instead of a goodbye: a probe leaves nothing in TIME_WAIT on either side.
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
	return result
}

// classifyDial reads a dial's error by its cause. Unlisted causes are of this host and say nothing.
func classifyDial(ctx context.Context, err error) Answer {
	var timeout net.Error
	switch {
	case err == nil:
		return AnswerAccepted
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET):
		return AnswerRefused
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EHOSTDOWN), errors.Is(err, unix.ETIMEDOUT):
		return AnswerSilent // no answer to ARP or to SYN
	case errors.Is(ctx.Err(), context.Canceled):
		return AnswerUnknown
	case errors.As(err, &timeout) && timeout.Timeout():
		return AnswerSilent
	default:
		return AnswerUnknown
	}
}

// SetUserTimeout sets TCP_USER_TIMEOUT: the kernel ends the connection when sent bytes stay unacknowledged for so long.
// Without it a vanished host is noticed after a quarter of an hour. conn may be a *tls.Conn or another wrapper with
// NetConn. Timeouts are rounded up to milliseconds.
func SetUserTimeout(conn net.Conn, timeout time.Duration) error {
	ms := int((timeout + time.Millisecond - 1) / time.Millisecond)
	err := onSocket(conn, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms)
	})
	if err != nil {
		return fmt.Errorf("set TCP user timeout of the connection to %v: %w", conn.RemoteAddr(), err)
	}
	return nil
}

// AckState is the kernel's account of the other kernel on one connection.
type AckState struct {
	SinceAck     time.Duration // since any acknowledgement came, of data or of a keep-alive
	Unacked      int           // segments sent and not acknowledged
	Retransmits  int           // times the oldest of them was sent again, in a row
	KeepAliveDue int           // keep-alive probes unanswered
}

// Waiting reports whether the other kernel owes an acknowledgement. When it owes none, its silence means nothing.
func (a AckState) Waiting() bool { return a.Unacked > 0 || a.KeepAliveDue > 0 }

// ReadAckState asks the kernel (TCP_INFO) when the other side's kernel last acknowledged anything. conn as in
// SetUserTimeout.
func ReadAckState(conn net.Conn) (AckState, error) {
	var info *unix.TCPInfo
	err := onSocket(conn, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	if err != nil {
		return AckState{}, fmt.Errorf("read TCP info of the connection to %v: %w", conn.RemoteAddr(), err)
	}
	return AckState{
		SinceAck:     time.Duration(info.Last_ack_recv) * time.Millisecond,
		Unacked:      int(info.Unacked),
		Retransmits:  int(info.Retransmits),
		KeepAliveDue: int(info.Probes),
	}, nil
}

// errNoSocket is returned for connections that are not kernel TCP sockets, such as net.Pipe.
var errNoSocket = errors.New("not a TCP socket")

func onSocket(conn net.Conn, do func(fd int) error) error {
	// Wrappers nest at most a few deep; the bound keeps a cyclic one from holding us.
	for range 4 {
		if tcp, ok := conn.(*net.TCPConn); ok {
			return onRaw(tcp, do)
		}
		wrapper, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = wrapper.NetConn()
	}
	return errNoSocket
}
