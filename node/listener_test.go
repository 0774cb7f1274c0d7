// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"phalanx"
)

func identity(t *testing.T, k JobKey, job string, who phalanx.MemberID) *Identity {
	t.Helper()
	id, err := NewIdentity(k, job, who)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func listen(t *testing.T, id *Identity) *Listener {
	t.Helper()
	l, err := Listen(nil, "127.0.0.1:0", id, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func brief(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// refused wants the end of a connection without a byte: in TLS 1.3 the client hears of a refusal when it first reads.
func refused(t *testing.T, c net.Conn, err error) {
	t.Helper()
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	n, err := c.Read(make([]byte, 1))
	var late net.Error
	if n != 0 || err == nil || errors.As(err, &late) && late.Timeout() {
		t.Errorf("the connection stays open: %d bytes, %v", n, err)
	}
}

// Connections arrive at the queue of the protocol that was asked for, with the name of who is at the other end.
func TestListenerSortsConnectionsByProtocol(t *testing.T) {
	k := NewJobKey()
	server := listen(t, identity(t, k, "job", "h/0"))
	client := listen(t, identity(t, k, "job", "h/1"))
	for _, protocol := range []string{ProtoAPI, ProtoRaft, ProtoPeer, ProtoData, ProtoStream, ProtoGossip, ProtoStore} {
		out, err := client.Dial(brief(t), server.Addr().String(), protocol)
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		in, err := server.Of(protocol).Accept()
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		if got := memberOf(in); got != "h/1" {
			t.Errorf("%s: accepted from %q", protocol, got)
		}
		if got := memberOf(out); got != "h/0" {
			t.Errorf("%s: dialled %q", protocol, got)
		}
		if _, err := out.Write([]byte(protocol)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(protocol))
		_ = in.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != protocol {
			t.Errorf("%s: received %q, %v", protocol, got, err)
		}
		in.Close()
		out.Close()
	}
	if memberOf(&net.TCPConn{}) != "" {
		t.Error("a plain connection has a member")
	}
}

func TestListenerRefusesStrangers(t *testing.T) {
	k := NewJobKey()
	server := listen(t, identity(t, k, "job", "h/0"))
	addr := server.Addr().String()
	for name, id := range map[string]*Identity{
		"another key":                  identity(t, NewJobKey(), "job", "h/1"),
		"another job of the same key":  identity(t, k, "other", "h/1"),
		"another key and a larger job": identity(t, NewJobKey(), "job2", "h/1"),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := listen(t, id).Dial(brief(t), addr, ProtoStream)
			if err == nil {
				t.Error("the client takes the server for one of its job")
				c.Close()
			}
			trusting := id.client.Clone() // a client that looks at nothing is still refused
			trusting.InsecureSkipVerify, trusting.VerifyConnection, trusting.NextProtos = true, nil, []string{ProtoStream}
			c, err = tls.Dial("tcp", addr, trusting)
			refused(t, c, err)
		})
	}
	t.Run("no certificate", func(t *testing.T) {
		c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{ProtoStream}})
		refused(t, c, err)
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		old := server.id.client.Clone()
		old.MinVersion, old.MaxVersion, old.NextProtos = tls.VersionTLS12, tls.VersionTLS12, []string{ProtoStream}
		c, err := tls.Dial("tcp", addr, old)
		if err == nil {
			t.Error("an older TLS is spoken")
			c.Close()
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		b, err := io.ReadAll(c) // an alert, then the end
		c.Close()
		if err != nil && strings.Contains(err.Error(), "timeout") || strings.Contains(string(b), "HTTP/1.1 200") {
			t.Errorf("plain text is answered: %q, %v", b, err)
		}
	})
	for protocol, q := range server.queues {
		if n := len(q.conns); n != 0 {
			t.Errorf("%d strangers wait as %s", n, protocol)
		}
	}
}

func TestListenerRefusesUnknownProtocols(t *testing.T) {
	k := NewJobKey()
	server := listen(t, identity(t, k, "job", "h/0"))
	client := listen(t, identity(t, k, "job", "h/1"))
	if c, err := client.Dial(brief(t), server.Addr().String(), "phalanx-raft/2"); err == nil {
		t.Error("a protocol that does not exist is spoken")
		c.Close()
	}
	none := client.id.client.Clone()
	none.NextProtos = nil
	c, err := tls.Dial("tcp", server.Addr().String(), none)
	refused(t, c, err)
}

// A client that holds the key and asks for nothing, or says nothing at all, is cut off in time.
func TestListenerCutsSilentClients(t *testing.T) {
	server := listen(t, identity(t, NewJobKey(), "job", "h/0"))
	c, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout + 20*time.Second))
	if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("a silent client stays connected: %v", err)
	}
}

// Close frees the port, ends every Accept and what waits to be accepted, and does not wait for a peer that says nothing.
func TestListenerCloseFreesThePort(t *testing.T) {
	k := NewJobKey()
	server := listen(t, identity(t, k, "job", "h/0"))
	client := listen(t, identity(t, k, "job", "h/1"))
	addr := server.Addr()
	silent, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	waiting, err := client.Dial(brief(t), addr.String(), ProtoData)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1) // 1: one Accept
	go func() {
		_, err := server.Of(ProtoRaft).Accept()
		accepted <- err
	}()
	closed := make(chan struct{})
	go func() { server.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("Close hangs")
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	refused(t, waiting, nil)
	again, err := Listen(nil, addr.String(), server.id, quiet())
	if err != nil {
		t.Fatalf("the port is not free: %v", err)
	}
	again.Close()
}

// The end of one protocol's listener leaves the others alone, and its clients hear of it.
func TestListenerOfEndsAlone(t *testing.T) {
	k := NewJobKey()
	server := listen(t, identity(t, k, "job", "h/0"))
	client := listen(t, identity(t, k, "job", "h/1"))
	raft := server.Of(ProtoRaft)
	if raft.Addr().String() != server.Addr().String() {
		t.Errorf("a protocol listens on %s", raft.Addr())
	}
	if err := errors.Join(raft.Close(), raft.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := raft.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	c, err := client.Dial(brief(t), server.Addr().String(), ProtoAPI)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := server.Of(ProtoAPI).Accept()
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
}

func TestListenNamesATakenPort(t *testing.T) {
	id := identity(t, NewJobKey(), "job", "h/0")
	first := listen(t, id)
	_, err := Listen(nil, "127.0.0.1:"+strconv.Itoa(first.Addr().Port), id, quiet())
	var p *Problem
	if !errors.As(err, &p) || p.Code != CodeFailed || !strings.Contains(err.Error(), "in use") || !strings.Contains(p.Hint, "--bind") {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := Listen(nil, "192.0.2.1:0", id, quiet()); !errors.As(err, &p) || !strings.Contains(p.Hint, "--bind") {
		t.Errorf("an address of another machine: %v", err)
	}
}
