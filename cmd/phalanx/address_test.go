// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"phalanx/membership"
	"phalanx/node"
)

// TestAddressIsToldWhenItIsKnown: a daemon listens on its socket before it has written where other hosts join.
func TestAddressIsToldWhenItIsKnown(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "phx-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	paths := node.NewPaths(dir, "")
	socket, file := paths.Socket(0), paths.DaemonFile(0)
	for _, p := range []string{socket, file} {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	start, err := membership.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	d := node.DaemonFile{PID: os.Getpid(), Start: start, Socket: socket, Addr: "10.1.2.3:7700"}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() { // ends with the listener
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			if first {
				close(asked)
			}
		}
	}()
	var said bytes.Buffer
	told := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { // ends with ctx at the latest
		defer close(told)
		(&app{stderr: &said}).tellAddress(ctx, dir)
	}()
	<-asked // it was found by its socket
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	<-told
	if want := "phalanx: other hosts join with --join 10.1.2.3:7700\n"; said.String() != want {
		t.Errorf("said %q, not %q", &said, want)
	}
}
