// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net"
	"os"

	"phalanx/client/wire"
)

// Process is what a trainer has of its operating system: this process, or one of a simulated host.
type Process struct {
	PID    int
	Start  uint64                                      // start time; with the pid it names the process for ever
	Dial   func(ctx context.Context) (net.Conn, error) // to the daemon's socket
	Memory wire.Memory                                 // of the host
	// Alive says whether a daemon runs.
	Alive func(pid int, start uint64) bool
	// BoottimeNS is the clock of signs of life.
	BoottimeNS func() int64
	// Pulse, if not nil, lets the daemon see the end of the process before its memory is unmapped, until end is called.
	Pulse func(*wire.Page) (end func() error, err error)
	// Signals says whether TERM and INT ask the trainer to leave in order.
	Signals bool
}

// thisProcess is the one that calls.
func thisProcess(socket string) (Process, error) {
	start, err := wire.ProcessStart(os.Getpid())
	if err != nil {
		return Process{}, err
	}
	return Process{
		PID: os.Getpid(), Start: start, Memory: wire.SharedMemory{}, Alive: wire.Alive, BoottimeNS: wire.BoottimeNS, Pulse: wire.StartPulse, Signals: true,
		Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) },
	}, nil
}

// DialDaemon finds the daemon that started the process. It fails when there is none.
func (p Process) DialDaemon(ctx context.Context) (*Client, error) {
	conn, err := p.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial the daemon; look at phalanx status: %w", err)
	}
	return &Client{process: p}, conn.Close()
}
