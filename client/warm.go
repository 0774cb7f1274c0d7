// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"phalanx/client/wire"
)

// AwaitPlace is where a process that was started ahead (run --warm) waits until a member needs it, which may be never: then it
// ends the process. It sets the variables of its place and turns stdout and stderr to its output. Dial calls it first. In a
// process that was started for a place it returns at once.
func AwaitPlace(ctx context.Context) error {
	socket := os.Getenv(wire.WarmVariable)
	if socket == "" {
		return nil
	}
	if err := os.Unsetenv(wire.WarmVariable); err != nil { // it waits once, and what it starts does not
		return fmt.Errorf("await a place: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		os.Exit(0) // the run that started it has ended
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	place, err := wire.WarmMessage{}, wire.WriteWarm(conn, wire.WarmMessage{Op: wire.WarmReady})
	if err == nil {
		place, err = wire.ReadWarm(conn)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("await a place: %w", context.Cause(ctx))
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		os.Exit(0) // nobody will need it
	case err != nil:
		return fmt.Errorf("await a place: %w", errors.Join(err, conn.Close()))
	}
	if err := takePlace(place); err != nil {
		return fmt.Errorf("take a place: %w", errors.Join(err, conn.Close()))
	}
	return errors.Join(wire.WriteWarm(conn, wire.WarmMessage{Op: wire.WarmTaken}), conn.Close())
}

// takePlace makes the process the one that would have been started for the place.
func takePlace(m wire.WarmMessage) error {
	if m.Op != wire.WarmPlace {
		return fmt.Errorf("%q is no place; run program and phalanx of one release", m.Op)
	}
	for name, value := range m.Env {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	if m.Log == "" {
		return nil
	}
	out, err := os.OpenFile(m.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(out.Fd()), fd, 0); err != nil {
			return errors.Join(fmt.Errorf("turn the output to %s: %w", m.Log, err), out.Close())
		}
	}
	return out.Close()
}
